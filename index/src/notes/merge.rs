//! Merges of small segments, so that their number has a bound.
//!
//! A commit writes a segment. Segments of about the same length are merged eight at a time, so each passage is written
//! again once per power of eight, up to [`PASSAGES_PER_COMMIT`] passages. Larger segments stay as they are: a deletion
//! writes again the segments that it touches, and takes less time for several smaller ones.

use tantivy::index::SegmentId;

use super::error::NotesError;
use super::update::PASSAGES_PER_COMMIT;
use super::writer::NotesWriter;

/// Segments that are merged at a time.
const MERGED: usize = 8;

impl NotesWriter {
    /// Merges segments while there are eight of about the same length.
    pub(super) fn merge_small(&mut self) -> Result<(), NotesError> {
        self.check_running()?;
        let mut has_merged = false;
        loop {
            let segments = self.store.segments()?;
            let lengths: Vec<(SegmentId, u32)> =
                segments.iter().map(|segment| (segment.id(), segment.num_docs())).collect();
            let Some(chosen) = choose(&lengths) else { break };
            self.merge(&chosen)?;
            has_merged = true;
        }
        if has_merged { self.collect_garbage() } else { Ok(()) }
    }
}

/// The segments to be merged next, of the smallest level that has enough; `None` if there is none.
fn choose<Id: Copy>(segments: &[(Id, u32)]) -> Option<Vec<Id>> {
    let mut small: Vec<(Id, u32)> =
        segments.iter().copied().filter(|&(_, n)| (n as usize) < PASSAGES_PER_COMMIT / 2).collect();
    small.sort_by_key(|&(_, n)| n);
    let level = |n: u32| n.max(1).ilog(MERGED as u32);
    let same_level = small.chunk_by(|a, b| level(a.1) == level(b.1)).find(|chunk| chunk.len() >= MERGED)?;
    Some(same_level[..MERGED].iter().map(|&(id, _)| id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_segments_has_a_bound() {
        let mut segments: Vec<(u32, u32)> = Vec::new();
        let (mut n_written, mut n_most) = (0, 0);
        for id in 0..20_000 {
            segments.push((id, 1));
            while let Some(chosen) = choose(&segments) {
                let merged: u32 = segments.iter().filter(|(id, _)| chosen.contains(id)).map(|(_, n)| n).sum();
                n_written += merged;
                segments.retain(|(id, _)| !chosen.contains(id));
                segments.push((chosen[0], merged));
            }
            n_most = n_most.max(segments.len());
        }
        assert_eq!(segments.iter().map(|(_, n)| n).sum::<u32>(), 20_000);
        assert!(n_most <= 7 * 4 + 20_000 / 2048 + 1, "{n_most} segments");
        assert!(n_written <= 20_000 * 4, "{n_written} passages written again");
    }
}
