//! `refrain serve`: the APIs of OpenAI, Ollama and Anthropic, and the Model Context Protocol, on this device.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use refrain::embedding::Encoder;
use refrain::{CancelToken, Engine, EngineOptions, Sampling, SessionOptions};
use refrain_assistant::{Assistant, AssistantOptions, BuildError, Builder, Gate, StoreError};
use refrain_serve::{Loaded, ModelKind, ModelSpec, Models, ServeOptions, Server};
use ring::rand::{SecureRandom, SystemRandom};

use crate::args::{Listen, NotesArgs, ServeArgs, SessionArgs, is_none};
use crate::embedder;
use crate::failure::{Exit, Failure};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::notes::{Notes, Ready};
use crate::prices::Prices;
use crate::setup::{self, Setup};
use crate::store::budget;
use crate::terminal::{AnswerStream, note, visible};
use crate::{load, models, profile, sampling, span};
use refrain_program::args::ModelArgs;
use refrain_program::place::data_folder;

/// The name of the model inside the program.
const EMBEDDED_NAME: &str = "refrain-embedded";

pub(crate) fn serve(args: &'static ServeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let limits = args.limits();
    let running = limits.running;
    let is_open = is_open(args);
    let given = args.token.clone().filter(|_| !is_open);
    let is_socket = matches!(args.listen, Listen::Socket(_));
    // Other users and programs of this device reach an address, and not a socket.
    let needs_token = args.notes.notes.is_some() && args.token.is_none() && !is_socket;
    let new_token = needs_token.then(new_token).transpose()?;
    let mut options = ServeOptions::default();
    match &args.listen {
        Listen::Address(address) => (options.host, options.port) = (address.ip(), address.port()),
        Listen::Socket(path) => options.unix_socket = Some(path.clone()),
    }
    options.token = given.or_else(|| new_token.clone());
    options.origins = args.origin.clone();
    options.hosts = args.allow_host.clone();
    options.mcp_forget = args.notes.mcp_forget;
    options.stops_on_sigterm = true;
    options.limits = limits;
    // A refused option should not wait for the model.
    options.check()?;
    let notes =
        args.notes.notes.as_ref().map(|named| Notes::find(named, args.notes.index.as_deref())).transpose()?;
    // The first model is loaded now: an unusable one should not wait for its first request.
    let setup = Arc::new(setup::open(&args.model, &args.session, running, args.notes.keeps())?);
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
    // Notes are watched for one assistant, so a model with notes stays loaded.
    let store = first.store().filter(|_| assistant.has_store());
    let (first, pinned) = match &notes {
        Some(_) => (first.spec(&setup, assistant, None), Some(setup)),
        None => (loaded_again(args, setup, assistant, Arc::clone(&gate)), None),
    };
    let path = args.model.model.as_deref();
    let mut specs = vec![first.with_memory(move || memory(path, args))];
    let id = specs[0].id().to_owned();
    specs.extend(further(args));
    if args.pulled {
        specs.extend(pulled(args, &specs)?);
    }
    let models = Models::new(specs)?.with_gate(gate);
    let models = match args.models_memory() {
        Some(bytes) => models.with_budget(bytes),
        None => models,
    };
    models.load(&id)?;
    let server = Server::bind(options, models)?;
    let (server, announcement) = match store {
        None => (server, None),
        Some(store) => {
            let index = notes.as_ref().map(|notes| notes.index().to_owned());
            let model = pinned.clone().zip(index).map(|(setup, index)| (args.model.clone(), setup, index));
            let host = Host { model };
            let (server, announcement) =
                server.with_handed(&store, Arc::new(move |handed| host.run(handed)))?;
            (server, Some(announcement))
        }
    };
    // Whoever reads the address may stop the server at once.
    let stop = CancelToken::new();
    let stopping = interrupt.cancels(stop.clone());
    refrain_serve::quiet_panics();
    let place = match (server.unix_socket(), &new_token) {
        (Some(path), _) => visible(&format!("unix:{}", path.display())).into_owned(),
        (None, Some(token)) => format!("http://{}/?token={token}", reachable(server.local_addr())),
        (None, None) => format!("http://{}", reachable(server.local_addr())),
    };
    AnswerStream::stdout().line(&place)?;
    if is_open && args.notes.notes.is_some() && server.unix_socket().is_none() {
        let can = if args.notes.mcp_forget { "read, ask and forget" } else { "read and ask" };
        note(&format!(
            "--token none: every program and every user of this device can {can} the notes at this address"
        ));
    }
    match server.unix_socket() {
        Some(_) => note(
            "the OpenAI API is at /v1 of this socket, Ollama's at its /api, MCP at its /mcp; Ctrl-C stops the server",
        ),
        None if new_token.is_some() => note(
            "a page is at this address; the OpenAI API at /v1, Ollama's at /api and MCP at /mcp want the token as a key (`Authorization: Bearer …`); Ctrl-C \
             stops the server",
        ),
        None => note(
            "a page is at this address, the OpenAI API at its /v1, Ollama's at its /api, MCP at its /mcp; Ctrl-C stops the server",
        ),
    }
    load::note_demonstration(&args.model);
    server.run(&stop)?;
    drop((stopping, keeping, announcement));
    if let Some(setup) = pinned {
        setup.learned.keep(&setup.engine);
    }
    Ok(Exit::Done)
}

/// Whether the user wants no token.
fn is_open(args: &ServeArgs) -> bool {
    args.token.as_deref() == Some("none")
}

/// A token of 128 random bits.
fn new_token() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Failure::new(Exit::Failed, "the system gives no random numbers for a token"))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// An address that a browser on this device can open.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        // Every address of this device, and so this one.
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
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
        let mut options = AssistantOptions::default();
        options.session = self.session_options(setup);
        options.sampling = self.sampling(setup);
        let args = self.notes;
        let store = self.store();
        // As `ask` searches.
        let embedder = self.index.map(embedder::of_folder).transpose()?.flatten();
        if let Some(store) = &store {
            options.prefix_bytes_max = budget(store);
        }
        let key = key()?;
        let build = |store: Option<PathBuf>| {
            let mut builder =
                Assistant::builder(setup.engine.clone()).options(options.clone()).gate(Arc::clone(gate));
            if let Some(folder) = self.index {
                builder = builder.notes(folder);
                builder =
                    embedder.iter().fold(builder, |builder, embedder| builder.embedder(embedder.clone()));
            }
            if let Some(folder) = store {
                builder = builder.store(folder);
            }
            key.into_iter().fold(builder, Builder::key).build()
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

    /// The folder of the store: the named one, or the default one if there are notes.
    fn store(&self) -> Option<PathBuf> {
        match &self.notes.store {
            Some(folder) => Some(folder.clone()).filter(|folder| !is_none(folder)),
            None => self.index.and_then(|_| data_folder("assistant")),
        }
    }

    /// The model with its assistant. Its first request waits for `ready`.
    pub(crate) fn spec(&self, setup: &Setup, assistant: Assistant, ready: Option<Arc<Ready>>) -> ModelSpec {
        let (engine, session, sampling) =
            (setup.engine.clone(), self.session_options(setup), self.sampling(setup));
        ModelSpec::new(self.id(), move || {
            if let Some(ready) = &ready {
                ready.wait();
            }
            let mut loaded = Loaded::new(engine.clone());
            loaded.sampling = sampling.clone();
            loaded.session = session.clone();
            loaded.assistant = Some(assistant.clone());
            Ok(loaded)
        })
        // This function's caller has the engine too.
        .with_pinned(true)
    }

    /// The model as it is loaded, with its learnt values.
    fn loaded(&self, setup: Arc<Setup>, assistant: Assistant) -> Loaded {
        let (session, sampling) = (self.session_options(&setup), self.sampling(&setup));
        let mut loaded = Loaded::new(setup.engine.clone());
        loaded.sampling = sampling;
        loaded.session = session;
        loaded.assistant = Some(assistant);
        loaded.with_kept(Kept(setup))
    }

    /// The name in the API.
    fn id(&self) -> String {
        let path = self.model.model.as_deref();
        let id = self.name.map(str::to_owned).or_else(|| path.map(name_of));
        id.unwrap_or_else(|| EMBEDDED_NAME.to_owned())
    }

    fn session_options(&self, setup: &Setup) -> SessionOptions {
        setup.session_options(self.session, "serve")
    }

    fn sampling(&self, setup: &Setup) -> Sampling {
        sampling::for_chat(&setup.engine, self.model.model.is_none())
    }
}

/// The first model: loaded already, and again after it was unloaded.
fn loaded_again(
    args: &'static ServeArgs,
    setup: Arc<Setup>,
    assistant: Assistant,
    gate: Arc<Gate>,
) -> ModelSpec {
    let first = First {
        model: &args.model,
        session: &args.session,
        name: args.name.as_deref(),
        notes: &args.notes,
        index: None,
    };
    let loaded = Mutex::new(Some(first.loaded(setup, assistant)));
    ModelSpec::new(first.id(), move || {
        if let Some(loaded) = loaded.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(loaded);
        }
        let load = || -> Result<Loaded, Failure> {
            let setup = setup::open(first.model, first.session, args.limits().running, first.notes.keeps())?;
            let setup = Arc::new(setup);
            let assistant = first.assistant(&setup, &gate)?;
            Ok(first.loaded(setup, assistant))
        };
        load().map_err(|failure| {
            let line = failure.line();
            note(&visible(&format!("the first model cannot be loaded again: {line}")));
            line.into()
        })
    })
}

/// Writes what was learnt when the model is unloaded.
struct Kept(Arc<Setup>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.learned.keep(&self.0.engine);
    }
}

/// Bytes that loading a model takes at its peak: its weights, and the longest tensor as it is in the file, with at most 16 bits per element.
/// 0 if the model cannot be opened, which its loader reports.
fn memory(path: Option<&Path>, args: &ServeArgs) -> usize {
    if let Some(budget) = args.model.compute.streaming.memory {
        return usize::try_from(budget).unwrap_or(usize::MAX);
    }
    let Ok(checkpoint) = load::checkpoint(path) else { return 0 };
    let weights = args.model.compute.engine_options().quantize.weights_bytes(&checkpoint);
    let config = checkpoint.config();
    let longest = config.vocab_size.max(config.widths().ffn_dim) as u64 * config.hidden_dim as u64;
    let read = 2 * longest;
    usize::try_from(weights.saturating_add(read)).unwrap_or(usize::MAX)
}

/// The models that are loaded when a request names them.
fn further(args: &'static ServeArgs) -> impl Iterator<Item = ModelSpec> {
    let text = args.add_model.iter().map(|path| (path, ModelKind::Text));
    let embedding = args.embedding_model.iter().map(|path| (path, ModelKind::Embedding));
    text.chain(embedding)
        .map(move |(path, kind)| on_demand(name_of(path), path.clone(), args).with_kind(kind))
}

/// The pulled models whose names are not taken.
fn pulled(args: &'static ServeArgs, specs: &[ModelSpec]) -> Result<Vec<ModelSpec>, Failure> {
    let all = models::all()?.into_iter();
    let writes = all.filter(|pulled| !Encoder::is_encoder(&pulled.path));
    let new = writes.filter(|pulled| specs.iter().all(|spec| spec.id() != pulled.name));
    Ok(new.map(|pulled| on_demand(pulled.name, pulled.path, args)).collect())
}

/// A model that is loaded at its first request.
fn on_demand(id: String, path: PathBuf, args: &'static ServeArgs) -> ModelSpec {
    let options =
        EngineOptions { profile: profile::stored(Some(&path)), ..args.model.compute.engine_options() };
    let measured = path.clone();
    ModelSpec::new(id, move || {
        let prices = Prices::of_user(args.notes.keeps());
        let engine = open(&path, options.clone(), &prices).inspect_err(|error| {
            // Clients learn that it failed, and the user why.
            note(&visible(&format!("the model `{}` cannot be loaded: {error}", path.display())));
        })?;
        let sampling = sampling::for_chat(&engine, false);
        let context_len =
            span::context_len(engine.config(), &args.session, span::room(), args.limits().running);
        let session =
            SessionOptions { context_len: Some(context_len), ..args.session.session_options("serve") };
        let mut loaded = Loaded::new(engine);
        (loaded.sampling, loaded.session) = (sampling, session);
        Ok(loaded)
    })
    .with_memory(move || memory(Some(&measured), args))
}

fn open(
    path: &Path,
    options: EngineOptions,
    prices: &Prices,
) -> Result<Engine, Box<dyn Error + Send + Sync>> {
    let checkpoint = load::checkpoint(Some(path)).map_err(|failure| failure.line())?;
    let engine = Engine::load_measured(&checkpoint, options, prices.measured(), |_, _| {})?;
    prices.keep(&engine);
    load::note_kernels(&engine);
    Ok(engine)
}

/// The name of a file without its ending, or of a folder; a model that has a name instead of a path keeps it.
fn name_of(path: &Path) -> String {
    let is_file_name = path.extension().is_some_and(|end| end == "gguf" || end == "refrain");
    if !path.exists() && !is_file_name {
        return path.to_string_lossy().into_owned();
    }
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
