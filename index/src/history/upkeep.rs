//! Background work on a namespace: drops old responses and merges small segments.

use std::ops::Range;

use super::HistoryError;
use super::context::{Context, read, write};
use super::files::sort;
use super::namespace::{Namespace, SharedNamespace, put_segment};
use super::options::HistoryOptions;
use super::report::LeftOut;
use super::segment::Segment;

/// Number of adjacent segments of one size class in a merge. Each response is rewritten once per fourfold of the
/// size.
const MERGE_WIDTH: usize = 4;

/// Above this number, segments of different sizes are merged too, because a search visits every segment.
const SEGMENTS_MAX: usize = 16;

/// Runs all due work. `now` is in µs since 1970. Returns damaged segments that were set aside.
pub(super) fn maintain(
    context: &Context,
    namespace: &SharedNamespace,
    now: u64,
) -> Result<Vec<LeftOut>, HistoryError> {
    note_use(context, &read(namespace), now);
    let mut renewed = renew(context, namespace)?;
    expire(context, namespace, now)?;
    write(namespace).shrink(context)?;
    loop {
        match merge(context, namespace) {
            Ok(true) => {}
            Ok(false) => return Ok(renewed),
            // The merge has found damage in a segment. It is rewritten now and merged in the next round.
            Err(error) => match renew(context, namespace)? {
                more if more.is_empty() => return Err(error),
                more => renewed.extend(more),
            },
        }
    }
}

/// Stores the times of the last drafts in the files.
pub(super) fn note_use(context: &Context, namespace: &Namespace, now: u64) {
    namespace.segments().iter().for_each(|segment| segment.note_use(context.disk(), now / 1_000_000));
}

/// Drops responses above the maximum age.
fn expire(context: &Context, namespace: &SharedNamespace, now: u64) -> Result<(), HistoryError> {
    let Some(age_max) = context.options.age_max else { return Ok(()) };
    let oldest = now.saturating_sub(u64::try_from(age_max.as_micros()).unwrap_or(u64::MAX));
    let mut namespace = write(namespace);
    namespace.filter_log(context, |record| record.id.0 >= oldest)?;
    let is_old = |segment: &&Segment| segment.records().last().is_none_or(|newest| newest.id.0 < oldest);
    let old: Vec<u64> = namespace.segments().iter().filter(is_old).map(Segment::number).collect();
    if old.is_empty() { Ok(()) } else { namespace.replace_segments(context, &old, None) }
}

/// Merges once, if a merge is due. Only the reading and the exchange hold the lock; the sorting runs without it.
fn merge(context: &Context, namespace: &SharedNamespace) -> Result<bool, HistoryError> {
    let here = read(namespace);
    let Some(range) = choose_merge(here.segments(), &context.options) else { return Ok(false) };
    let parts = &here.segments()[range];
    let numbers: Vec<u64> = parts.iter().map(Segment::number).collect();
    let used_at = parts.iter().map(Segment::used_at).max().unwrap_or(0);
    let mut records = Vec::new();
    for part in parts {
        records.extend(part.read_records(|_| true)?);
    }
    // Handed-in responses may be older than those frozen before them.
    sort(&mut records);
    let (folder, place) = (here.folder().to_owned(), here.next_place());
    drop(here);
    let merged = put_segment(context, &folder, place, &numbers, &records)?;
    merged.set_used_at(context.disk(), used_at);
    write(namespace).replace_segments(context, &numbers, Some(merged))?;
    Ok(true)
}

/// Rewrites damaged segments without their damaged parts, and sets their files aside.
pub(super) fn renew(context: &Context, namespace: &SharedNamespace) -> Result<Vec<LeftOut>, HistoryError> {
    let mut namespace = write(namespace);
    let faulty = namespace.segments().iter().filter(|segment| segment.is_faulty());
    let numbers: Vec<u64> = faulty.map(Segment::number).collect();
    let renewed = numbers.into_iter().map(|number| namespace.renew(context, number));
    renewed.filter_map(Result::transpose).collect()
}

/// The adjacent segments to merge: of one size class, or the smallest if there are too many segments.
fn choose_merge(segments: &[Segment], options: &HistoryOptions) -> Option<Range<usize>> {
    let windows = segments.windows(MERGE_WIDTH).enumerate();
    let fitting = windows.filter_map(|(start, window)| {
        let n_tokens: u64 = window.iter().map(|segment| u64::from(segment.n_tokens())).sum();
        let fits = n_tokens <= u64::from(options.segment_tokens_max);
        let is_sound = window.iter().all(|segment| !segment.is_faulty());
        (fits && is_sound).then_some((n_tokens, start, window))
    });
    let class = |segment: &Segment| size_class(segment.n_tokens(), options.live_tokens_max);
    let is_due = |window: &[Segment]| window.iter().all(|segment| class(segment) == class(&window[0]));
    let due = fitting.filter(|(_, _, window)| segments.len() > SEGMENTS_MAX || is_due(window));
    let (_, start, _) = due.min_by_key(|&(n_tokens, start, _)| (n_tokens, start))?;
    Some(start..start + MERGE_WIDTH)
}

/// The size in fourfolds of a log. A log is frozen between half of its limit and the whole.
fn size_class(n_tokens: u32, live_tokens_max: u32) -> u32 {
    (n_tokens / (live_tokens_max / 2)).max(1).ilog2() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_a_class_make_one_of_the_next() {
        let live = 1 << 16;
        for n_logs in [1, 4, 16, 64] {
            for filled in [live / 2, live - 1, live] {
                let n_tokens: u32 = n_logs * filled;
                assert_eq!(size_class(n_tokens, live), n_logs.ilog2() / 2, "{n_tokens}");
            }
        }
        assert_eq!(size_class(3, live), 0);
    }
}
