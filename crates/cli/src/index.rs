//! `refrain index`: notes on disk, kept up to date and searched.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use refrain::{CancelToken, Tokenizer};
use refrain_index::notes::{
    Embedder, FailedRequest, Language, Locator, ModelEmbedder, NoteHit, NotesError, NotesIndex, NotesOptions,
    NotesStatus, NotesWriter, Request, Search, SkipReason, UpdateReport, document_id,
};
use serde_json::json;

use crate::args::{
    IndexCommand, IndexCommandArgs, IndexFolderArgs, IndexForgetArgs, IndexPathsArgs, IndexReadArgs,
    IndexSearchArgs, IndexStatusArgs,
};
use crate::failure::{Exit, Failure, print_error};
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::progress::Progress;
use crate::terminal::{AnswerStream, note, visible};
use crate::{embedder, load};
use refrain_program::place::data_folder;

/// Endings of other files that a notice names, the most frequent first.
const ENDINGS_MAX: usize = 8;

/// Skipped files that a notice names; further ones are counted.
const SKIPPED_MAX: usize = 10;

pub(crate) fn index(args: &IndexCommandArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    match &args.command {
        IndexCommand::Add(args) => add(args, interrupt),
        IndexCommand::Update(args) => {
            Changed::update(Changed::open(&args.read, args.all, &Request::Update)?, interrupt)
        }
        IndexCommand::Watch(args) => {
            let cancel = CancelToken::new();
            let _cancelling = interrupt.cancels(cancel.clone());
            let mut writer = NotesWriter::open(&folder(&args.read.folder)?, options(&args.read, args.all)?)?;
            note_repairs(&writer);
            let derivation =
                Derivation::open(&mut writer, args.read.model.as_deref(), args.read.embedder.as_deref())?;
            note("watching; Ctrl-C ends");
            writer.watch(&cancel, &mut |writer, report| {
                note_report(report);
                note_time(writer);
                derivation.store(writer, &cancel)
            })?;
            close(writer, &cancel)
        }
        IndexCommand::Search(args) => search(args),
        IndexCommand::Status(args) => status(args),
        IndexCommand::Forget(args) => forget(args, interrupt),
    }
}

/// Adds what there is. What cannot be added is reported behind it, and by the exit code.
fn add(args: &IndexPathsArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let is_there = |path: &&PathBuf| path.symlink_metadata().is_ok();
    let there: Vec<PathBuf> = args.paths.iter().filter(is_there).cloned().collect();
    // Without any, the index says what is wrong.
    let paths = if there.is_empty() { &args.paths } else { &there };
    let mut failed: Vec<Failure> = Vec::new();
    if !there.is_empty() {
        let missing = args.paths.iter().filter(|path| !is_there(path));
        failed.extend(missing.map(|path| {
            Failure::input(format!("`{}` does not exist", path.display()), "the other paths are added")
        }));
    }
    let mut changed = Changed::open(&args.read, false, &Request::Add(paths.clone()))?;
    if let Some(changed) = &mut changed {
        for path in paths {
            if let Err(error) = changed.writer.add(std::slice::from_ref(path)) {
                failed.push(error.into());
            }
        }
    }
    let is_all = failed.len() == args.paths.len();
    let updated = if is_all { Ok(Exit::Done) } else { Changed::update(changed, interrupt) };
    // The last failure is that of the command.
    let last = updated.and_then(|exit| failed.pop().map_or(Ok(exit), Err));
    failed.iter().for_each(|failure| print_error(&failure.line()));
    last
}

/// An index that is open for changes, and the model whose token ids it stores.
struct Changed<'a> {
    writer: NotesWriter,
    model: Option<&'a Path>,
    /// The model for embeddings that the user names; `none` ends the storing of vectors.
    embedder: Option<&'a Path>,
}

impl<'a> Changed<'a> {
    /// `None` if another process writes: the request was left to it.
    fn open(args: &'a IndexReadArgs, reads_all: bool, request: &Request) -> Result<Option<Self>, Failure> {
        let folder = folder(&args.folder)?;
        let writer = NotesWriter::open_or_hand_in(&folder, options(args, reads_all)?, request)?;
        if writer.is_none() {
            note("another process writes the index: the request is left to it");
        }
        let (model, embedder) = (args.model.as_deref(), args.embedder.as_deref());
        let changed = writer.map(|writer| Self { writer, model, embedder });
        changed.iter().for_each(|changed| note_repairs(&changed.writer));
        Ok(changed)
    }

    fn update(changed: Option<Self>, interrupt: &Interrupt) -> Result<Exit, Failure> {
        let Some(Self { mut writer, model, embedder }) = changed else { return Ok(Exit::Done) };
        let cancel = CancelToken::new();
        let _cancelling = interrupt.cancels(cancel.clone());
        let proceeds = || proceeds(&cancel);
        let report = {
            let progress = Progress::bytes("reading notes");
            writer.update(&mut |done, total| {
                progress.set(done, total);
                proceeds()
            })?
        };
        note_report(&report);
        if report.is_incomplete {
            note("interrupted: what was read is kept, the next update reads the rest");
            writer.leave()?;
            return Ok(Exit::Interrupted);
        }
        let derived = Derivation::open(&mut writer, model, embedder)
            .and_then(|derivation| Ok(derivation.store(&mut writer, &cancel)?));
        note_time(&mut writer);
        // Also if a model is missing.
        close(writer, &cancel).and_then(|exit| derived.map(|()| exit))
    }
}

/// What is stored of passages beside their words.
struct Derivation {
    tokenizer: Option<Tokenizer>,
    embedder: Option<ModelEmbedder>,
}

impl Derivation {
    /// Opens the models that the user names, and without a named embedder the one that the index remembers or that was pulled.
    fn open(
        writer: &mut NotesWriter,
        model: Option<&Path>,
        embedder: Option<&Path>,
    ) -> Result<Self, Failure> {
        let tokenizer = model.map(|model| load::open_tokenizer(Some(model))).transpose()?;
        let embedder = embedder::of_writer(writer, embedder)?;
        Ok(Self { tokenizer: tokenizer.map(|(tokenizer, _)| tokenizer), embedder })
    }

    /// Stores what new passages lack.
    fn store(&self, writer: &mut NotesWriter, cancel: &CancelToken) -> Result<(), NotesError> {
        if let Some(tokenizer) = &self.tokenizer {
            let progress = Progress::steps("tokenizing passages");
            writer.tokenize(tokenizer, &mut |done, total| {
                progress.set(done, total);
                proceeds(cancel)
            })?;
        }
        if let Some(embedder) = &self.embedder {
            let progress = Progress::steps("making vectors");
            writer.embed(embedder, &mut |done, total| {
                progress.set(done, total);
                proceeds(cancel)
            })?;
        }
        Ok(())
    }
}

/// The label of the index with the time at which it was last compared with the files, in seconds since 1970.
const COMPARED: &str = "compared";

/// An age that is no surprise.
const AGE_MIN: Duration = Duration::from_secs(3600);

/// Notes that the index was compared with the files now. Without the note, its age is unknown.
fn note_time(writer: &mut NotesWriter) {
    let _ = writer.set_label(COMPARED, Some(&now().as_secs().to_string()));
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Says how old the index is, if it is older than an hour.
pub(crate) fn note_age(index: &NotesIndex) {
    let compared = index.label(COMPARED).ok().flatten().and_then(|seconds| seconds.parse().ok());
    if let Some(age) = compared.map(|seconds| now().saturating_sub(Duration::from_secs(seconds)))
        && age >= AGE_MIN
    {
        note(&format!("the index is {} old: `refrain index update` reads what has changed", in_words(age)));
    }
}

fn in_words(age: Duration) -> String {
    let (n, unit) = match age.as_secs() / 3600 {
        hours @ 0..48 => (hours, "hour"),
        hours => (hours / 24, "day"),
    };
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

/// The user's index, if it reads all of these files and folders; compared with them first. Otherwise they are to be read without it.
pub(crate) fn of_context(paths: &[PathBuf], interrupt: &Interrupt) -> Result<Option<PathBuf>, Failure> {
    let key = key()?;
    let Some(folder) = data_folder("notes").filter(|folder| folder.is_dir()) else { return Ok(None) };
    // An index that cannot be used is no reason not to read the files.
    let Ok(Some(roots)) = NotesIndex::roots_in(&folder, key.as_ref()) else { return Ok(None) };
    let absolute = paths.iter().map(|path| refrain_index::notes::absolute(path));
    let Ok(paths) = absolute.collect::<Result<Vec<_>, _>>() else { return Ok(None) };
    let is_read = |path: &PathBuf| path.exists() && roots.iter().any(|root| path.starts_with(root));
    if !paths.iter().all(is_read) {
        return Ok(None);
    }
    let cancel = CancelToken::new();
    let compared = compare(&folder, &paths, key, interrupt, &cancel);
    if cancel.is_cancelled() {
        return Err(Failure::new(Exit::Interrupted, ""));
    }
    let Ok(index) = NotesIndex::open_with_key(&folder, key.as_ref()) else { return Ok(None) };
    // What was forgotten is not in it.
    let files = index.files()?;
    if !paths.iter().all(|path| files.iter().any(|file| file.path.starts_with(path))) {
        return Ok(None);
    }
    if let Err(failure) = compared {
        note(&visible(&format!("the index is searched as it is: {}", failure.line())));
        note_age(&index);
    }
    Ok(Some(folder))
}

/// Brings the index in agreement with files and folders that it reads.
fn compare(
    folder: &Path,
    paths: &[PathBuf],
    key: Option<[u8; 32]>,
    interrupt: &Interrupt,
    cancel: &CancelToken,
) -> Result<(), Failure> {
    let mut writer = NotesWriter::open(folder, NotesOptions { key, ..NotesOptions::default() })?;
    note_repairs(&writer);
    let report = {
        let _progress = Progress::bytes("reading notes");
        writer.update_paths(paths)?
    };
    if report.is_notable() {
        note_report(&report);
    }
    // Until here, an interrupt ends the program.
    let _cancelling = interrupt.cancels(cancel.clone());
    let derived = Derivation::open(&mut writer, None, None)
        .and_then(|derivation| Ok(derivation.store(&mut writer, cancel)?));
    close(writer, cancel)?;
    derived
}

pub(crate) fn proceeds(cancel: &CancelToken) -> ControlFlow<()> {
    if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Carries out what other processes have left meanwhile.
fn close(writer: NotesWriter, cancel: &CancelToken) -> Result<Exit, Failure> {
    writer.close(&mut |_, _| proceeds(cancel), &mut |report| {
        note("requests of other processes:");
        note_report(report);
    })?;
    Ok(if cancel.is_cancelled() { Exit::Interrupted } else { Exit::Done })
}

/// `refrain/notes` in the user's data folder, or the folder that the user names.
fn folder(args: &IndexFolderArgs) -> Result<PathBuf, Failure> {
    folder_or_default(args.index.as_deref())
}

pub(crate) fn folder_or_default(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = named.map(Path::to_owned).or_else(|| data_folder("notes"));
    folder.ok_or_else(|| Failure::usage("there is no default folder", "name one with --index"))
}

fn options(args: &IndexReadArgs, reads_all: bool) -> Result<NotesOptions, Failure> {
    let language = |code: &String| {
        Language::of_code(code).ok_or_else(|| {
            let known = Language::ALL.iter().map(|language| language.code()).collect::<Vec<_>>().join(", ");
            Failure::usage(format!("`{code}` is no language with a stemmer"), &format!("known are {known}"))
        })
    };
    let languages = match &args.languages[..] {
        [] => None,
        [all] if all == "all" => Some(Vec::new()),
        codes => Some(codes.iter().map(language).collect::<Result<_, _>>()?),
    };
    Ok(NotesOptions {
        file_bytes_max: args.max_bytes,
        languages,
        follows_links: args.follow_links,
        reads_all,
        key: key()?,
        ..NotesOptions::default()
    })
}

pub(crate) fn note_repairs(writer: &NotesWriter) {
    writer.notices().iter().for_each(|notice| note(&visible(&notice.to_string())));
}

pub(crate) fn note_report(report: &UpdateReport) {
    // Hidden files are skipped without a notice: users do not expect them to be read.
    let notable: Vec<_> = report.skipped.iter().filter(|skipped| skipped.reason.is_notable()).collect();
    for skipped in notable.iter().take(SKIPPED_MAX) {
        let skipped_as_whole =
            if matches!(skipped.reason, SkipReason::Partly { .. }) { "" } else { "skipped " };
        note(&visible(&format!("{skipped_as_whole}{}: {}", skipped.path.display(), skipped.reason)));
    }
    if notable.len() > SKIPPED_MAX {
        note(&format!("skipped {} more files", notable.len() - SKIPPED_MAX));
    }
    let others = report.skipped_by_ending();
    if !others.is_empty() {
        let n: usize = others.iter().map(|(_, n)| n).sum();
        let shown = others.iter().take(ENDINGS_MAX).map(|(ending, n)| match ending.is_empty() {
            true => format!("{n} without an ending"),
            false => format!("{n} .{ending}"),
        });
        let more = if others.len() > ENDINGS_MAX { ", …" } else { "" };
        let shown = shown.collect::<Vec<_>>().join(", ");
        note(&visible(&format!(
            "skipped {n} files that are no sources (text in images is not read): {shown}{more}"
        )));
    }
    note_requests(report);
    note(&format!(
        "{} files added, {} changed, {} removed, {} the same; {} passages written",
        report.n_added, report.n_changed, report.n_removed, report.n_unchanged, report.n_passages
    ));
}

/// What came of forgetting and of requests, beside numbers.
fn note_requests(report: &UpdateReport) {
    for path in &report.unknown {
        let later = if document_id(path).is_some() { "" } else { "; from now on it is not read" };
        note(&visible(&format!("the index has nothing of {}{later}", path.display())));
    }
    report.failed.iter().for_each(note_failed);
}

fn note_failed(failed: &FailedRequest) {
    let paths = match &failed.request {
        Some(Request::Add(paths) | Request::Forget(paths)) => &paths[..],
        _ => &[],
    };
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let what = if paths.is_empty() {
        "a request".to_owned()
    } else {
        format!("the request to add {}", paths.join(", "))
    };
    note(&visible(&format!("{what} has failed: {}", failed.reason)));
}

/// The folder that the user names, or the default one, and its index for reading.
///
/// # Errors
/// The index cannot be read, or has no notes.
pub(crate) fn open_named(named: Option<&Path>) -> Result<(PathBuf, NotesIndex), Failure> {
    let folder = folder_or_default(named)?;
    let index = open(&folder)?;
    match index.n_passages() {
        0 => Err(Failure::input("the index of notes is empty", "`refrain index add PATH` adds notes")),
        _ => Ok((folder, index)),
    }
}

/// Opens the index for reading. A damaged one is built again first.
fn open(folder: &Path) -> Result<NotesIndex, Failure> {
    let key = key()?;
    match NotesIndex::open_with_key(folder, key.as_ref()) {
        Err(error) if error.is_damage() => {
            let mut writer = NotesWriter::open(folder, NotesOptions { key, ..NotesOptions::default() })?;
            note_repairs(&writer);
            let progress = Progress::bytes("reading notes");
            let report = writer.update(&mut |done, total| {
                progress.set(done, total);
                ControlFlow::Continue(())
            })?;
            drop(progress);
            note_report(&report);
            writer.leave()?;
            Ok(NotesIndex::open_with_key(folder, key.as_ref())?)
        }
        opened => Ok(opened?),
    }
}

fn search(args: &IndexSearchArgs) -> Result<Exit, Failure> {
    let index = open(&folder(&args.folder)?)?;
    let embedder = if args.words { None } else { embedder::stored(&index)? };
    let mut request = Search::new(&args.request, args.passages);
    request.filter = args.filter.filter();
    request.embedder = embedder.as_ref().map(|embedder| embedder as &dyn Embedder);
    let hits = index.search(&request)?;
    let mut out = AnswerStream::stdout();
    for hit in &hits {
        match args.json {
            true => out.line(&hit_json(hit).to_string())?,
            false => {
                let NoteHit { passage, score, snippet, .. } = hit;
                let day = utc(passage.date.max(0).unsigned_abs());
                let place = place(&passage.path, passage.locator);
                let kind = passage.kind;
                let head = format!("{score:6.2}  {kind}  {}  {}  {place}", &day[..10], passage.title);
                out.line(&visible(&head))?;
                let text = snippet.text.split_whitespace().collect::<Vec<_>>().join(" ");
                out.line(&visible(&format!("        {text}")))?;
            }
        }
    }
    if hits.is_empty() && !args.json {
        note("no passage matches the request");
    }
    Ok(Exit::Done)
}

/// A path as the index names it: absolute, with its links.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    refrain_index::notes::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A file, with the line or page of a passage.
pub(crate) fn place(path: &Path, locator: Option<Locator>) -> String {
    match locator {
        Some(Locator::Line(line)) => format!("{}:{line}", path.display()),
        Some(locator) => format!("{}, {locator}", path.display()),
        None => path.display().to_string(),
    }
}

fn hit_json(hit: &NoteHit) -> serde_json::Value {
    let NoteHit { passage, score, coverage, similarity, snippet } = hit;
    let matched: Vec<[usize; 2]> = snippet.matched.iter().map(|range| [range.start, range.end]).collect();
    json!({
        "path": passage.path.to_string_lossy(),
        "kind": passage.kind.name(),
        "title": passage.title,
        "text": passage.text,
        "start": passage.place.start,
        "end": passage.place.end,
        "verbatim": passage.is_verbatim,
        "locator": passage.locator.map(|locator| locator.to_string()),
        "date": passage.date,
        "tags": passage.tags,
        "score": score,
        "coverage": coverage,
        "similarity": similarity,
        "snippet": { "text": snippet.text, "start": snippet.range.start, "matched": matched },
    })
}

fn status(args: &IndexStatusArgs) -> Result<Exit, Failure> {
    let status = open(&folder(&args.folder)?)?.status()?;
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&status_json(&status).to_string())?;
        return Ok(Exit::Done);
    }
    for root in &status.roots {
        out.line(&visible(&format!("reads     {}", root.display())))?;
    }
    let kinds = status.by_kind.iter().filter(|(_, n)| *n > 0);
    let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
    out.line(&format!("files     {} ({} forgotten)", status.n_files, status.n_forgotten))?;
    if status.n_documents > 0 {
        out.line(&format!("documents {} without files", status.n_documents))?;
    }
    out.line(&format!("passages  {} ({})", status.n_passages, kinds.join(", ")))?;
    out.line(&format!("disk      {:.1} MB in {} segments", status.bytes as f64 / 1e6, status.n_segments))?;
    let list = |ids: &[u64]| ids.iter().map(|id| format!("{id:016x}")).collect::<Vec<_>>().join(", ");
    if !status.tokenizers.is_empty() {
        out.line(&format!("token ids {}", list(&status.tokenizers)))?;
    }
    if !status.embedders.is_empty() {
        out.line(&format!("vectors   {}", list(&status.embedders)))?;
    }
    if status.n_unpurged > 0 {
        note(&format!("{} replaced passages are on the disk until the next update", status.n_unpurged));
    }
    if status.n_requests > 0 {
        note(&format!("{} requests wait for the process that writes", status.n_requests));
    }
    status.failed.iter().for_each(note_failed);
    Ok(Exit::Done)
}

fn status_json(status: &NotesStatus) -> serde_json::Value {
    let kinds: serde_json::Map<String, serde_json::Value> =
        status.by_kind.iter().map(|(kind, n)| (kind.name().to_owned(), json!(n))).collect();
    let ids = |ids: &[u64]| ids.iter().map(|id| format!("{id:016x}")).collect::<Vec<_>>();
    json!({
        "roots": status.roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
        "forgotten": status.n_forgotten,
        "files": status.n_files,
        "documents": status.n_documents,
        "passages": status.n_passages,
        "by_kind": kinds,
        "unpurged": status.n_unpurged,
        "segments": status.n_segments,
        "bytes": status.bytes,
        "tokenizers": ids(&status.tokenizers),
        "embedders": ids(&status.embedders),
        "requests": status.n_requests,
        "failed": status.failed.iter().map(|failed| json!({
            "paths": match &failed.request {
                Some(Request::Add(paths) | Request::Forget(paths)) =>
                    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
                _ => Vec::new(),
            },
            "reason": failed.reason,
        })).collect::<Vec<_>>(),
    })
}

fn forget(args: &IndexForgetArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let cancel = CancelToken::new();
    let _cancelling = interrupt.cancels(cancel.clone());
    let folder = folder(&args.folder)?;
    let request = Request::Forget(args.paths.clone());
    let options = NotesOptions { key: key()?, ..NotesOptions::default() };
    match NotesWriter::open_or_hand_in(&folder, options, &request)? {
        None => note("another process writes the index and will forget this; until then, its text is there"),
        Some(mut writer) => {
            note_repairs(&writer);
            let report = writer.forget(&args.paths)?;
            note_requests(&report);
            note(&format!("{} files removed from the index", report.n_removed));
            return close(writer, &cancel);
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
    fn ages_have_words() {
        let hours = |n: u64| in_words(Duration::from_secs(n * 3600 + 1));
        assert_eq!([1, 47, 48, 100].map(hours), ["1 hour", "47 hours", "2 days", "4 days"]);
    }

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(utc(1_795_289_405), "2026-11-21 19:30:05");
    }
}
