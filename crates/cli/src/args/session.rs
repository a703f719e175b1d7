//! The options of a session: draft sources, context.

use clap::{Args, ValueEnum};
use refrain::SessionOptions;
use refrain::state::WindowCache;
use refrain_program::args::KvArg;

use super::draft::DraftArgs;
use super::drafting::DraftingArgs;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) drafts: DraftArgs,
    #[command(flatten)]
    pub(crate) drafting: DraftingArgs,
    /// Context: tokens of prompt and output together.
    ///
    /// The default is the context that the model was trained for, as far as memory allows.
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// Which keys and values layers with a window keep. Never changes the output.
    #[arg(long, value_enum, default_value_t = WindowCacheArg::Full)]
    pub(crate) window_cache: WindowCacheArg,
}

impl SessionArgs {
    pub(crate) fn session_options(&self, namespace: &str) -> SessionOptions {
        self.drafting.apply(SessionOptions {
            context_len: self.ctx,
            kv_type: self.kv.kv_type(),
            window_cache: self.window_cache.window_cache(),
            drafting: self.drafts.drafting(),
            namespace: namespace.to_owned(),
            ..SessionOptions::default()
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum WindowCacheArg {
    /// Those of all tokens.
    Full,
    /// Those of the window and of the newest 768 tokens before it: less memory for long contexts. If more tokens change, as when
    /// a chat goes back by several turns, the whole text is computed again. Prompts are not kept.
    Bounded,
}

impl WindowCacheArg {
    fn window_cache(self) -> WindowCache {
        match self {
            Self::Full => WindowCache::Full,
            Self::Bounded => WindowCache::Bounded,
        }
    }
}
