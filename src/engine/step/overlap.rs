//! A step of a streamed model as its disk sees it: what is read while the step drafts.

use crate::stream::Flow;

/// What had flowed when a step began to draft, when it had its draft, and when its batch was through. Nothing flows where the model
/// is not streamed.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepFlows {
    pub(super) began: Flow,
    pub(super) drafted: Flow,
    pub(super) ended: Flow,
}

impl StepFlows {
    /// Time of reads beside drafting, in µs: without drafting the batch would have waited for them.
    pub(super) fn read_us(&self) -> f64 {
        self.drafted.since(&self.began).read_us
    }

    /// Time of drafting that would not have delayed the step, in µs: as long as the batch would have waited otherwise, and as the
    /// ring's buffers take to fill.
    pub(super) fn hidden_us(&self, ring_bytes: u64) -> f64 {
        let bandwidth = self.ended.bandwidth();
        if bandwidth <= 0.0 {
            return 0.0;
        }
        let waits_us = self.read_us() + self.ended.since(&self.drafted).stall_us;
        waits_us.min(ring_bytes as f64 / bandwidth * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 MB/ms all the time; (µs of reads, µs of stalls) before drafting, behind it, and behind the batch.
    fn flows(times: [(f64, f64); 3]) -> StepFlows {
        let [began, drafted, ended] = times.map(|(read_us, stall_us)| Flow {
            read_bytes: (read_us * 1e3) as u64,
            dropped_bytes: 0,
            read_us,
            stall_us,
        });
        StepFlows { began, drafted, ended }
    }

    #[test]
    fn drafting_is_hidden_as_long_as_the_batch_would_wait_and_the_ring_has_room() {
        let ring_bytes = 30_000_000; // 30 ms
        // 5 ms of drafting beside 5 ms of reads, and the batch has still waited for 12 ms.
        let waits = flows([(1e6, 3e5), (1.005e6, 3e5), (1.1e6, 3.12e5)]);
        assert_eq!((waits.read_us(), waits.hidden_us(ring_bytes)), (5e3, 17e3));
        // The same without drafting.
        let plain = flows([(1e6, 3e5), (1e6, 3e5), (1.1e6, 3.17e5)]);
        assert_eq!((plain.read_us(), plain.hidden_us(ring_bytes)), (0.0, 17e3));
        // A disk so slow that the ring is full before.
        let slow = flows([(1e6, 3e5), (1.03e6, 3e5), (2e6, 1.2e6)]);
        assert_eq!((slow.read_us(), slow.hidden_us(ring_bytes)), (3e4, 3e4));
        // The ring was full, and the batch has waited for nothing.
        let computes = flows([(1e6, 3e5), (1e6, 3e5), (1.1e6, 3e5)]);
        assert_eq!((computes.read_us(), computes.hidden_us(ring_bytes)), (0.0, 0.0));
    }

    #[test]
    fn nothing_is_hidden_where_nothing_flows() {
        let none = flows([(0.0, 0.0); 3]);
        assert_eq!((none.read_us(), none.hidden_us(0), none.hidden_us(1 << 30)), (0.0, 0.0, 0.0));
    }
}
