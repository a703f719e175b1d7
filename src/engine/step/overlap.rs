//! Overlap of drafting and flash reads in one step of a streamed model.

use refrain_stream::Flow;

/// Flash traffic at the start of drafting, at the end of drafting, and at the end of the batch. Zero if the
/// model is not streamed.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepFlows {
    pub(super) began: Flow,
    pub(super) drafted: Flow,
    pub(super) ended: Flow,
}

impl StepFlows {
    /// Read time during drafting, in µs. Without drafting, the batch would have waited for these reads.
    pub(super) fn read_us(&self) -> f64 {
        self.drafted.since(&self.began).read_us
    }

    /// Drafting time that does not delay the step, in µs. It is bounded by the wait of the batch without
    /// drafting and by the time to read the `ring_room` bytes that fill the ring.
    pub(super) fn hidden_us(&self, ring_room: u64) -> f64 {
        let bandwidth = self.ended.bandwidth();
        if bandwidth <= 0.0 {
            return 0.0;
        }
        let waits_us = self.read_us() + self.ended.since(&self.drafted).stall_us;
        waits_us.min(ring_room as f64 / bandwidth * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three flows at 1 MB/ms: (µs of reads, µs of stalls) before drafting, after drafting and after the
    /// batch.
    fn flows(times: [(f64, f64); 3]) -> StepFlows {
        let [began, drafted, ended] = times.map(|(read_us, stall_us)| {
            let mut flow = Flow::default();
            (flow.read_bytes, flow.read_us, flow.stall_us) = ((read_us * 1e3) as u64, read_us, stall_us);
            flow
        });
        StepFlows { began, drafted, ended }
    }

    #[test]
    fn drafting_is_hidden_as_long_as_the_batch_would_wait_and_the_ring_has_room() {
        let ring_room = 30_000_000; // 30 ms
        // 5 ms of drafting during 5 ms of reads, and the batch still waited 12 ms.
        let waits = flows([(1e6, 3e5), (1.005e6, 3e5), (1.1e6, 3.12e5)]);
        assert_eq!((waits.read_us(), waits.hidden_us(ring_room)), (5e3, 17e3));
        // The same without drafting.
        let plain = flows([(1e6, 3e5), (1e6, 3e5), (1.1e6, 3.17e5)]);
        assert_eq!((plain.read_us(), plain.hidden_us(ring_room)), (0.0, 17e3));
        // Drafting lasts until the ring is full.
        let slow = flows([(1e6, 3e5), (1.03e6, 3e5), (2e6, 1.2e6)]);
        assert_eq!((slow.read_us(), slow.hidden_us(ring_room)), (3e4, 3e4));
        // The ring was full, and the batch did not wait.
        let computes = flows([(1e6, 3e5), (1e6, 3e5), (1.1e6, 3e5)]);
        assert_eq!((computes.read_us(), computes.hidden_us(ring_room)), (0.0, 0.0));
    }

    #[test]
    fn nothing_is_hidden_where_nothing_flows() {
        let none = flows([(0.0, 0.0); 3]);
        assert_eq!((none.read_us(), none.hidden_us(0), none.hidden_us(1 << 30)), (0.0, 0.0, 0.0));
    }
}
