//! [`Encoder`]: a loaded sentence encoder, shared by threads.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::cancel::CancelToken;
use crate::engine::cores::{self, THREADS_MAX};
use crate::engine::error::EngineProblem;
use crate::error::{GenerateError, LoadError};
use crate::kernels::{IsaKind, Kernels, Pool};
use crate::model::checkpoint::CheckpointError;
use crate::model::encoder::{
    EncoderConfig, EncoderWeights, EncoderWorkspace, is_encoder, parse_encoder_config,
};
use crate::model::transformer::Compute;
use refrain_containers::hf::{HfError, HfFolder};
use refrain_tokenizer::{SpecialTokens, Tokenizer, TokenizerParts as _, TokenizerProblem};
use refrain_trees::TokenId;
use xxhash_rust::xxh3::xxh3_64;

/// Options of an [`Encoder`]. None of them changes a vector.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EncoderOptions {
    /// Threads of a pass, including the caller's. `None`: one per physical performance core that the process may use.
    pub n_threads: Option<usize>,
    /// Instruction set of the kernels. `None`: the widest that the CPU supports.
    pub isa: Option<IsaKind>,
}

/// A sentence encoder of BERT's family (BERT, RoBERTa, XLM-RoBERTa), such as all-MiniLM-L6-v2: makes vectors of texts, so that texts of
/// similar meaning have a large dot product.
///
/// A vector has the same bits for any number of threads, instruction set, and other texts of the call. It is that of
/// sentence-transformers up to rounding: the pooling, the length of texts and the prompts are those of the folder.
///
/// ```no_run
/// use refrain::CancelToken;
/// use refrain::embedding::{Encoder, EncoderOptions};
///
/// let encoder = Encoder::open("all-MiniLM-L6-v2", EncoderOptions::default())?;
/// let vectors = encoder.encode(&["Peanuts make me ill.", "What am I allergic to?"], &CancelToken::new())?;
/// let likeness: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Encoder {
    config: EncoderConfig,
    weights: EncoderWeights,
    tokenizer: Tokenizer,
    kernels: Kernels,
    pool: Pool,
    workspace: Mutex<EncoderWorkspace>,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("config", &self.config)
            .field("isa", &self.kernels.isa())
            .field("n_threads", &self.pool.n_threads())
            .finish_non_exhaustive()
    }
}

impl Encoder {
    /// Whether `path` is a Hugging Face folder of a model that this type runs. Other models for embeddings are decoders, which an
    /// [`Engine`](crate::Engine) runs.
    pub fn is_encoder(path: impl AsRef<Path>) -> bool {
        let config = HfFolder::text_in(path.as_ref(), "config.json");
        config.ok().flatten().is_some_and(|config| is_encoder(&config))
    }

    /// Loads the Hugging Face folder at `path`: `config.json`, `model.safetensors`, `tokenizer.json` or `vocab.txt`, and the files that
    /// sentence-transformers writes beside them. All of a text's tokens fit the table of positions, so longer texts are cut.
    ///
    /// # Errors
    /// A file is missing or damaged, or the folder asks for something that is not implemented; the error names file and field.
    pub fn open(path: impl AsRef<Path>, options: EncoderOptions) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let kernels = match options.isa {
            None => Kernels::detect(),
            Some(isa) => Kernels::with_isa(isa).ok_or(EngineProblem::Isa { isa })?,
        };
        let n_threads = options.n_threads.unwrap_or_else(|| cores::n_performance_cores().min(THREADS_MAX));
        if n_threads == 0 || n_threads > THREADS_MAX {
            return Err(EngineProblem::Threads { given: n_threads, max: THREADS_MAX }.into());
        }
        let place = path.display().to_string();
        let text_of = |name: &str| -> Result<_, HfError> { HfFolder::text_in(path, name) };
        if text_of("config.json")?.is_none() {
            let reason = "no folder with a `config.json`";
            return Err(CheckpointError::NotAModel { path: place, reason }.into());
        }
        let config = parse_encoder_config(&place, &text_of)?;
        let folder = HfFolder::open(path)?;
        let tokenizer = Tokenizer::from_hf_folder(&folder)?;
        if tokenizer.vocab_size() > config.vocab_size {
            let (tokenizer, model) = (tokenizer.vocab_size(), config.vocab_size);
            return Err(LoadError::from(TokenizerProblem::VocabTooLarge { file: place, tokenizer, model }));
        }
        let weights = EncoderWeights::load(&folder, &config)?;
        let pool = Pool::try_new(n_threads).map_err(|source| EngineProblem::Spawn { n_threads, source })?;
        Ok(Self { config, weights, tokenizer, kernels, pool, workspace: Mutex::default() })
    }

    /// The vectors of texts, in their order, each of length 1. Texts are taken as they are: without [`query_prompt`](Self::query_prompt)
    /// or [`passage_prompt`](Self::passage_prompt). Of a text with more tokens than [`tokens_max`](Self::tokens_max), the first ones
    /// count, as in sentence-transformers.
    ///
    /// Calls from several threads take turns.
    ///
    /// # Errors
    /// A text is longer than the tokenizer's limit, the system gives too little memory, or `cancel` is set, which ends the work before
    /// the next layer.
    pub fn encode(&self, texts: &[&str], cancel: &CancelToken) -> Result<Vec<Vec<f32>>, GenerateError> {
        let texts: Vec<Vec<TokenId>> =
            texts.iter().map(|text| self.tokens(text)).collect::<Result<_, _>>()?;
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let compute = Compute { kernels: self.kernels, pool: &self.pool };
        Ok(self.weights.encode(&self.config, compute, &mut workspace, &texts, cancel.flag())?)
    }

    /// The tokens of a text, with those around it.
    fn tokens(&self, text: &str) -> Result<Vec<TokenId>, GenerateError> {
        let tokenizer = &self.tokenizer;
        let before = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let behind = tokenizer.closing();
        let lower = self.config.lowercases.then(|| text.to_lowercase());
        let own = tokenizer.encode(lower.as_deref().unwrap_or(text), SpecialTokens::AsText)?;
        let room = self.config.tokens_max - usize::from(before.is_some()) - usize::from(behind.is_some());
        let tokens: Vec<TokenId> =
            before.into_iter().chain(own.into_iter().take(room)).chain(behind).collect();
        // A vocabulary without tokens around a text, and a text without tokens.
        if tokens.is_empty() {
            let problem = TokenizerProblem::Missing {
                file: "tokenizer.json".to_owned(),
                missing: "a token that begins or ends a text".to_owned(),
            };
            return Err(GenerateError::from(problem));
        }
        Ok(tokens)
    }

    /// The tokens of a text that count: those that [`encode`](Self::encode) reads, and how many it leaves out.
    ///
    /// # Errors
    /// The text is longer than the tokenizer's limit.
    pub fn count_tokens(&self, text: &str) -> Result<(usize, usize), GenerateError> {
        let n_around =
            usize::from(self.tokenizer.adds_bos()) + usize::from(self.tokenizer.closing().is_some());
        let all = n_around + self.tokenizer.encode(text, SpecialTokens::AsText)?.len();
        let n_read = all.min(self.config.tokens_max);
        Ok((n_read, all - n_read))
    }

    /// The length of vectors.
    pub fn dimensions(&self) -> usize {
        self.config.hidden_dim
    }

    /// Tokens of a text that are read, those around it included.
    pub fn tokens_max(&self) -> usize {
        self.config.tokens_max
    }

    /// The text that the folder puts in front of a request; empty for most models.
    pub fn query_prompt(&self) -> &str {
        &self.config.query_prompt
    }

    /// The text that the folder puts in front of a passage; empty for most models.
    pub fn passage_prompt(&self) -> &str {
        &self.config.passage_prompt
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// A hash of all that vectors depend on: weights, tokenizer, pooling, length of texts. The prompts are not in it.
    pub fn identity(&self) -> u64 {
        let EncoderConfig { n_heads, norm_eps, first_position, pooling, tokens_max, lowercases, .. } =
            self.config;
        let (weights, words) = (self.weights.hash(), self.tokenizer.fingerprint());
        let all = format!(
            "{weights:032x} {words:016x} {n_heads} {norm_eps:e} {first_position} {pooling:?} {tokens_max} {lowercases}"
        );
        xxh3_64(all.as_bytes())
    }

    /// Bytes of the weights.
    pub fn memory_usage(&self) -> u64 {
        self.weights.size_bytes() as u64
    }

    /// Threads of a pass.
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }
}
