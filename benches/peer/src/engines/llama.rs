//! llama.cpp, through the crate llama-cpp-2, with the settings of llama.cpp's own bench.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::path::Path;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::context::session::{LlamaStateSeqFlags, SeqState};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;

use super::{BATCH_LEN, Engine, KvKind, Logits, Result};

/// Whether attention runs fused. The faster setting depends on the rows and the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FlashAttention {
    Off,
    On,
}

/// How rows that are not kept are taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rollback {
    /// Removes positions: models without recurrent layers.
    Remove,
    /// A second sequence shares the state before a pass. If not all rows are kept, it becomes the first sequence again, and
    /// the kept rows are computed once more in front of the next pass.
    Copy,
    /// Recurrent layers keep the states after the last rows of a pass, up to so many (`n_rs_seq`).
    States(u32),
}

/// Kept rows that a pass may compute once more. More of them are computed in a pass of their own.
const AGAIN_MAX: usize = 16;

/// llama.cpp plans the graph of LFM2 for a fixed number of nodes, of which each state takes some; with more states it ends the process.
const LFM2_STATES_MAX: u32 = 16;

/// The sequence that is decoded, and that of [`Rollback::Copy`].
const SEQUENCE: i32 = 0;
const COPY: i32 = 1;

/// llama.cpp, started once per process.
pub struct LlamaModels {
    backend: LlamaBackend,
    pub(super) n_threads: i32,
}

impl LlamaModels {
    /// With `logs`, llama.cpp writes its messages to stderr. They name the buffers, repacked ones (`CPU_REPACK`) among
    /// them.
    pub fn start(n_threads: usize, logs: bool) -> Result<Self> {
        let mut backend = LlamaBackend::init()?;
        if !logs {
            backend.void_logs();
        }
        Ok(Self { backend, n_threads: i32::try_from(n_threads)? })
    }

    /// Loads a model. With `mmap`, llama.cpp's default, weights that are not repacked stay in the mapped file.
    pub fn load(&self, path: &Path, mmap: bool) -> Result<LlamaModel> {
        let params = LlamaModelParams::default().with_use_mmap(mmap);
        Ok(LlamaModel::load_from_file(&self.backend, path, &params)?)
    }

    /// The ways of rolling back up to `n_rows_max` rows that a model allows: one, or [`Rollback::Copy`] and, where llama.cpp has it for
    /// the architecture, [`Rollback::States`], for fewer rows if it has no more.
    pub fn rollbacks(&self, model: &LlamaModel, n_rows_max: u32) -> Result<Vec<Rollback>> {
        if !model.is_recurrent() && !model.is_hybrid() {
            return Ok(vec![Rollback::Remove]);
        }
        let mut rollbacks = vec![Rollback::Copy];
        // llama.cpp ignores the number for architectures without snapshots, and then cannot remove a row.
        let mut probe = self.sequence(model, 8, FlashAttention::Off, KvKind::F16, Rollback::States(1))?;
        probe.verify(&[0, 0], Logits::Last)?;
        if probe.keep(1).is_ok() {
            let architecture = model.meta_val_str("general.architecture")?;
            let n_states_max = if architecture == "lfm2" { LFM2_STATES_MAX } else { n_rows_max };
            rollbacks.push(Rollback::States(n_rows_max.min(n_states_max)));
        }
        Ok(rollbacks)
    }

    /// A sequence of at most `n_slots` positions.
    pub fn sequence<'m>(
        &self,
        model: &'m LlamaModel,
        n_slots: usize,
        flash_attention: FlashAttention,
        kv: KvKind,
        rollback: Rollback,
    ) -> Result<Llama<'m>> {
        let kv_type = || match kv {
            KvKind::F16 => KvCacheType::F16,
            KvKind::F32 => KvCacheType::F32,
            KvKind::Q8_0 => KvCacheType::Q8_0,
        };
        let policy = match flash_attention {
            FlashAttention::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            FlashAttention::On => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        };
        // Rows that are computed once more need slots too.
        let n_slots = if rollback == Rollback::Copy { n_slots + AGAIN_MAX } else { n_slots };
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(u32::try_from(n_slots)?))
            .with_n_batch(BATCH_LEN as u32)
            .with_n_ubatch(BATCH_LEN as u32)
            .with_n_threads(self.n_threads)
            .with_n_threads_batch(self.n_threads)
            .with_type_k(kv_type())
            .with_type_v(kv_type())
            .with_n_seq_max(if rollback == Rollback::Copy { 2 } else { 1 })
            .with_n_rs_seq(if let Rollback::States(n_states) = rollback { n_states } else { 0 })
            .with_kv_unified(true)
            .with_flash_attention_policy(policy);
        Ok(Llama {
            context: model.new_context(&self.backend, params)?,
            batch: LlamaBatch::new(BATCH_LEN, 1),
            flash_attention,
            rollback,
            len: 0,
            again: Vec::new(),
            rows: Vec::new(),
            n_before: 0,
            marked: None,
        })
    }
}

/// One sequence.
pub struct Llama<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    flash_attention: FlashAttention,
    rollback: Rollback,
    /// Kept positions in the memory.
    len: usize,
    /// Kept tokens behind them, which are computed once more.
    again: Vec<u32>,
    /// The rows of the last pass.
    rows: Vec<u32>,
    /// Rows of the last pass's batch before these.
    n_before: usize,
    /// The state, and `len` and `again` with it.
    marked: Option<(SeqState, usize, Vec<u32>)>,
}

impl Llama<'_> {
    /// Computes `again` and then `tokens`, behind the kept positions.
    fn decode(&mut self, tokens: &[u32], is_wanted: impl Fn(usize) -> bool) -> Result<()> {
        self.batch.clear();
        let all = self.again.iter().chain(tokens).zip(self.len..);
        for (row, (&token, position)) in all.enumerate() {
            let wanted = row.checked_sub(self.again.len()).is_some_and(&is_wanted);
            let token = LlamaToken(i32::try_from(token)?);
            self.batch.add(token, i32::try_from(position)?, &[SEQUENCE], wanted)?;
        }
        self.context.decode(&mut self.batch)?;
        self.context.synchronize();
        Ok(())
    }

    /// Replaces a sequence by another, or by nothing if it is empty.
    fn replace(&mut self, from: i32, to: i32) -> Result<()> {
        self.remove(to, 0)?;
        self.context.copy_kv_cache_seq(from, to, None, None)?;
        Ok(())
    }

    fn remove(&mut self, sequence: i32, from: usize) -> Result<()> {
        let first = if from == 0 { None } else { Some(u32::try_from(from)?) };
        if !self.context.clear_kv_cache_seq(Some(sequence.unsigned_abs()), first, None)? {
            return Err("llama.cpp could not forget positions".into());
        }
        Ok(())
    }

    /// Computes kept tokens that wait for the next pass.
    fn settle(&mut self) -> Result<()> {
        if !self.again.is_empty() {
            self.decode(&[], |_| false)?;
            self.len += self.again.len();
            self.again.clear();
            self.replace(SEQUENCE, COPY)?;
        }
        Ok(())
    }
}

impl Engine for Llama<'_> {
    fn name(&self) -> &'static str {
        match (self.flash_attention, self.rollback) {
            (FlashAttention::Off, Rollback::Remove) => "llama.cpp",
            (FlashAttention::On, Rollback::Remove) => "llama.cpp, flash attention",
            (FlashAttention::Off, Rollback::Copy) => "llama.cpp, copied states",
            (FlashAttention::On, Rollback::Copy) => "llama.cpp, flash attention, copied states",
            (FlashAttention::Off, Rollback::States(_)) => "llama.cpp, states of rows",
            (FlashAttention::On, Rollback::States(_)) => "llama.cpp, flash attention, states of rows",
        }
    }

    fn clear(&mut self) -> Result<()> {
        self.context.clear_kv_cache();
        self.len = 0;
        self.again.clear();
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        self.settle()?;
        tokens.chunks(BATCH_LEN).try_for_each(|chunk| {
            self.verify(chunk, Logits::Last)?;
            self.keep(chunk.len())
        })
    }

    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()> {
        if self.again.len() > AGAIN_MAX {
            self.settle()?;
        }
        self.n_before = self.again.len();
        self.rows.clear();
        self.rows.extend(tokens);
        self.decode(tokens, |row| logits == Logits::All || row + 1 == tokens.len())
    }

    fn keep(&mut self, n_rows: usize) -> Result<()> {
        let all_kept = n_rows == self.rows.len();
        if self.rollback != Rollback::Copy {
            self.len += n_rows;
            return if all_kept { Ok(()) } else { self.remove(SEQUENCE, self.len) };
        }
        if all_kept {
            self.len += self.again.len() + n_rows;
            self.again.clear();
            return self.replace(SEQUENCE, COPY);
        }
        self.again.extend(&self.rows[..n_rows]);
        self.replace(COPY, SEQUENCE)
    }

    fn rollback_max(&self) -> usize {
        if let Rollback::States(n_states) = self.rollback { n_states as usize } else { usize::MAX }
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.get_logits_ith((self.n_before + row) as i32)
    }

    fn mark(&mut self) -> Result<()> {
        let state = self.context.state_seq_get(SEQUENCE, LlamaStateSeqFlags::empty())?;
        self.marked = Some((state, self.len, self.again.clone()));
        Ok(())
    }

    fn rewind(&mut self) -> Result<()> {
        let Some((state, len, again)) = &self.marked else { return Err("nothing is marked".into()) };
        self.context.clear_kv_cache();
        self.context.state_seq_set(state, SEQUENCE)?;
        self.len = *len;
        self.again.clone_from(again);
        if self.rollback == Rollback::Copy {
            self.replace(SEQUENCE, COPY)?;
        }
        Ok(())
    }
}

/// The CPU features that llama.cpp was compiled with.
#[allow(unsafe_code)]
pub fn system_info() -> String {
    // SAFETY: the function has no arguments and returns a string of the library that ends in zero and lives until the
    // next call. It is copied here, and nothing else in this program calls it.
    let text = unsafe { CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info()) };
    text.to_string_lossy().trim().to_owned()
}
