//! `refrain serve`: the OpenAI API on this device.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refrain::{CancelToken, Engine, EngineOptions};
use refrain_assistant::{Assistant, AssistantOptions, BuildError, Gate, StoreError};
use refrain_serve::{
    Limits, Loaded, ModelKind, ModelSpec, Models, ModelsError, ServeError, ServeOptions, Server,
};

use crate::args::ServeArgs;
use crate::failure::{Exit, Failure};
use crate::history::data_folder;
use crate::index::open_named;
use crate::interrupt::Interrupt;
use crate::setup::{self, Setup};
use crate::terminal::{AnswerStream, note, visible};
use crate::{load, profile, sampling};

/// The name of the model inside the program.
const EMBEDDED_NAME: &str = "refrain-embedded";

pub(crate) fn serve(args: &ServeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    if args.session.drafts.strategy.is_rival() {
        let problem = format!("--strategy {} is for `run` and `chat`", args.session.drafts.strategy);
        return Err(Failure::usage(problem, "omit it"));
    }
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
    let notes = args.notes.as_ref().map(|named| open_named(named.as_deref())).transpose()?;
    // The first model is loaded now: an unusable one should not wait for its first request.
    let setup = setup::open(&args.model, &args.session)?;
    let gate = Arc::<Gate>::default();
    let first = first(args, &setup, &gate, notes.map(|(folder, _)| folder))?;
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
    note("a page is at this address, and the OpenAI API at its /v1; Ctrl-C stops the server");
    let stop = CancelToken::new();
    let stopping = interrupt.cancels(stop.clone());
    server.run(&stop)?;
    drop(stopping);
    setup.learned.keep(&setup.engine);
    Ok(Exit::Done)
}

/// The model that is loaded already.
fn first(
    args: &ServeArgs,
    setup: &Setup,
    gate: &Arc<Gate>,
    notes: Option<PathBuf>,
) -> Result<ModelSpec, Failure> {
    let path = args.model.model.as_deref();
    let engine = setup.engine.clone();
    let session = args.session.session_options("serve");
    let sampling = sampling::for_chat(&engine, path.is_none());
    let options = AssistantOptions::default().with_session(session.clone()).with_sampling(sampling.clone());
    let store = match args.no_store {
        true => None,
        false => args.store.clone().or_else(|| notes.as_ref().and_then(|_| data_folder("assistant"))),
    };
    let build = |store: Option<PathBuf>| {
        let mut builder = Assistant::builder(engine.clone()).options(options.clone()).gate(Arc::clone(gate));
        if let Some(folder) = &notes {
            builder = builder.notes(folder);
        }
        if let Some(folder) = store {
            builder = builder.store(folder);
        }
        builder.build()
    };
    let assistant = build(store).or_else(|error| match error {
        // A folder that the user has named must be usable.
        BuildError::Store(ref problem)
            if args.store.is_none() || matches!(problem, StoreError::InUse { .. }) =>
        {
            note(&visible(&format!("nothing is kept on disk: {error}")));
            build(None)
        }
        error => Err(error),
    })?;
    let id = args.name.clone().or_else(|| path.map(name_of)).unwrap_or_else(|| EMBEDDED_NAME.to_owned());
    Ok(ModelSpec::new(id, move || {
        let loaded =
            Loaded::new(engine.clone()).with_sampling(sampling.clone()).with_session(session.clone());
        Ok(loaded.with_assistant(assistant.clone()))
    })
    // This function's caller has the engine too.
    .with_pinned(true))
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
            ServeError::Runtime(_) => Self::new(Exit::Failed, error.to_string()),
            error => Self::usage(error, "see `refrain serve --help`"),
        }
    }
}

impl From<ModelsError> for Failure {
    fn from(error: ModelsError) -> Self {
        Self::usage(error, "name the first model with --name")
    }
}
