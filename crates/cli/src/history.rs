//! The history on disk: written by `run` and `chat`, shown and deleted by `refrain history`.

use std::cell::RefCell;
use std::path::Path;

use refrain::{Drafting, Engine, Session, SessionOptions, TokenId};
use refrain_index::history::{
    Access, HistoryError, HistoryKey, HistoryLog, HistoryOptions, LeftOut, LeftOutReason, RecordId,
};

use refrain_program::history::{self, default_folder, short};

use crate::args::{FolderArgs, ForgetArgs, HistoryArgs, HistoryCommand, HistoryCommandArgs};
use crate::failure::{Exit, Failure};
use crate::key::key;
use crate::prefixes;
use crate::terminal::{AnswerStream, note, note_once, visible};

/// The answers of a namespace: a draft source, and the place for new answers. Without a folder, sessions keep their
/// own history in memory.
pub(crate) struct History {
    log: Option<HistoryLog>,
    namespace: &'static str,
    /// Left-out parts that the program has already noted.
    noted: RefCell<Vec<LeftOut>>,
}

impl History {
    /// Opens the history of the engine's model. If the folder was named by the user, a failure is an error. If it is
    /// the default folder, a failure is a note, because answers do not need it. Damage and a second process that
    /// writes are notes too.
    pub(crate) fn open(
        args: &HistoryArgs,
        engine: &Engine,
        namespace: &'static str,
    ) -> Result<Self, Failure> {
        let options = HistoryOptions { key: key()?, ..HistoryOptions::default() };
        let open = |folder: &Path| HistoryLog::open(folder, HistoryKey::of(engine), options.clone());
        let log = match (&args.history, default_folder()) {
            _ if args.no_history => None,
            (Some(folder), _) => Some(open(folder)?),
            (None, Some(folder)) => {
                let is_new = !folder.exists();
                let opened = open(&folder).map_err(Failure::from);
                if let Err(failure) = &opened {
                    note(&visible(&format!("answers are not kept: {}", failure.line())));
                } else if is_new {
                    let place = folder.display();
                    note(&visible(&format!(
                        "answers are kept in {place} to draft later ones; --no-history keeps none"
                    )));
                }
                opened.ok()
            }
            (None, None) => None,
        };
        match log.as_ref().map(HistoryLog::access) {
            Some(Access::HandIn) => note("another process writes the history: answers are handed in to it"),
            Some(Access::Read { reason }) => note(&visible(&format!("answers are not kept: {reason}"))),
            _ => {}
        }
        let history = Self { log, namespace, noted: RefCell::default() };
        history.note_left_out();
        Ok(history)
    }

    /// Notes left-out parts that are new.
    fn note_left_out(&self) {
        let Some(log) = &self.log else { return };
        let mut noted = self.noted.borrow_mut();
        let is_noted =
            |of: &LeftOut| noted.iter().any(|noted| (&noted.path, noted.offset) == (&of.path, of.offset));
        let new: Vec<LeftOut> = log.left_out().into_iter().filter(|left_out| !is_noted(left_out)).collect();
        note_all(&new);
        noted.extend(new);
    }

    /// Starts a session with the history as a draft source.
    pub(crate) fn session(&self, engine: &Engine, options: SessionOptions) -> Result<Session, Failure> {
        let Some(log) = &self.log else { return Ok(engine.session(options)?) };
        let drafts = options.drafting == Drafting::Auto;
        let echo = options.echo.filter(|_| drafts);
        // The log contains all answers that a history in memory would contain.
        let mut session = engine.session(SessionOptions { history: false, ..options })?;
        if drafts {
            session.add_source(Box::new(log.source(self.namespace)))?;
        }
        if let Some(config) = echo {
            log.share_echo(&mut session, self.namespace, config.lists_max)?;
            self.note_left_out();
        }
        Ok(session)
    }

    /// Appends an answer. A failure is a note, because the answer is already printed.
    pub(crate) fn keep(&self, answer: &[TokenId]) {
        let Some(log) = self.log.as_ref().filter(|_| !answer.is_empty()) else { return };
        // `open` has noted a read-only folder. It may be writable again.
        let kept = match log.append(self.namespace, answer) {
            Err(HistoryError::ReadOnly { .. }) => Ok(()),
            kept => kept.map(drop),
        };
        if let Err(error) = kept.and_then(|()| log.maintain()) {
            note_once(&visible(&format!("the answer may not be kept: {error}")));
        }
        self.note_left_out();
    }
}

/// Notes the parts that are left out of the history.
fn note_all(left_out: &[LeftOut]) {
    for left_out in left_out {
        note_once(&visible(&format!("left out of the history: {left_out}")));
    }
    if left_out.iter().any(|left_out| matches!(left_out.reason, LeftOutReason::Damaged(_))) {
        note_once("everything else is used; `refrain history repair` removes what is damaged");
    }
}

pub(crate) fn history(args: &HistoryCommandArgs) -> Result<Exit, Failure> {
    match &args.command {
        HistoryCommand::List(folder) => list(folder),
        HistoryCommand::Stats(folder) => stats(folder),
        HistoryCommand::Forget(args) => forget(args),
        HistoryCommand::Repair(folder) => repair(folder),
        HistoryCommand::Prefixes(args) => prefixes::prefixes(args),
    }
}

fn open_all(folder: &FolderArgs) -> Result<Vec<HistoryLog>, Failure> {
    Ok(history::open_all(&history::folder(folder.history.as_deref())?, key()?)?)
}

fn list(folder: &FolderArgs) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    for log in open_all(folder)? {
        note_all(&log.left_out());
        for info in log.list() {
            let time = utc(info.record.0 / 1_000_000);
            let (record, n_tokens, model) = (info.record, info.n_tokens, short(&log));
            let namespace = visible(&info.namespace);
            out.line(&format!("{record:>16}  {time}  {n_tokens:>5} tokens  {namespace:<10}  {model}"))?;
        }
    }
    Ok(Exit::Done)
}

fn stats(folder: &FolderArgs) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    for log in open_all(folder)? {
        for namespace in log.stats().namespaces {
            out.line(&format!(
                "{}  {:<10}  {} answers, {} tokens, {:.1} MB in a log and {} segments{}",
                short(&log),
                visible(&namespace.namespace),
                namespace.n_records,
                namespace.n_tokens,
                namespace.bytes as f64 / 1e6,
                namespace.n_segments,
                match namespace.n_pulled {
                    0 => String::new(),
                    n => format!("; {n} of other hosts, {:.1} MB", namespace.pulled_bytes as f64 / 1e6),
                },
            ))?;
        }
        // `verify` leaves damaged parts out.
        let _ = log.verify();
        note_all(&log.left_out());
    }
    Ok(Exit::Done)
}

fn forget(args: &ForgetArgs) -> Result<Exit, Failure> {
    let logs = open_all(&args.folder)?;
    for &record in &args.records {
        let mut is_found = false;
        // Record numbers are times. Two models rarely share one; then both records are removed.
        for log in &logs {
            match log.forget(RecordId(record)) {
                Ok(()) => is_found = true,
                Err(HistoryError::NoSuchRecord { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !is_found {
            return Err(HistoryError::NoSuchRecord { record }.into());
        }
    }
    for log in &logs {
        let names = log.stats().namespaces.into_iter().map(|namespace| namespace.namespace);
        for name in names.filter(|name| args.all || args.namespace.contains(name)) {
            log.forget_namespace(&name)?;
        }
        let is_whole_file =
            |left_out: &LeftOut| left_out.aside.is_none() && left_out.reason != LeftOutReason::Torn;
        for left_out in log.left_out().into_iter().filter(is_whole_file) {
            note(&visible(&format!("not read, and may hold what is forgotten: {left_out}")));
        }
    }
    Ok(Exit::Done)
}

fn repair(folder: &FolderArgs) -> Result<Exit, Failure> {
    for log in open_all(folder)? {
        for dropped in log.repair()? {
            note(&visible(&format!("dropped {dropped}")));
        }
    }
    Ok(Exit::Done)
}

/// `2026-11-21 19:30:05`, of seconds from 1970 (Hinnant's civil calendar: years begin in March).
pub(crate) fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(utc(1_795_289_405), "2026-11-21 19:30:05");
    }
}
