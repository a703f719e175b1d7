//! llama.cpp on a mapped file without repacked copies of its weights, for files larger than memory. The safe interface has no name for
//! this setting.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::{LlamaModels, Result};

/// A model and a context of its own, in which every pass continues the last one.
pub struct Mapped {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
    len: usize,
}

#[allow(unsafe_code)]
impl Mapped {
    /// Maps a file, for `n_slots` positions and passes of at most `n_rows_max` rows. `llama` shows that the library is initialized.
    ///
    /// # Errors
    /// The file cannot be loaded.
    pub fn load(llama: &LlamaModels, path: &Path, n_slots: usize, n_rows_max: usize) -> Result<Self> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let (n_slots, n_rows_max) = (u32::try_from(n_slots)?, u32::try_from(n_rows_max)?);
        // SAFETY: both functions return plain values. The path ends in zero, and the loader copies it. `NonNull` refuses what failed, and
        // `Mapped` frees the rest once, the context first. The model outlives its context.
        unsafe {
            let mut params = sys::llama_model_default_params();
            params.use_extra_bufts = false;
            let model = sys::llama_model_load_from_file(path.as_ptr(), params);
            let model = NonNull::new(model).ok_or("llama.cpp cannot load the file")?;
            let mut params = sys::llama_context_default_params();
            (params.n_ctx, params.n_batch, params.n_ubatch) = (n_slots, n_rows_max, n_rows_max);
            (params.n_threads, params.n_threads_batch) = (llama.n_threads, llama.n_threads);
            let context = NonNull::new(sys::llama_init_from_model(model.as_ptr(), params));
            let Some(context) = context else {
                sys::llama_model_free(model.as_ptr());
                return Err("llama.cpp cannot make a context".into());
            };
            Ok(Self { model, context, len: 0 })
        }
    }

    /// Runs tokens in one pass, with the logits of all of them, and keeps them.
    ///
    /// # Errors
    /// The pass fails.
    pub fn pass(&mut self, tokens: &[u32]) -> Result<()> {
        let n_tokens = i32::try_from(tokens.len())?;
        // SAFETY: the batch has room for the tokens, one sequence each, and is freed once. The context is live.
        let code = unsafe {
            let mut batch = sys::llama_batch_init(n_tokens, 0, 1);
            for (row, &token) in tokens.iter().enumerate() {
                *batch.token.add(row) = token as i32;
                *batch.pos.add(row) = (self.len + row) as i32;
                *batch.n_seq_id.add(row) = 1;
                **batch.seq_id.add(row) = 0;
                *batch.logits.add(row) = 1;
            }
            batch.n_tokens = n_tokens;
            let code = sys::llama_decode(self.context.as_ptr(), batch);
            sys::llama_synchronize(self.context.as_ptr());
            sys::llama_batch_free(batch);
            code
        };
        self.len += tokens.len();
        if code == 0 { Ok(()) } else { Err(format!("llama.cpp: code {code}").into()) }
    }
}

#[allow(unsafe_code)]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: both are live and freed nowhere else.
        unsafe {
            sys::llama_free(self.context.as_ptr());
            sys::llama_model_free(self.model.as_ptr());
        }
    }
}
