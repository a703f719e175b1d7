//! Drafting strategies and their sources.

use std::fmt;
use std::str::FromStr;

use refrain::drafting::VERIFY_ROWS_MAX;
use refrain::internals::error::SessionProblem;
use refrain::{Drafting, Engine, Session, SessionError, SessionOptions};
use thiserror::Error;

use crate::rules::{Baseline, LogitRule, ModelRule, Oracle, Recorded};

/// A drafting strategy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Strategy {
    /// Refrain's own tree builder over all its sources.
    #[default]
    Refrain,
    /// As `Refrain`, with a price of leaves beside that of rows (Lever, eq. 4), in replays with costs.
    Lever,
    /// No drafts: plain decoding.
    Plain,
    /// As `Refrain`, without the draft model.
    Retrieval,
    /// As `Refrain`, with rejected rows and the rows of earlier requests (echo), in replays of traces.
    Echo,
    /// As `Refrain`, with a recorded draft head as one more source, in replays of rows with [accepted
    /// lengths](crate::rows::Accepted).
    Eagle,
    /// As `Refrain`, with as many rows as a [PID controller](crate::rules::PidConfig) says at any cost, in replays without a model.
    Pid,
    /// As `Refrain`, with the draft model alone.
    DraftModel,
    /// A published rule.
    Baseline(Baseline),
    /// A published rule that drafts with the draft model.
    ModelRule(ModelRule),
    /// A published rule that drafts from the target's logits, in replays of traces.
    LogitRule(LogitRule),
    /// Control: drafts the response as far as the sources could, in replays without a model.
    Oracle(Oracle),
    /// Control: a recorded drafter, in replays of rows with [accepted lengths](crate::rows::Accepted).
    Recorded(Recorded),
    /// Control: drafts the recorded response. No drafter can be better.
    AlwaysRight,
    /// Control: drafts full batches without a right token. Measures the cost of drafting without gain.
    AlwaysWrong,
}

impl Strategy {
    /// All strategies without a draft model, in the order of reports.
    pub fn all() -> Vec<Strategy> {
        let baselines = Baseline::ALL.into_iter().map(Strategy::Baseline);
        let first = [Strategy::Refrain, Strategy::Plain].into_iter();
        first.chain(baselines).chain([Strategy::AlwaysRight, Strategy::AlwaysWrong]).collect()
    }

    /// All strategies for replays of traces, in the order of reports: `Refrain` drafts from the target's rows too,
    /// `Retrieval` does not.
    pub fn traced() -> Vec<Strategy> {
        let mut all = Strategy::all();
        let controls = all.split_off(all.len() - 2);
        all.splice(1..1, [Strategy::Echo, Strategy::Retrieval]);
        all.extend(LogitRule::ALL.into_iter().map(Strategy::LogitRule));
        all.extend(controls);
        all
    }

    /// Refrain with and without its parts, and all rules that draft with a model, in the order of reports.
    pub fn with_draft_model() -> Vec<Strategy> {
        let rules = ModelRule::ALL.into_iter().map(Strategy::ModelRule);
        let first = [Strategy::Refrain, Strategy::Plain, Strategy::Retrieval, Strategy::DraftModel];
        first.into_iter().chain(rules).collect()
    }

    /// Refrain, its two halves, and the rules for comparison with a target on flash, in the order of reports.
    pub fn streamed() -> Vec<Strategy> {
        let rules = [ModelRule::Chain(8), ModelRule::EdgeLlm, ModelRule::BestFirst].map(Strategy::ModelRule);
        [Strategy::Refrain, Strategy::Retrieval, Strategy::DraftModel].into_iter().chain(rules).collect()
    }

    /// Whether the strategy is a competitor of Refrain in reports.
    pub fn is_rival(self) -> bool {
        matches!(self, Strategy::Baseline(_) | Strategy::ModelRule(_) | Strategy::LogitRule(_))
    }

    /// Whether the strategy is a bound, not a drafter.
    pub fn is_control(self) -> bool {
        matches!(
            self,
            Strategy::AlwaysRight | Strategy::AlwaysWrong | Strategy::Oracle(_) | Strategy::Recorded(_)
        )
    }

    /// Whether the strategy requires a trace.
    pub fn needs_trace(self) -> bool {
        matches!(self, Strategy::LogitRule(_) | Strategy::Echo)
    }

    /// Whether the strategy requires rows with [accepted lengths](crate::rows::Accepted).
    pub fn needs_accepted(self) -> bool {
        matches!(self, Strategy::Eagle | Strategy::Recorded(_))
    }

    /// Whether the strategy has replays without a model only.
    pub fn is_replayed(self) -> bool {
        self.needs_trace() || self.needs_accepted() || matches!(self, Strategy::Oracle(_) | Strategy::Pid)
    }

    /// Whether Refrain's own tree builder drafts from texts.
    pub fn retrieves(self) -> bool {
        self.drafting() == Drafting::Auto
    }

    /// The built-in sources of this strategy's session. [`add_rule`](Self::add_rule) adds those of a rule.
    pub fn drafting(self) -> Drafting {
        match self {
            Strategy::Refrain
            | Strategy::Lever
            | Strategy::Echo
            | Strategy::Eagle
            | Strategy::Pid
            | Strategy::Retrieval => Drafting::Auto,
            Strategy::DraftModel => Drafting::DraftModel,
            Strategy::Plain => Drafting::Off,
            Strategy::Baseline(_)
            | Strategy::ModelRule(_)
            | Strategy::LogitRule(_)
            | Strategy::Oracle(_)
            | Strategy::Recorded(_)
            | Strategy::AlwaysRight
            | Strategy::AlwaysWrong => Drafting::AsClaimed,
        }
    }

    /// Adds a rule's source to a session that was started with `options` and [`drafting`](Self::drafting). Has no
    /// effect if the strategy is not a rule.
    ///
    /// # Errors
    /// The rule drafts with a model and the engine has none, or the memory for its keys and values could not be
    /// allocated.
    pub fn add_rule(
        self,
        engine: &Engine,
        session: &mut Session,
        options: &SessionOptions,
    ) -> Result<(), SessionError> {
        let max_rows = options.verify_rows_max;
        session.add_source(match self {
            Strategy::Baseline(baseline) => baseline.source(max_rows, &[]),
            Strategy::ModelRule(rule) => {
                let model = engine.draft_model().ok_or(SessionProblem::NoDraftModel)?;
                rule.source(&model, session.context_len(), max_rows)?
            }
            _ => return Ok(()),
        })
    }

    /// Maximum rows of its batches where others have `max_rows`: the published EdgeLLM has no limit of its own.
    pub fn rows_max(self, max_rows: usize) -> usize {
        match self {
            Strategy::ModelRule(ModelRule::EdgeLlm) => VERIFY_ROWS_MAX,
            _ => max_rows,
        }
    }

    /// Whether the strategy requires a draft model.
    pub fn needs_draft_model(self) -> bool {
        matches!(self, Strategy::DraftModel | Strategy::ModelRule(_))
    }
}

/// The strategy's name in options and reports.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Refrain => "refrain",
            Strategy::Lever => "lever",
            Strategy::Plain => "plain",
            Strategy::Echo => "refrain-echo",
            Strategy::Eagle => "refrain-eagle",
            Strategy::Pid => "refrain-pid",
            Strategy::Retrieval => "retrieval",
            Strategy::DraftModel => "draft-model",
            Strategy::Baseline(baseline) => baseline.name(),
            Strategy::ModelRule(rule) => return rule.fmt(f),
            Strategy::LogitRule(rule) => return rule.fmt(f),
            Strategy::Oracle(oracle) => return oracle.fmt(f),
            Strategy::Recorded(drafter) => return drafter.fmt(f),
            Strategy::AlwaysRight => "always-right",
            Strategy::AlwaysWrong => "always-wrong",
        })
    }
}

/// Additional texts for drafting, besides prompt and output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Sources {
    /// None.
    Prompt,
    /// Earlier responses of the row's session.
    History,
    /// Earlier responses, and the passages as a separate source (for Refrain; for the rules, passages are part of the
    /// prompt).
    Passages,
}

impl Sources {
    /// All variants; each includes the previous one.
    pub const ALL: [Sources; 3] = [Sources::Prompt, Sources::History, Sources::Passages];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Sources::Prompt => "prompt",
            Sources::History => "history",
            Sources::Passages => "passages",
        }
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is unknown.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{given}` is not one of {known}")]
pub struct UnknownName {
    /// The given name.
    pub given: String,
    /// The known names.
    pub known: String,
}

fn find<T: Copy + fmt::Display>(all: &[T], given: &str) -> Result<T, UnknownName> {
    let names: Vec<String> = all.iter().map(T::to_string).collect();
    let found = names.iter().position(|name| name == given);
    found.map(|i| all[i]).ok_or_else(|| UnknownName { given: given.to_owned(), known: names.join(", ") })
}

impl FromStr for Strategy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        // A chain may have any length; the list contains one.
        if let Some(chain) = ModelRule::chain(name) {
            return Ok(Strategy::ModelRule(chain));
        }
        let mut all = Strategy::traced();
        all.extend(Strategy::with_draft_model().into_iter().skip(3));
        all.extend([Strategy::Lever, Strategy::Pid, Strategy::Eagle]);
        all.extend(Oracle::ALL.map(Strategy::Oracle));
        all.extend(Recorded::ALL.map(Strategy::Recorded));
        find(&all, name)
    }
}

impl FromStr for Sources {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        find(&Sources::ALL, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let all = Strategy::traced().into_iter().chain(Strategy::with_draft_model());
        let all = all.chain(Oracle::ALL.map(Strategy::Oracle)).chain(Recorded::ALL.map(Strategy::Recorded));
        let all = all.chain([Strategy::Lever, Strategy::Pid, Strategy::Eagle]);
        for strategy in all.chain([1, 3, 63].map(|len| Strategy::ModelRule(ModelRule::Chain(len)))) {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        for name in ["chain", "chain:", "chain:0", "chain:64", "chain:8x", "spec-infer"] {
            assert!(name.parse::<Strategy>().is_err(), "{name}");
        }
        for sources in Sources::ALL {
            assert_eq!(sources.name().parse(), Ok(sources));
        }
        assert!("best".parse::<Strategy>().unwrap_err().to_string().contains("sam-only"));
    }
}
