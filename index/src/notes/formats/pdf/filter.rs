//! The filters of streams (ISO 32000, 7.4), within a budget.

use super::super::inflate::Budget;
use super::object::hex;
use crate::notes::report::SkipReason;

/// Bytes of a stream behind one filter; `None` if the filter is unknown, as those of images are. A damaged stream gives what stands
/// before the fault.
///
/// # Errors
/// [`SkipReason::Limit`].
pub(super) fn unfilter(
    filter: &[u8],
    data: &[u8],
    budget: &Budget,
    offset: usize,
) -> Result<Option<Vec<u8>>, SkipReason> {
    let plain = match filter {
        b"FlateDecode" | b"Fl" => return Ok(Some(budget.inflate(data, true, offset)?.0)),
        b"LZWDecode" | b"LZW" => lzw(data, budget.left()),
        b"RunLengthDecode" | b"RL" => run_length(data, budget.left()),
        b"ASCII85Decode" | b"A85" => ascii85(data, budget.left()),
        b"ASCIIHexDecode" | b"AHx" => hexadecimal(data),
        _ => return Ok(None),
    };
    budget.take(plain.len().max(data.len()), offset)?;
    Ok(Some(plain))
}

fn hexadecimal(data: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> =
        data.iter().take_while(|&&byte| byte != b'>').filter_map(|&byte| hex(byte)).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect()
}

fn ascii85(data: &[u8], limit: usize) -> Vec<u8> {
    let mut plain = Vec::with_capacity(data.len() / 5 * 4);
    let (mut group, mut n) = (0_u32, 0);
    for &byte in data {
        if plain.len() > limit {
            break;
        }
        match byte {
            b'z' if n == 0 => plain.extend([0; 4]),
            b'!'..=b'u' => {
                group = group.wrapping_mul(85).wrapping_add(u32::from(byte - b'!'));
                n += 1;
                if n == 5 {
                    plain.extend(group.to_be_bytes());
                    (group, n) = (0, 0);
                }
            }
            b'~' => break,
            _ => {}
        }
    }
    if n > 1 {
        let padded = (n..5).fold(group, |group, _| group.wrapping_mul(85).wrapping_add(84));
        plain.extend(&padded.to_be_bytes()[..n - 1]);
    }
    plain
}

fn run_length(data: &[u8], limit: usize) -> Vec<u8> {
    let (mut plain, mut at) = (Vec::new(), 0);
    while let Some(&n) = data.get(at) {
        let n = usize::from(n);
        match n {
            128 => break,
            0..128 => {
                plain.extend(data.iter().skip(at + 1).take(n + 1));
                at += n + 2;
            }
            _ => {
                let Some(&byte) = data.get(at + 1) else { break };
                plain.resize(plain.len() + 257 - n, byte);
                at += 2;
            }
        }
        if plain.len() > limit {
            break;
        }
    }
    plain
}

/// Codes of 9 to 12 bits, each a word of the table: a word before it with one more byte.
fn lzw(data: &[u8], limit: usize) -> Vec<u8> {
    const CLEAR: usize = 256;
    const END: usize = 257;
    let mut plain: Vec<u8> = Vec::new();
    // Words behind the single bytes, as places in the output.
    let mut words: Vec<(usize, usize)> = Vec::new();
    let mut last: Option<(usize, usize)> = None;
    let (mut bits, mut n_bits, mut width) = (0_u32, 0_u32, 9_u32);
    for &byte in data {
        bits = bits << 8 | u32::from(byte);
        n_bits += 8;
        if n_bits < width {
            continue;
        }
        n_bits -= width;
        let code = (bits >> n_bits) as usize & ((1 << width) - 1);
        if code == END || plain.len() > limit {
            break;
        }
        if code == CLEAR {
            words.clear();
            (last, width) = (None, 9);
            continue;
        }
        let start = plain.len();
        match (code, last) {
            (0..256, _) => plain.push(code as u8),
            (_, last) => {
                let known = words.get(code - 258).copied();
                // The word that this code adds: the last one with its first byte.
                let (from, len) = match (known, last) {
                    (Some(word), _) => word,
                    (None, Some((from, len))) if code - 258 == words.len() => (from, len + 1),
                    _ => break,
                };
                for at in from..from + len {
                    plain.push(plain[at]);
                }
            }
        }
        if let Some((from, len)) = last
            && words.len() < 4096 - 258
        {
            words.push((from, len + 1));
        }
        last = Some((start, plain.len() - start));
        // Codes become longer one code early.
        width = match words.len() + 258 + 1 {
            0..512 => 9,
            512..1024 => 10,
            1024..2048 => 11,
            _ => 12,
        };
    }
    plain
}

/// Rows that PNG's predictors have changed, as they were.
pub(super) fn unpredict(data: &[u8], n_row: usize, n_pixel: usize) -> Vec<u8> {
    let mut plain: Vec<u8> = Vec::with_capacity(data.len());
    let n_kept = n_row.min(data.len());
    let mut above = vec![0_u8; n_kept];
    for row in data.chunks(n_row + 1) {
        let (&kind, row) = row.split_first().expect("chunks are not empty");
        let mut own = vec![0_u8; n_kept];
        for (at, &byte) in row.iter().enumerate() {
            let left = at.checked_sub(n_pixel).map_or(0, |at| own[at]);
            let corner = at.checked_sub(n_pixel).map_or(0, |at| above[at]);
            let predicted = match kind {
                1 => left,
                2 => above[at],
                3 => ((u16::from(left) + u16::from(above[at])) / 2) as u8,
                4 => {
                    let [a, b, c] = [left, above[at], corner].map(i16::from);
                    let near = a + b - c;
                    let [da, db, dc] = [a, b, c].map(|value| (near - value).abs());
                    if da <= db && da <= dc {
                        left
                    } else if db <= dc {
                        above[at]
                    } else {
                        corner
                    }
                }
                _ => 0,
            };
            own[at] = byte.wrapping_add(predicted);
        }
        plain.extend(&own[..row.len()]);
        above = own;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_give_the_text() {
        assert_eq!(hexadecimal(b"48 656C6c6F>x"), b"Hello");
        assert_eq!(ascii85(b"87cUR\nD]j7BEbo80~>", 100), b"Hello world!");
        assert_eq!(ascii85(b"z87c~>", 100), b"\0\0\0\0He");
        assert_eq!(run_length(&[2, b'a', b'b', b'c', 254, b'x', 128, 1], 100), b"abcxxx");
        // The example of the standard.
        assert_eq!(lzw(&[0x80, 0x0b, 0x60, 0x50, 0x22, 0x0c, 0x0c, 0x85, 0x01], 100), b"-----A---B");
        assert_eq!(unpredict(&[2, 1, 2, 2, 1, 1, 1, 5, 1], 2, 1), [1, 2, 2, 3, 5, 6]);
    }

    #[test]
    fn any_data_ends_within_the_limit() {
        let data: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(lzw(&data, 1 << 20).len() <= (1 << 20) + 4096);
        assert!(run_length(&[129; 100_000], 1 << 20).len() <= (1 << 20) + 128);
        assert!(ascii85(&data, 1 << 20).len() <= data.len());
        assert!(ascii85(&[b'z'; 100_000], 1000).len() <= 1004);
        // A row that is longer than any data: none of its length is allocated.
        assert_eq!(unpredict(&[1, 5, 6], usize::MAX >> 1, 1), [5, 11]);
    }

    #[test]
    fn data_of_no_byte_counts() {
        let budget = Budget::new(100);
        for name in [b"ASCIIHexDecode".as_slice(), b"ASCII85Decode", b"RunLengthDecode", b"LZWDecode"] {
            let left = budget.left();
            assert!(unfilter(name, &[b' '; 20], &budget, 0).is_ok());
            assert!(budget.left() <= left - 20, "{name:?}");
        }
        assert!(matches!(unfilter(b"AHx", &[b' '; 80], &budget, 0), Err(SkipReason::Limit { .. })));
    }
}
