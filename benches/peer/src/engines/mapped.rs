//! llama.cpp on a mapped file without repacked copies of its weights, for files larger than memory. The safe interface has no name for
//! this setting.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use super::{LlamaModels, Result};

/// A model and a context of its own.
struct Mapped {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
}

/// Decodes `tokens` one by one with llama.cpp. Returns the seconds of each.
///
/// # Errors
/// The file cannot be loaded, or a pass fails.
pub fn decode_mapped(llama: &LlamaModels, path: &Path, tokens: &[u32]) -> Result<Vec<f64>> {
    let mapped = Mapped::load(llama, path, tokens.len())?;
    tokens.iter().map(|&token| mapped.decode(token)).collect()
}

#[allow(unsafe_code)]
impl Mapped {
    /// `llama` shows that the library is initialized.
    fn load(llama: &LlamaModels, path: &Path, n_slots: usize) -> Result<Self> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let n_slots = u32::try_from(n_slots)?;
        // SAFETY: both functions return plain values. The path ends in zero, and the loader copies it. `NonNull` refuses what failed, and
        // `Mapped` frees the rest once, the context first. The model outlives its context.
        unsafe {
            let mut params = sys::llama_model_default_params();
            params.use_extra_bufts = false;
            let model = sys::llama_model_load_from_file(path.as_ptr(), params);
            let model = NonNull::new(model).ok_or("llama.cpp cannot load the file")?;
            let mut params = sys::llama_context_default_params();
            (params.n_ctx, params.n_batch, params.n_ubatch) = (n_slots, 1, 1);
            (params.n_threads, params.n_threads_batch) = (llama.n_threads, llama.n_threads);
            let context = NonNull::new(sys::llama_init_from_model(model.as_ptr(), params));
            let Some(context) = context else {
                sys::llama_model_free(model.as_ptr());
                return Err("llama.cpp cannot make a context".into());
            };
            Ok(Self { model, context })
        }
    }

    fn decode(&self, token: u32) -> Result<f64> {
        let mut token = i32::try_from(token)?;
        let start = Instant::now();
        // SAFETY: the context is live. The batch refers to `token`, which outlives the call.
        let code = unsafe {
            let code = sys::llama_decode(self.context.as_ptr(), sys::llama_batch_get_one(&mut token, 1));
            sys::llama_synchronize(self.context.as_ptr());
            code
        };
        if code == 0 {
            Ok(start.elapsed().as_secs_f64())
        } else {
            Err(format!("llama.cpp: code {code}").into())
        }
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
