//! llama.cpp, through the crate llama-cpp-2, with the settings of llama.cpp's own bench.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::path::Path;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;

use super::{BATCH_LEN, Engine, KvKind, Logits, Result};

/// Whether attention runs fused. The faster setting depends on the rows and the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashAttention {
    Off,
    On,
}

/// llama.cpp, started once per process.
pub struct LlamaModels {
    backend: LlamaBackend,
    n_threads: i32,
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

    /// A sequence of at most `n_slots` positions.
    pub fn sequence<'m>(
        &self,
        model: &'m LlamaModel,
        n_slots: usize,
        flash_attention: FlashAttention,
        kv: KvKind,
    ) -> Result<Llama<'m>> {
        let kv_type = || if kv == KvKind::F16 { KvCacheType::F16 } else { KvCacheType::Q8_0 };
        let policy = match flash_attention {
            FlashAttention::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            FlashAttention::On => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        };
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(u32::try_from(n_slots)?))
            .with_n_batch(BATCH_LEN as u32)
            .with_n_ubatch(BATCH_LEN as u32)
            .with_n_threads(self.n_threads)
            .with_n_threads_batch(self.n_threads)
            .with_type_k(kv_type())
            .with_type_v(kv_type())
            .with_flash_attention_policy(policy);
        let context = model.new_context(&self.backend, params)?;
        Ok(Llama { context, batch: LlamaBatch::new(BATCH_LEN, 1), flash_attention, len: 0 })
    }
}

/// One sequence.
pub struct Llama<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    flash_attention: FlashAttention,
    /// Positions in the cache.
    len: usize,
}

impl Engine for Llama<'_> {
    fn name(&self) -> &'static str {
        match self.flash_attention {
            FlashAttention::Off => "llama.cpp",
            FlashAttention::On => "llama.cpp, flash attention",
        }
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if !self.context.clear_kv_cache_seq(Some(0), Some(u32::try_from(len)?), None)? {
            return Err("llama.cpp could not forget positions".into());
        }
        self.len = self.len.min(len);
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        tokens.chunks(BATCH_LEN).try_for_each(|chunk| self.verify(chunk, Logits::Last))
    }

    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()> {
        self.batch.clear();
        for (row, &token) in tokens.iter().enumerate() {
            let wanted = logits == Logits::All || row + 1 == tokens.len();
            let position = i32::try_from(self.len + row)?;
            self.batch.add(LlamaToken(i32::try_from(token)?), position, &[0], wanted)?;
        }
        self.context.decode(&mut self.batch)?;
        self.context.synchronize();
        self.len += tokens.len();
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.get_logits_ith(row as i32)
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
