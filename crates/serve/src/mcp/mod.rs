//! The Model Context Protocol: tools over the notes, and the notes as resources.
//!
//! | tool | |
//! | --- | --- |
//! | `search_notes` | passages that match a query |
//! | `answer_from_notes` | an answer with its sources, copied spans and checked citations |
//! | `summarize` | a summary of a note, a text, or what matches a query |
//! | `forget` | deletes a note or a folder from the index, or what was kept before a time; only where the user allows it |
//!
//! One `Mcp` answers both transports: `http` (the route `/mcp`, behind the checks of every request) and [`stdio`]. Jobs take their places
//! in the queue and their turns at the gate as requests of the API do.
//!
//! A note is named by a hash ([`names`]), and its text comes from the index. No argument of a client reaches the file system.

mod arguments;
mod http;
mod job;
mod names;
mod resources;
mod results;
mod state;
mod stdio;
mod tools;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::Value;

pub(crate) use http::router;
pub use stdio::StdioServer;

use arguments::Call;
use state::{Mcp, invalid, wrong_cursor};

/// What a client's model is told about this server.
const INSTRUCTIONS: &str = "The user's own notes, on this device. `search_notes` finds passages, `answer_from_notes` answers a question \
    from them with a small local model and says where each part comes from, `summarize` shortens a note or a text. Notes have URIs, \
    which resources/read and the tools take.";

/// The same about deleting.
const FORGET_INSTRUCTIONS: &str = " `forget` deletes and cannot be undone: ask the user first.";

impl ServerHandler for Mcp {
    fn get_info(&self) -> ServerConfig {
        let mut instructions = INSTRUCTIONS.to_owned();
        if self.forgets {
            instructions.push_str(FORGET_INSTRUCTIONS);
        }
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let mut info = ServerConfig::new(capabilities).with_instructions(instructions);
        info.server_info =
            Implementation::new("refrain", env!("CARGO_PKG_VERSION")).with_title("Refrain: your notes");
        info
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        match request.and_then(|request| request.cursor) {
            // All tools are on one page.
            Some(_) => Err(wrong_cursor()),
            None => Ok(ListToolsResult::with_all_items(self.tools().collect())),
        }
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let has_tool = self.tools().any(|tool| tool.name == request.name);
        let name = if has_tool { &*request.name } else { "" };
        let call = Call::read(name, &arguments).map_err(|error| invalid(&error))?;
        drop(arguments);
        let result = match call {
            Call::Search(call) => self.search(call, context).await,
            Call::Answer(call) => self.answer(call, context).await,
            Call::Summarize(call) => self.summarize(call, context).await,
            Call::Forget(call) => self.forget(call).await,
        };
        // The arguments were fine and the work was not: the client's model should read why.
        Ok(result
            .unwrap_or_else(|error| CallToolResult::error(vec![ContentBlock::text(error.message)]))
            .into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.resources(request.and_then(|request| request.cursor)).await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        match request.and_then(|request| request.cursor) {
            Some(_) => Err(wrong_cursor()),
            None => Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()])),
        }
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(self.resource(request.uri).await?.into())
    }
}
