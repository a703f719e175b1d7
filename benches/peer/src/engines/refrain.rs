//! Refrain, through its public model interface.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use refrain::internals::kernels::{Kernels, Pool};
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{Checkpoint, IsaKind, KvType, SessionOptions, TokenId, Tokenizer};

use super::{Engine, KvKind, Logits, Result};

/// A loaded model with its threads.
pub struct RefrainModel {
    model: Model,
    tokenizer: Tokenizer,
    kernels: Kernels,
    pool: Pool,
}

impl RefrainModel {
    /// Loads weights and the tokenizer, because llama.cpp loads both too. `isa` is the name of the instruction set.
    pub fn load(path: &Path, n_threads: usize, isa: Option<&str>) -> Result<Self> {
        let kernels = match isa {
            None => Kernels::detect(),
            Some(name) => IsaKind::ALL
                .into_iter()
                .find(|isa| isa.name() == name)
                .and_then(Kernels::with_isa)
                .ok_or_else(|| format!("this CPU has no instruction set {name}"))?,
        };
        let checkpoint = Checkpoint::open(path)?;
        let tokenizer = checkpoint.tokenizer()?;
        let model = Model::load(&checkpoint, LoadOptions::default())?;
        Ok(Self { model, tokenizer, kernels, pool: Pool::try_new(n_threads)? })
    }

    /// The model's tokenizer.
    #[cfg(feature = "llama")]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The instruction set in use.
    pub fn isa(&self) -> &'static str {
        self.kernels.isa().name()
    }
}

/// One sequence.
pub struct Refrain<'m> {
    loaded: &'m RefrainModel,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    prefill_chunk: usize,
    /// Rows that the last pass projected.
    rows: Vec<u32>,
    /// `[rows.len(), vocab_size]`
    logits: Vec<f32>,
}

impl<'m> Refrain<'m> {
    /// A sequence of at most `n_slots` positions.
    pub fn new(loaded: &'m RefrainModel, n_slots: usize, kv: KvKind) -> Result<Self> {
        let config = loaded.model.config();
        Ok(Self {
            loaded,
            kv: KvCache::new(config, if kv == KvKind::F16 { KvType::F16 } else { KvType::Q8_0 }, n_slots)?,
            workspace: Workspace::new(config),
            batch: Batch::new(),
            prefill_chunk: SessionOptions::default().prefill_chunk,
            rows: Vec::new(),
            logits: Vec::new(),
        })
    }

    fn forward(&mut self, tokens: &[u32], end: PassEnd) -> Result<()> {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        self.batch.set_chain(self.kv.len(), &tokens);
        let never = AtomicBool::new(false);
        let compute = self.compute();
        self.loaded.model.forward(compute, &self.batch, &mut self.kv, &mut self.workspace, end, &never)?;
        self.kv.commit_all(&self.batch);
        Ok(())
    }

    fn compute(&self) -> Compute<'m> {
        Compute { kernels: self.loaded.kernels, pool: &self.loaded.pool }
    }
}

impl Engine for Refrain<'_> {
    fn name(&self) -> &'static str {
        "refrain"
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.kv.truncate(len);
        Ok(())
    }

    /// As in a session: prefills all but the newest token in chunks, then runs the newest one as a row.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        let (newest, before) = tokens.split_last().ok_or("a prompt has a token")?;
        for chunk in before.chunks(self.prefill_chunk) {
            self.forward(chunk, PassEnd::KeysAndValues)?;
        }
        self.verify(&[*newest], Logits::Last)
    }

    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()> {
        self.forward(tokens, PassEnd::Hidden)?;
        let n_rows = tokens.len() as u32;
        self.rows.clear();
        self.rows.extend(if logits == Logits::All { 0..n_rows } else { n_rows - 1..n_rows });
        let compute = self.compute();
        self.loaded.model.logits(compute, &mut self.workspace, &self.rows, &mut self.logits)?;
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        let at = self.rows.iter().position(|&r| r as usize == row).expect("a row that was projected");
        let vocab_size = self.loaded.model.config().vocab_size;
        &self.logits[at * vocab_size..][..vocab_size]
    }
}
