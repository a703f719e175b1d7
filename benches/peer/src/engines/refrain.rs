//! Refrain, through its public model interface.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use refrain::internals::kernels::{Kernels, Pool};
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::checkpoint::Checkpoint;
use refrain::device::IsaKind;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{KvType, Quantize, SessionOptions, TokenId, Tokenizer};

use super::{Engine, KvKind, Logits, Result};

/// A loaded model with its threads.
pub struct RefrainModel {
    model: Model,
    #[cfg_attr(not(feature = "llama"), expect(dead_code, reason = "held as llama.cpp holds its own; only `text` reads it"))]
    tokenizer: Tokenizer,
    kernels: Kernels,
    pool: Pool,
}

impl RefrainModel {
    /// Loads weights and the tokenizer, because llama.cpp loads both too. `isa` is the name of the instruction set.
    pub fn load(path: &Path, n_threads: usize, isa: Option<&str>) -> Result<Self> {
        Self::load_as(path, n_threads, isa, Quantize::default())
    }

    /// As [`load`](Self::load), with these types in memory.
    pub fn load_as(path: &Path, n_threads: usize, isa: Option<&str>, quantize: Quantize) -> Result<Self> {
        let kernels = match isa {
            None => Kernels::detect(),
            Some(name) => IsaKind::ALL
                .iter()
                .copied()
                .find(|isa| isa.name() == name)
                .and_then(Kernels::with_isa)
                .ok_or_else(|| format!("this CPU has no instruction set {name}"))?,
        };
        let checkpoint = Checkpoint::open(path)?;
        let tokenizer = checkpoint.tokenizer()?;
        let model = Model::load(&checkpoint, LoadOptions { quantize, ..LoadOptions::default() })?;
        Ok(Self { model, tokenizer, kernels, pool: Pool::try_new(n_threads)? })
    }

    /// Streams a packed file within a budget for the whole process, in bytes.
    pub fn stream(path: &Path, n_threads: usize, memory: u64) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let tokenizer = checkpoint.tokenizer()?;
        let streaming = StreamOptions::new(Pinned::Memory(memory));
        let options = LoadOptions { streaming: Some(&streaming), ..LoadOptions::default() };
        let model = Model::load(&checkpoint, options)?;
        Ok(Self { model, tokenizer, kernels: Kernels::detect(), pool: Pool::try_new(n_threads)? })
    }

    /// The model's tokenizer.
    #[cfg(feature = "llama")]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens of the model.
    pub fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
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
    /// A copy of the cache, and the type of both.
    marked: Option<KvCache>,
    kv_type: KvType,
    workspace: Workspace,
    batch: Batch,
    parents: Vec<u32>,
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
        let kv_type = match kv {
            KvKind::F16 => KvType::F16,
            KvKind::F32 => KvType::F32,
            KvKind::Q8_0 => KvType::Q8_0,
        };
        Ok(Self {
            loaded,
            kv: KvCache::new(config, kv_type, n_slots)?,
            marked: None,
            kv_type,
            workspace: Workspace::new(config),
            batch: Batch::new(),
            parents: Vec::new(),
            prefill_chunk: SessionOptions::default().prefill_chunk,
            rows: Vec::new(),
            logits: Vec::new(),
        })
    }

    /// A pass over the batch.
    fn forward(&mut self, end: PassEnd) -> Result<()> {
        let never = AtomicBool::new(false);
        let compute = self.compute();
        self.loaded.model.forward(compute, &self.batch, &mut self.kv, &mut self.workspace, end, &never)?;
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

    fn clear(&mut self) -> Result<()> {
        self.kv.truncate(0);
        Ok(())
    }

    /// As in a session: prefills all but the newest token in chunks, then runs the newest one as a row.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        let (newest, before) = tokens.split_last().ok_or("a prompt has a token")?;
        for chunk in before.chunks(self.prefill_chunk) {
            self.batch.set_chain(self.kv.len(), &ids(chunk));
            self.forward(PassEnd::KeysAndValues)?;
            self.kv.commit_all(&self.batch);
        }
        self.verify(&[*newest], Logits::Last)?;
        self.keep(1)
    }

    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()> {
        // A chain would be committed as a whole or not at all; of a tree, any path is.
        self.parents.clear();
        self.parents.extend((0..tokens.len() as u32).map(|row| row.saturating_sub(1)));
        self.batch.set_tree(self.kv.len(), &ids(tokens), &self.parents, tokens.len());
        self.forward(PassEnd::Hidden)?;
        let n_rows = tokens.len() as u32;
        self.rows.clear();
        self.rows.extend(if logits == Logits::All { 0..n_rows } else { n_rows - 1..n_rows });
        let compute = self.compute();
        self.loaded.model.logits(compute, &mut self.workspace, &self.rows, &mut self.logits)?;
        Ok(())
    }

    fn keep(&mut self, n_rows: usize) -> Result<()> {
        // A pass of which nothing is committed has changed nothing.
        if n_rows > 0 {
            self.kv.commit(0..n_rows);
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        let at = self.rows.iter().position(|&r| r as usize == row).expect("a row that was projected");
        let vocab_size = self.loaded.model.config().vocab_size;
        &self.logits[at * vocab_size..][..vocab_size]
    }

    fn mark(&mut self) -> Result<()> {
        let mut marked = match self.marked.take() {
            Some(marked) => marked,
            None => KvCache::new(self.loaded.model.config(), self.kv_type, self.kv.n_slots())?,
        };
        marked.copy_from(&self.kv);
        self.marked = Some(marked);
        Ok(())
    }

    fn rewind(&mut self) -> Result<()> {
        self.kv.copy_from(self.marked.as_ref().ok_or("nothing is marked")?);
        Ok(())
    }
}

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId).collect()
}
