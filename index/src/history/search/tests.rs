//! Compares the search with a scan of the responses.

use std::path::Path;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::super::disk::Disk;
use super::super::key::{FileKind, RecordId};
use super::super::log::{Place, Record};
use super::super::segment::write_segment;
use super::super::testing::MemDisk;
use super::*;

const PLACE: Place = Place { owner: 1, number: 1 };

fn segment(texts: &[Vec<u32>], cache: &mut PageCache) -> Segment {
    let disk = MemDisk::default();
    let folder = Path::new("ns");
    disk.create_dir(folder).unwrap();
    let tokens = |text: &Vec<u32>| text.iter().copied().map(TokenId).collect();
    let record = |(i, text): (usize, &Vec<u32>)| Record { id: RecordId(i as u64), tokens: tokens(text) };
    let records: Vec<Record> = texts.iter().enumerate().map(record).collect();
    write_segment(&disk.plain(), folder, PLACE, &[], &records).unwrap();
    let segment =
        Segment::open(&disk.plain(), FileKind::Segment.path(folder, PLACE.number), PLACE, cache).unwrap();
    assert_eq!(segment.read_records(|_| true).unwrap(), records);
    segment.verify().unwrap();
    segment
}

/// The ends of `pattern` in the responses, counted over all of them, with one position for the end of each.
fn ends(texts: &[Vec<u32>], pattern: &[u32]) -> Vec<usize> {
    let mut start = 0;
    let mut found = Vec::new();
    for text in texts {
        for (i, window) in text.windows(pattern.len()).enumerate() {
            if window == pattern {
                found.push(start + i + pattern.len());
            }
        }
        start += text.len() + 1;
    }
    found
}

/// Compares a chain with a scan of the responses. `false` if the chain is full, so orders may be missing.
fn check_chain(texts: &[Vec<u32>], followed: &[u32], chain: &[Order]) -> bool {
    if chain.len() >= CHAIN_MAX - 1 {
        return false;
    }
    for len in 1..=followed.len() {
        let count = ends(texts, &followed[followed.len() - len..]).len();
        let order = chain.iter().rev().find(|order| order.len as usize >= len);
        assert_eq!(order.map_or(0, |order| order.count() as usize), count, "{len} of {followed:?}");
    }
    true
}

fn check_successors(texts: &[Vec<u32>], followed: &[u32], search: Search<'_>, chain: &[Order]) {
    let mut runs = Runs::default();
    let mut orders = SegmentOrders::new(search, chain, &mut runs, |_, _| Cursor(0));
    for (i, order) in chain.iter().enumerate() {
        let suffix = &followed[followed.len() - order.len as usize..];
        let mut found = Vec::new();
        orders.successors(i, |successor| found.push(successor));
        found.sort_by_key(|successor| successor.token);
        let distinct: std::collections::BTreeSet<u32> = texts.iter().flatten().copied().collect();
        let expected = distinct.into_iter().filter_map(|token| {
            let ends = ends(texts, &[suffix, &[token]].concat());
            Some((token, ends.len() as u32, *ends.iter().max()? as u32))
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(orders.n_successors(i), expected.len());
        if expected.len() <= ORDER_SUCCESSORS_MAX {
            let seen = |s: &OrderSuccessor<TokenId>| (s.token, s.count);
            let found_counts: Vec<_> = found.iter().map(seen).collect();
            let expected_counts: Vec<_> = expected.iter().map(|&(token, count, _)| (token, count)).collect();
            assert_eq!(found_counts, expected_counts, "after {suffix:?}");
            assert!(found.iter().zip(&expected).all(|(found, expected)| found.last_end + 1 == expected.2));
        }
    }
}

fn check(texts: &[Vec<u32>], followed: &[u32]) {
    let mut cache = PageCache::new(0);
    let segment = segment(texts, &mut cache);
    let mut chain = Vec::new();
    for end in 1..=followed.len() {
        let mut search = Search { segment: &segment, cache: &mut cache };
        search.follow(&mut chain, TokenId(followed[end - 1]));
        if !check_chain(texts, &followed[..end], &chain) {
            return;
        }
        check_successors(texts, &followed[..end], search, &chain);
    }
}

proptest! {
    #[test]
    fn chains_are_what_a_scan_finds(
        texts in proptest::collection::vec(proptest::collection::vec(0..4u32, 0..30), 1..6),
        followed in proptest::collection::vec(0..5u32, 0..12),
    ) {
        check(&texts, &followed);
    }

    #[test]
    fn also_with_many_tokens(
        texts in proptest::collection::vec(proptest::collection::vec(0..60u32, 0..60), 1..4),
        source in 0..4usize,
        at in 0..50usize,
    ) {
        let text = &texts[source % texts.len()];
        check(&texts, &text[at.min(text.len())..text.len().min(at + 6)]);
    }
}

/// The successors of a frequent order are counted in samples, which represent all of it.
#[test]
fn frequent_orders_are_sampled() {
    let text: Vec<u32> = (0..8000u64).map(|i| (xxh3_64(&i.to_le_bytes()) % 4) as u32).collect();
    let mut cache = PageCache::new(0);
    let texts = [text];
    let segment = segment(&texts, &mut cache);
    let mut chain = Vec::new();
    let mut search = Search { segment: &segment, cache: &mut cache };
    [1, 2].into_iter().for_each(|token| search.follow(&mut chain, TokenId(token)));
    let mut runs = Runs::default();
    let mut orders = SegmentOrders::new(search, &chain, &mut runs, |_, _| Cursor(0));
    for (i, suffix) in [&[1, 2][..], &[2]].into_iter().enumerate() {
        let n_places = ends(&texts, suffix).len();
        assert!(n_places > 2 * PLACES_MAX as usize);
        assert_eq!(orders.count(i), PLACES_MAX);
        let (mut n, mut found) = (0, std::collections::BTreeSet::new());
        orders.successors(i, |successor| {
            let ends = ends(&texts, &[suffix, &[successor.token]].concat());
            assert!(ends.contains(&(successor.last_end as usize + 1)), "{successor:?}");
            let share = f64::from(successor.count) / f64::from(PLACES_MAX);
            let exact = ends.len() as f64 / n_places as f64;
            assert!((0.5..2.0).contains(&(share / exact)), "{share} and {exact} after {suffix:?}");
            n += successor.count;
            found.insert(successor.token);
        });
        assert_eq!(found.len(), 4);
        // One place may be the end of the response.
        assert!(n == PLACES_MAX || n + 1 == PLACES_MAX, "{n}");
    }
}

#[test]
fn no_match_runs_from_one_response_into_the_next() {
    let texts = [vec![1, 2], vec![3, 4], vec![1, 2]];
    check(&texts, &[1, 2, 3, 4]);
}

#[test]
fn more_tokens_than_two_bytes_tell_apart() {
    let text: Vec<u32> = (0..70_000).map(|i| i * 7).collect();
    let mut cache = PageCache::new(0);
    let segment = segment(&[text, vec![14, 21, 5 * 7]], &mut cache);
    let mut chain = Vec::new();
    let mut search = Search { segment: &segment, cache: &mut cache };
    for token in [7, 14, 21] {
        search.follow(&mut chain, TokenId(token));
    }
    let lens: Vec<(u32, u32)> = chain.iter().map(|order| (order.len, order.count())).collect();
    assert_eq!(lens, [(3, 1), (2, 2)]);
}

/// A crafted file with valid checksums may contain any numbers: wrong drafts, but no panic.
#[test]
fn any_numbers_are_searched() {
    let texts: Vec<Vec<u32>> = (0..4).map(|i| (0..40).map(|j| (i * j * 7) % 5).collect()).collect();
    let disk = MemDisk::default();
    let folder = Path::new("ns");
    disk.create_dir(folder).unwrap();
    let tokens = |text: &Vec<u32>| text.iter().copied().map(TokenId).collect();
    let records =
        texts.iter().enumerate().map(|(i, text)| Record { id: RecordId(i as u64), tokens: tokens(text) });
    let path = write_segment(&disk.plain(), folder, PLACE, &[], &records.collect::<Vec<_>>()).unwrap();
    let whole = disk.contents(&path);
    for seed in 0..200u64 {
        let mut bytes = whole.clone();
        // Four pages of numbers follow the header, then the tables, which end with the pages' sums.
        let n_bytes = bytes.len();
        for i in 0..20 {
            let at = 4096 + (xxh3_64(&[seed as u8, i]) % (4 * 4096)) as usize;
            bytes[at] ^= xxh3_64(&[i, seed as u8]) as u8;
        }
        for page in 0..4 {
            let sum = xxh3_64(&bytes[(page + 1) * 4096..(page + 2) * 4096]).to_le_bytes();
            bytes[n_bytes - 32 + page * 8..][..8].copy_from_slice(&sum);
        }
        let sum = xxh3_64(&bytes[5 * 4096..]).to_le_bytes();
        bytes[48..56].copy_from_slice(&sum);
        let sum = xxh3_64(&bytes[..4088]).to_le_bytes();
        bytes[4088..4096].copy_from_slice(&sum);
        disk.put(&path, &bytes);
        let mut cache = PageCache::new(0);
        let segment =
            Segment::open(&disk.plain(), FileKind::Segment.path(folder, PLACE.number), PLACE, &mut cache)
                .unwrap();
        let mut chain = Vec::new();
        for token in [0, 2, 4, 1, 3, 0, 0, 2] {
            let mut search = Search { segment: &segment, cache: &mut cache };
            search.follow(&mut chain, TokenId(token));
            let mut runs = Runs::default();
            let mut orders = SegmentOrders::new(search, &chain, &mut runs, |_, _| Cursor(0));
            (0..chain.len()).for_each(|i| orders.successors(i, |_| {}));
        }
        let _ = segment.read_records(|_| true);
    }
}
