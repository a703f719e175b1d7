//! What a session does when others need memory: it gives back what can be made again, and keeps its KV cache.

use crate::draft::EvidenceClass;
use crate::engine::policy::MemoryPressure;
use crate::engine::reader::Reader;
use crate::engine::session::Session;
use crate::model::Workspace;

impl Session {
    /// Answers the newest report of memory pressure now, rather than with the next step; see
    /// [`Engine::set_memory_pressure`](crate::engine::Engine::set_memory_pressure). For a session that is idle.
    pub fn release_memory(&mut self) {
        self.answer_pressure();
    }

    /// Whether the sources have been emptied and are not to be asked: memory pressure is critical.
    pub(super) fn is_dormant(&self) -> bool {
        self.pressure.level == MemoryPressure::Critical
    }

    /// Releases or restores what the newest report asks for; `false` where that was done already, or there is nothing to do.
    ///
    /// Between passes only: hidden states are lost.
    pub(super) fn answer_pressure(&mut self) -> bool {
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
                self.primed = 0;
            }
        }
        if before == MemoryPressure::Critical {
            self.prime();
        }
        true
    }

    /// Gives back the scratch memory, what calibration and reuse project with, and the sources of some classes.
    fn release(&mut self, is_released: impl Fn(EvidenceClass) -> bool) {
        self.workspace = Workspace::new(self.shared.model.config());
        self.reader = None;
        self.calibrated = 0;
        let released = self.sources.iter_mut().filter(|source| is_released(source.evidence()));
        released.for_each(|source| source.release());
    }

    /// Calibration goes on from here; what it knew of the text before is not computed again. Where there is no memory for it, it stays
    /// off.
    fn restore_reader(&mut self) {
        let (options, model) = (&self.options, &self.shared.model);
        self.reader = Reader::new(options.calibration, options.reuse.is_some(), model).ok().flatten();
        if let Some(reader) = &mut self.reader {
            reader.extend(model, &self.tokens);
            reader.extend_frequent(model, &mut self.sources);
        }
    }
}
