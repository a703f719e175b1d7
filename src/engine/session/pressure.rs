//! Memory pressure: a session releases buffers that can be rebuilt, and if it waits, its KV cache.
//!
//! A KV cache is dropped, and the tokens are prefilled again when the session goes on. The library has no place on disk to which it
//! could be moved; an app that has one writes it there before ([`SessionState::write`](crate::state::SessionState::write)), and then restores it instead.

use super::Session;
use crate::cancel::CancelToken;
use crate::draft::EvidenceClass;
use crate::engine::options::Drafting;
use crate::engine::policy::MemoryPressure;
use crate::engine::reader::Reader;
use crate::model::Workspace;

impl Session {
    /// Handles the newest memory pressure report now instead of at the next step; see
    /// [`Device::set_memory_pressure`](crate::device::Device::set_memory_pressure). For sessions that wait.
    ///
    /// If the pressure is critical, it also gives up the KV cache. The tokens stay: the next prefill or generation computes them again, with
    /// the same bits, so a session that will go on at once is better left alone.
    pub fn release_memory(&mut self) {
        self.answer_pressure(&CancelToken::new());
        if self.is_dormant() {
            let config = self.shared.model.config();
            self.target.kv.release(config, self.options.cache_size(config));
        }
    }

    /// Whether the sources are empty and must not be called: memory pressure is critical.
    pub(in crate::engine) fn is_dormant(&self) -> bool {
        self.pressure.level == MemoryPressure::Critical
    }

    /// Releases or restores buffers as the newest report demands. Returns `false` if the report was handled
    /// before or nothing changes.
    ///
    /// Valid only between passes, because hidden states are lost.
    pub(in crate::engine) fn answer_pressure(&mut self, cancel: &CancelToken) -> bool {
        let report = self.shared.device.pressure();
        if report == self.pressure {
            return false;
        }
        let before = std::mem::replace(&mut self.pressure, report).level;
        match report.level {
            MemoryPressure::Normal if before == MemoryPressure::Normal => return false,
            MemoryPressure::Normal => self.restore_reader(),
            MemoryPressure::Warning => self.release(EvidenceClass::is_of_target),
            MemoryPressure::Critical => {
                self.release(|_| true);
                self.drafting.sources.forget_observed();
            }
        }
        if before == MemoryPressure::Critical {
            self.prime(cancel);
        }
        true
    }

    /// Releases scratch memory, the projection matrix of calibration and echo, and the sources of the
    /// classes selected by `is_released`.
    fn release(&mut self, is_released: impl Fn(EvidenceClass) -> bool) {
        self.target.workspace = Workspace::new(self.shared.model.config());
        self.target.reader = None;
        self.drafting.sources.release(is_released);
    }

    /// Resumes calibration and echo with the next rows; earlier positions are not recomputed. If memory is
    /// insufficient, all stay off.
    fn restore_reader(&mut self) {
        let Self { shared, options, conversation, target, drafting, .. } = self;
        if options.drafting != Drafting::Auto {
            return; // The session never had a reader.
        }
        target.reader = Reader::new(options, &shared.model).ok().flatten();
        if let Some(reader) = &mut target.reader {
            reader.extend(&shared.model, &conversation.tokens);
            drafting.sources.guarded(|sources| reader.extend_frequent(&shared.model, sources));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::handle::Engine;
    use crate::engine::options::{Calibration, Drafting, EngineOptions, SessionOptions};
    use crate::engine::policy::MemoryPressure;

    #[test]
    fn a_session_that_does_not_draft_gets_no_reader_after_memory_pressure() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let engine =
            Engine::open(path, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        for (drafting, reads) in
            [(Drafting::Off, false), (Drafting::OwnSources, false), (Drafting::Auto, true)]
        {
            let options =
                SessionOptions { drafting, calibration: Calibration::InContext, ..SessionOptions::default() };
            let mut session = engine.session(options).unwrap();
            assert_eq!(session.target.reader.is_some(), reads, "{drafting:?}");
            for level in [MemoryPressure::Warning, MemoryPressure::Normal] {
                engine.device().set_memory_pressure(level);
                session.release_memory();
            }
            assert_eq!(session.target.reader.is_some(), reads, "{drafting:?}, after memory pressure");
        }
    }
}
