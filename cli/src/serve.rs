//! `refrain serve`: the OpenAI API and the Model Context Protocol on this device.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refrain::{CancelToken, Engine, EngineOptions, Sampling, SessionOptions};
use refrain_assistant::{Assistant, AssistantOptions, BuildError, Gate, StoreError};
use refrain_serve::{
    Limits, Loaded, ModelKind, ModelSpec, Models, ModelsError, ServeError, ServeOptions, Server,
};

use crate::args::{ModelArgs, NotesArgs, ServeArgs, SessionArgs};
use crate::failure::{Exit, Failure};
use crate::history::data_folder;
use crate::interrupt::Interrupt;
use crate::notes::{Notes, Ready};
use crate::setup::{self, Setup};
use crate::terminal::{AnswerStream, note, visible};
use crate::{load, profile, sampling};

/// The name of the model inside the program.
const EMBEDDED_NAME: &str = "refrain-embedded";

pub(crate) fn serve(args: &ServeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    check_strategy(&args.session)?;
    let limits = Limits::default()
        .with_running(args.parallel)
        .with_waiting(args.queue)
        .with_warm_bytes(args.kept_prompts);
    let options = ServeOptions::default()
        .with_host(args.host)
        .with_port(args.port)
        .with_token(args.token.clone())
        .with_origins(args.origin.clone())
        .with_hosts(args.allow_host.clone())
        .with_stops_on_sigterm(true)
        .with_limits(limits);
    // A refused option should not wait for the model.
    options.check()?;
    let notes =
        args.notes.notes.as_ref().map(|named| Notes::find(named, args.notes.index.as_deref())).transpose()?;
    // The first model is loaded now: an unusable one should not wait for its first request.
    let setup = setup::open(&args.model, &args.session)?;
    let gate = Arc::<Gate>::default();
    let first = First {
        model: &args.model,
        session: &args.session,
        name: args.name.as_deref(),
        notes: &args.notes,
        index: notes.as_ref().map(Notes::index),
    };
    // Who opens the page at once should find the notes.
    let mut keeping = notes.as_ref().map(|notes| notes.keep(true, interrupt)).transpose()?;
    let assistant = first.assistant(&setup, &gate)?;
    if let Some(keeping) = &mut keeping {
        keeping.watch(assistant.notes());
    }
    let first = first.spec(&setup, assistant, None);
    let models = Models::new(std::iter::once(first).chain(further(args)))?.with_gate(gate);
    let models = match args.models_memory {
        Some(bytes) => models.with_budget(bytes),
        None => models,
    };
    let server = Server::bind(options, models)?;
    refrain_serve::quiet_panics();
    let mut address = server.local_addr();
    if address.ip().is_unspecified() {
        // Every address of this device, of which a browser can open this one.
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    AnswerStream::stdout().line(&format!("http://{address}"))?;
    note("a page is at this address, the OpenAI API at its /v1, MCP at its /mcp; Ctrl-C stops the server");
    let stop = CancelToken::new();
    let stopping = interrupt.cancels(stop.clone());
    server.run(&stop)?;
    drop((stopping, keeping));
    setup.learned.keep(&setup.engine);
    Ok(Exit::Done)
}

/// # Errors
/// The session drafts by a strategy for comparisons.
pub(crate) fn check_strategy(session: &SessionArgs) -> Result<(), Failure> {
    if !session.drafts.strategy.is_rival() {
        return Ok(());
    }
    let problem = format!("--strategy {} is for `run` and `chat`", session.drafts.strategy);
    Err(Failure::usage(problem, "omit it"))
}

/// The options of the model that is loaded already.
pub(crate) struct First<'a> {
    pub(crate) model: &'a ModelArgs,
    pub(crate) session: &'a SessionArgs,
    /// Its name in the API.
    pub(crate) name: Option<&'a str>,
    pub(crate) notes: &'a NotesArgs,
    /// The folder of the index of notes.
    pub(crate) index: Option<&'a Path>,
}

impl First<'_> {
    /// The assistant, with a store if it can have one.
    pub(crate) fn assistant(&self, setup: &Setup, gate: &Arc<Gate>) -> Result<Assistant, Failure> {
        let options = AssistantOptions::default()
            .with_session(self.session_options())
            .with_sampling(self.sampling(setup));
        let args = self.notes;
        let store = match args.no_store {
            true => None,
            false => args.store.clone().or_else(|| self.index.and_then(|_| data_folder("assistant"))),
        };
        let build = |store: Option<PathBuf>| {
            let mut builder =
                Assistant::builder(setup.engine.clone()).options(options.clone()).gate(Arc::clone(gate));
            if let Some(folder) = self.index {
                builder = builder.notes(folder);
            }
            if let Some(folder) = store {
                builder = builder.store(folder);
            }
            builder.build()
        };
        let built = build(store).or_else(|error| match error {
            // A folder that the user has named must be usable.
            BuildError::Store(ref problem)
                if args.store.is_none() || matches!(problem, StoreError::InUse { .. }) =>
            {
                note(&visible(&format!("nothing is kept on disk: {error}")));
                build(None)
            }
            error => Err(error),
        });
        Ok(built?)
    }

    /// The model with its assistant. Its first request waits for `ready`.
    pub(crate) fn spec(&self, setup: &Setup, assistant: Assistant, ready: Option<Arc<Ready>>) -> ModelSpec {
        let path = self.model.model.as_deref();
        let id = self.name.map(str::to_owned).or_else(|| path.map(name_of));
        let (engine, session, sampling) =
            (setup.engine.clone(), self.session_options(), self.sampling(setup));
        ModelSpec::new(id.unwrap_or_else(|| EMBEDDED_NAME.to_owned()), move || {
            if let Some(ready) = &ready {
                ready.wait();
            }
            let loaded =
                Loaded::new(engine.clone()).with_sampling(sampling.clone()).with_session(session.clone());
            Ok(loaded.with_assistant(assistant.clone()))
        })
        // This function's caller has the engine too.
        .with_pinned(true)
    }

    fn session_options(&self) -> SessionOptions {
        self.session.session_options("serve")
    }

    fn sampling(&self, setup: &Setup) -> Sampling {
        sampling::for_chat(&setup.engine, self.model.model.is_none())
    }
}

/// The models that are loaded when a request names them.
fn further(args: &ServeArgs) -> impl Iterator<Item = ModelSpec> {
    let text = args.add_model.iter().map(|path| (path, ModelKind::Text));
    let embedding = args.embedding_model.iter().map(|path| (path, ModelKind::Embedding));
    text.chain(embedding).map(|(path, kind)| {
        let path = path.clone();
        let options =
            EngineOptions { profile: profile::stored(Some(&path)), ..args.model.compute.engine_options() };
        let session = args.session.session_options("serve");
        ModelSpec::new(name_of(&path), move || {
            let engine = open(&path, options.clone()).inspect_err(|error| {
                // Clients learn that it failed, and the user why.
                note(&visible(&format!("the model `{}` cannot be loaded: {error}", path.display())));
            })?;
            let sampling = sampling::for_chat(&engine, false);
            Ok(Loaded::new(engine).with_sampling(sampling).with_session(session.clone()))
        })
        .with_kind(kind)
    })
}

fn open(path: &Path, options: EngineOptions) -> Result<Engine, Box<dyn Error + Send + Sync>> {
    let checkpoint = load::checkpoint(Some(path)).map_err(|failure| failure.line())?;
    Ok(Engine::load(&checkpoint, options, None)?)
}

/// The name of a file without its ending, or of a folder.
fn name_of(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::TokenRequired { .. } => Self::usage(error, "give one with --token or REFRAIN_TOKEN"),
            ServeError::Bind { .. } => {
                Self::new(Exit::Failed, format!("{error} (choose another --port or --host)"))
            }
            ServeError::Runtime(_) | ServeError::Handshake => Self::new(Exit::Failed, error.to_string()),
            error => Self::usage(error, "see `refrain serve --help`"),
        }
    }
}

impl From<ModelsError> for Failure {
    fn from(error: ModelsError) -> Self {
        Self::usage(error, "name the first model with --name")
    }
}
