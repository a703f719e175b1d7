//! `refrain mcp`: the Model Context Protocol on standard input and output, for a client that starts this program.
//!
//! Standard output belongs to the protocol; notices go to standard error, which clients keep in their logs.

use std::sync::Arc;

use refrain::CancelToken;
use refrain_assistant::Gate;
use refrain_serve::{Limits, Models, StdioServer};

use crate::args::McpArgs;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::load::note_demonstration;
use crate::notes::Notes;
use crate::serve::First;
use crate::setup;
use crate::terminal::note;

pub(crate) fn mcp(args: &McpArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let named = args.notes.notes.as_deref().unwrap_or_default();
    let notes = Notes::find(named, args.notes.index.as_deref())?;
    let setup = setup::open(&args.model, &args.session, 1, args.notes.keeps())?;
    let gate = Arc::<Gate>::default();
    let first = First {
        model: &args.model,
        session: &args.session,
        name: None,
        notes: &args.notes,
        index: Some(notes.index()),
    };
    // Clients wait a limited time for the first answer, so a long first reading of the notes goes on beside it.
    let mut keeping = notes.keep(false, interrupt)?;
    let assistant = first.assistant(&setup, &gate)?;
    keeping.watch(assistant.notes());
    let spec = first.spec(&setup, assistant, Some(keeping.ready()));
    let server = StdioServer::new(Limits::default(), Models::new([spec])?.with_gate(gate))?;
    let server = server.with_forget(args.notes.mcp_forget);
    refrain_serve::quiet_panics();
    note_demonstration(&args.model);
    note("MCP on standard input and output; the client ends it");
    let stop = CancelToken::new();
    let stopping = interrupt.cancels(stop.clone());
    let served = server.run(&stop);
    drop((stopping, keeping));
    setup.learned.keep(&setup.engine);
    served?;
    Ok(Exit::Done)
}
