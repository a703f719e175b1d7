//! `refrain model pull`: downloads a model from a hub.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use refrain::CancelToken;
use refrain::checkpoint::Checkpoint;
use refrain::embedding::{Encoder, EncoderOptions};
use serde_json::json;

use crate::args::{Attempts, PullArgs};
use crate::elsewhere::Folders;
use crate::failure::{Exit, Failure};
use crate::hub::{
    self, Client, ClientOptions, Event, FileRecord, HubError, Listing, Lock, ModelName, Pulled, Store, Token,
    incomplete, pick, units,
};
use crate::interrupt::Interrupt;
use crate::models;
use crate::progress::Progress;
use crate::suggested::suggested_embedder;
use crate::terminal::{AnswerStream, note, visible};

/// How often Ctrl-C is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How often a repository that another process pulls is looked at again.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// Reports that wait for the terminal; a download that is faster waits for it.
const STEPS_MAX: usize = 64;

/// What the download reports to the terminal.
enum Step {
    Note(String),
    /// A file begins.
    File(String),
    /// Bytes of the model, of all its bytes.
    Bytes(u64, u64),
    Ended(Result<Pulled, HubError>),
}

pub(crate) fn pull(args: &PullArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    if let Ok(Some(found)) = Folders::of_user().find(&args.name) {
        note(&visible(&format!(
            "on this device already: `--model {}` opens `{}` ({})",
            args.name,
            found.path.display(),
            found.origin.name()
        )));
    }
    let Some(pulled) = download_with_progress(args, interrupt)? else { return Ok(Exit::Interrupted) };
    let is_encoder = Encoder::is_encoder(&pulled.path);
    let opened = match is_encoder {
        true => Encoder::open(&pulled.path, EncoderOptions::default()).map(drop),
        false => Checkpoint::open(&pulled.path).map(drop),
    };
    let is_default = is_encoder && pulled.name == suggested_embedder().repo;
    match opened {
        Err(error) => note(&visible(&format!("this program cannot run the model: {error}"))),
        Ok(()) if args.json => {}
        Ok(()) if is_default => {
            note("`refrain index add` and `update` make vectors of notes with it from now on");
        }
        Ok(()) if is_encoder => {
            note(&visible(&format!(
                "`refrain index update --embedder {}` makes vectors with it",
                pulled.name
            )));
        }
        Ok(()) => note(&visible(&format!("`refrain chat --model {}` runs it", pulled.name))),
    }
    let mut out = AnswerStream::stdout();
    let Pulled { name, path, unit, commit } = &pulled;
    match args.json {
        true => {
            let value = json!({ "name": name, "path": path, "bytes": unit.bytes, "files": unit.files, "commit": commit });
            out.line(&value.to_string())?;
        }
        false => out.line(&path.display().to_string())?,
    }
    Ok(Exit::Done)
}

/// Downloads a model; `None` after Ctrl-C, which a notice tells.
pub(crate) fn download_with_progress(
    args: &PullArgs,
    interrupt: &Interrupt,
) -> Result<Option<Pulled>, Failure> {
    let name: ModelName = args.name.parse().map_err(HubError::from)?;
    let store = models::store()?;
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty());
    let Attempts { n: attempts, stall_time } = args.attempts;
    let client = Client::new(ClientOptions { endpoint, token: Token::find(args.keyring)?, stall_time })?;
    let (has_token, endpoint) = (client.has_token(), client.endpoint().to_owned());

    // Waits for the hub cannot be interrupted, so they are on a thread of their own, which ends with the program.
    let stop = CancelToken::new();
    let stopping = interrupt.cancels(stop.clone());
    let (steps, received) = mpsc::sync_channel(STEPS_MAX);
    let work = move || {
        let result = download(&client, &store, &name, attempts, &steps);
        let _ = steps.send(Step::Ended(result));
    };
    thread::Builder::new()
        .spawn(work)
        .map_err(|error| Failure::new(Exit::Failed, format!("no thread downloads: {error}")))?;
    let mut progress = None;
    let result = loop {
        match received.recv_timeout(POLL) {
            Ok(Step::Note(text)) => note(&visible(&text)),
            Ok(Step::File(what)) => progress = Some(Progress::transfer(visible(&what).into_owned())),
            Ok(Step::Bytes(done, total)) => {
                if let Some(progress) = &progress {
                    progress.set(done, total);
                }
            }
            Ok(Step::Ended(result)) => break Some(result),
            Err(RecvTimeoutError::Timeout) if stop.is_cancelled() => break None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(Exit::Failed, "a bug in this program has ended the download"));
            }
        }
        if stop.is_cancelled() {
            break None;
        }
    };
    drop((progress, stopping));
    let Some(result) = result else {
        note("stopped: what has come is kept, and the same command resumes");
        return Ok(None);
    };
    result.map(Some).map_err(|error| refused(error, &args.name, &endpoint, has_token))
}

/// A failure with advice that fits a refusal of the hub.
fn refused(error: HubError, name: &str, endpoint: &str, has_token: bool) -> Failure {
    let HubError::Status { status, retry_after, .. } = &error else { return error.into() };
    let repo = name.split([':', '@']).next().unwrap_or(name);
    let (exit, advice) = match status {
        401 | 404 if !has_token => (
            Exit::Input,
            "check the name and the revision; a private model needs a token: HF_TOKEN, or --keyring"
                .to_owned(),
        ),
        401 => (Exit::Input, "the hub does not accept the token".to_owned()),
        403 if !has_token => {
            (Exit::Input, format!("accept its terms at {endpoint}/{repo}, and set HF_TOKEN"))
        }
        403 => (Exit::Input, format!("accept its terms at {endpoint}/{repo} with the account of the token")),
        404 => (Exit::Input, "check the name and the revision; the token may not see it".to_owned()),
        429 => {
            let after = retry_after.map_or_else(String::new, |time| format!(" in {} s", time.as_secs()));
            (Exit::Failed, format!("too many requests: try again{after}; the same command resumes"))
        }
        _ => (Exit::Failed, "what has come is kept; the same command resumes".to_owned()),
    };
    Failure::new(exit, format!("{error} ({advice})"))
}

/// A file of the chosen model, and where it is kept.
struct Wanted {
    path: String,
    target: PathBuf,
    listed: hub::Listed,
}

fn download(
    client: &Client,
    store: &Store,
    name: &ModelName,
    attempts: usize,
    steps: &SyncSender<Step>,
) -> Result<Pulled, HubError> {
    let say = |step| drop(steps.send(step));
    let repo = &name.repo;
    let listing = hub::list(client, repo, name.revision.as_deref())?;
    let wanted = wanted(store, name, &listing)?;
    let _lock = lock(store, name, &say)?;
    let mut record = store.record(repo)?.unwrap_or_else(|| Store::new_record(repo, client.endpoint()));
    client.endpoint().clone_into(&mut record.endpoint);

    let total = wanted.iter().fold(0, |sum: u64, file| sum.saturating_add(file.listed.bytes));
    let mut missing = Vec::new();
    for file in &wanted {
        let entry = FileRecord::new(&file.listed, &listing.commit);
        if is_whole(file, record.files.get(&file.path), &say)? {
            record.files.insert(file.path.clone(), entry);
            record.unfinished.remove(&file.path);
        } else {
            record.unfinished.insert(file.path.clone(), entry);
            missing.push(file);
        }
    }
    let needed = missing.iter().map(|file| file.listed.bytes.saturating_sub(hub::part_bytes(&file.target)));
    let needed = needed.fold(0, u64::saturating_add);
    // The record is written first: its folder is the place whose room counts, and unfinished files are listed.
    store.write_record(repo, &record)?;
    store.check_space(repo, needed)?;
    if missing.is_empty() {
        say(Step::Note("it is there already, and unchanged at the hub".to_owned()));
    }
    let mut done =
        total - missing.iter().fold(0, |sum: u64, file| sum.saturating_add(file.listed.bytes)).min(total);
    for (index, file) in missing.iter().enumerate() {
        let count =
            if missing.len() > 1 { format!(" ({} of {})", index + 1, missing.len()) } else { String::new() };
        say(Step::File(format!("{}{count}", file.path)));
        if let Some(folder) = file.target.parent() {
            fs::create_dir_all(folder).map_err(|source| HubError::Io {
                action: "create",
                path: folder.to_owned(),
                source,
            })?;
        }
        let address = format!("/{repo}/resolve/{}/{}", listing.commit, file.path);
        hub::transfer(client, &address, &file.listed, &file.target, attempts, &mut |event| {
            say(match event {
                Event::Bytes(bytes) => Step::Bytes(done + bytes, total),
                Event::Note(text) => Step::Note(text),
            });
        })?;
        done += file.listed.bytes;
        record.unfinished.remove(&file.path);
        record.files.insert(file.path.clone(), FileRecord::new(&file.listed, &listing.commit));
        store.write_record(repo, &record)?;
    }
    // The name that fits exactly these files.
    let all = store.pulled_of(repo, &record);
    let paths: BTreeSet<&str> = wanted.iter().map(|file| &*file.path).collect();
    let found = all.into_iter().find(|pulled| pulled.unit.files.iter().all(|file| paths.contains(&**file)));
    found.ok_or_else(|| HubError::Unknown { name: repo.to_string(), folder: store.folder().to_owned() })
}

/// The files of the chosen model.
fn wanted(store: &Store, name: &ModelName, listing: &Listing) -> Result<Vec<Wanted>, HubError> {
    let files: Vec<(&str, u64)> =
        listing.files.iter().map(|(path, listed)| (path.as_str(), listed.bytes)).collect();
    let units = units(&files);
    let unit = match pick(&units, name.file.as_deref()) {
        // The reason may be a part that is missing.
        Err(hub::ChooseError::Nothing) => {
            return Err(incomplete(&files).unwrap_or(hub::ChooseError::Nothing).into());
        }
        unit => unit?,
    };
    let mut lower = BTreeSet::new();
    let mut wanted = Vec::with_capacity(unit.files.len());
    for path in &unit.files {
        let target = store.path_of(&name.repo, path)?;
        if !lower.insert(path.to_ascii_lowercase()) {
            let problem = "two files differ in upper and lower case only".to_owned();
            return Err(HubError::Answer { what: format!("listing {}", name.repo), problem });
        }
        wanted.push(Wanted { path: path.clone(), target, listed: listing.files[path].clone() });
    }
    Ok(wanted)
}

/// Waits while another process pulls from the repository.
fn lock(store: &Store, name: &ModelName, say: &dyn Fn(Step)) -> Result<Lock, HubError> {
    let mut has_said = false;
    loop {
        if let Some(lock) = store.lock(&name.repo)? {
            return Ok(lock);
        }
        if !has_said {
            say(Step::Note(format!("another process pulls from {}: waiting for it", name.repo)));
            has_said = true;
        }
        thread::sleep(LOCK_POLL);
    }
}

/// Whether a file is there and has the listed content.
///
/// # Errors
/// A file that was not pulled is in its place.
fn is_whole(file: &Wanted, recorded: Option<&FileRecord>, say: &dyn Fn(Step)) -> Result<bool, HubError> {
    let found = match fs::symlink_metadata(&file.target) {
        Ok(found) => found,
        Err(_) => return Ok(false),
    };
    let not_pulled = || HubError::NotPulled { path: file.target.clone() };
    if !found.is_file() {
        return Err(not_pulled());
    }
    let recorded = recorded.filter(|recorded| found.len() == recorded.bytes);
    if recorded.is_some_and(|recorded| recorded.hash == file.listed.hash.to_string()) {
        return Ok(true);
    }
    // A crash between the last rename and the record, or a record that was removed.
    if found.len() == file.listed.bytes {
        say(Step::Note(format!("`{}` is there: comparing its hash", file.path)));
        if hub::has_hash(&file.target, &file.listed)? {
            return Ok(true);
        }
    }
    // An older file that was pulled is replaced.
    if recorded.is_some() { Ok(false) } else { Err(not_pulled()) }
}
