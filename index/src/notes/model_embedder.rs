//! An embedder that runs a model for embeddings on the engine.
//!
//! Sentence encoders (all-MiniLM-L6-v2 and its relatives) read a text in both directions; their folder says how rows become a vector.
//! Other checkpoints (Qwen3-Embedding and its relatives) are decoders: the vector of a text is the final hidden state of an end
//! token behind it, scaled to length 1. A request of a decoder follows an instruction that names the purpose; a passage stands alone.

use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use refrain::embedding::{Encoder, EncoderOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, KvType, Session, SessionOptions, SpecialTokens, TokenId,
};
use xxhash_rust::xxh3::xxh3_64;

use super::embedder::Embedder;

/// The end token of the Qwen family, which is not the end of a turn.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Tokens of a text that a decoder reads, the end token included. A passage of 120 words has about 200; one in a script that the
/// vocabulary hardly knows has a token per byte.
const TOKENS_MAX: usize = 1024;

/// Precedes a request to a decoder, in the form on which Qwen3-Embedding was trained (`Instruct: …`, then `Query:`).
const INSTRUCTION: &str =
    "Instruct: Given a question, find the passages of personal notes that answer it\nQuery:";

/// Makes vectors of texts with a model. Its vectors are those of the model's reference implementation up to rounding, and
/// the same bits for any number of threads and any instruction set.
///
/// Texts are computed one after the other by a decoder, and together by an encoder; by all threads of the model.
#[derive(Debug)]
pub struct ModelEmbedder {
    model: Model,
    /// Precedes a request.
    instruction: String,
    identity: u64,
}

#[derive(Debug)]
enum Model {
    Encoder(Box<Encoder>),
    Decoder(Box<Decoder>),
}

/// A causal model, with its end token.
struct Decoder {
    engine: Engine,
    end: TokenId,
    /// The session that computes. Its KV cache is empty or has an earlier text.
    session: Mutex<Session>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("engine", &self.engine)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// A model that cannot make vectors of texts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelEmbedderError {
    /// The vocabulary has no token that ends a text.
    #[error("the vocabulary has neither `<|endoftext|>` nor another token that ends a text")]
    NoEnd,
    /// The model could not be loaded.
    #[error(transparent)]
    Load(#[from] refrain::LoadError),
    /// The session could not be created.
    #[error(transparent)]
    Session(#[from] refrain::SessionError),
}

impl From<Encoder> for ModelEmbedder {
    /// An embedder with a sentence encoder. Requests and passages have the prompts of its folder.
    fn from(encoder: Encoder) -> Self {
        let identity = format!("encoder, {:016x}, {}", encoder.identity(), encoder.passage_prompt());
        let (instruction, identity) = (encoder.query_prompt().to_owned(), xxh3_64(identity.as_bytes()));
        Self { model: Model::Encoder(Box::new(encoder)), instruction, identity }
    }
}

impl ModelEmbedder {
    /// Opens the model at `path`: the folder of a [sentence encoder](Encoder::is_encoder), or a decoder as [`Engine::open`] takes it.
    /// Of the options, an encoder has the number of threads and the instruction set.
    ///
    /// # Errors
    /// [`ModelEmbedderError`].
    pub fn open(path: impl AsRef<Path>, options: EngineOptions) -> Result<Self, ModelEmbedderError> {
        if !Encoder::is_encoder(&path) {
            return Self::new(Engine::open(path, options)?);
        }
        let mut of_encoder = EncoderOptions::default();
        (of_encoder.n_threads, of_encoder.isa) = (options.n_threads, options.isa);
        Ok(Encoder::open(path, of_encoder)?.into())
    }

    /// An embedder with the engine's model, a decoder. The end token is `<|endoftext|>`, or the tokenizer's first end token. Texts are
    /// cut after 1024 tokens, or the model's context.
    ///
    /// # Errors
    /// [`ModelEmbedderError`].
    pub fn new(engine: Engine) -> Result<Self, ModelEmbedderError> {
        let tokenizer = engine.tokenizer();
        let of_family = tokenizer.token_id(END_OF_TEXT).filter(|&id| tokenizer.is_special(id));
        let end = of_family.or_else(|| tokenizer.eos().first().copied()).ok_or(ModelEmbedderError::NoEnd)?;
        let context_len = TOKENS_MAX.min(engine.config().context_len);
        let options = SessionOptions {
            context_len: Some(context_len),
            // The vectors of the reference; texts are short, and memory is used as far as they reach.
            kv_type: KvType::F32,
            drafting: Drafting::Off,
            history: false,
            ..SessionOptions::default()
        };
        let session = Mutex::new(engine.session(options)?);
        let (model, words) = (engine.model_identity(), tokenizer.fingerprint());
        // (Vectors of the first version were of texts without titles.)
        let identity = format!("last token, titled, {model}, {words:016x}, {}, {context_len}", end.0);
        let identity = xxh3_64(identity.as_bytes());
        let model = Model::Decoder(Box::new(Decoder { engine, end, session }));
        Ok(Self { model, instruction: INSTRUCTION.to_owned(), identity })
    }

    /// Replaces the text in front of a request. The default of a decoder is in English, in the form of Qwen3-Embedding, and that of an
    /// encoder the one of its folder; an empty one is for models that take requests as they are.
    #[must_use]
    pub fn with_instruction(mut self, instruction: impl Into<String>) -> Self {
        self.instruction = instruction.into();
        self
    }

    /// The vector of a text as it is, without a prompt.
    ///
    /// # Errors
    /// The text has no tokens in this vocabulary, the pass fails, or `cancel` is set, which ends the pass before its next layer.
    pub fn embed_text(
        &self,
        text: &str,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        match &self.model {
            Model::Decoder(decoder) => decoder.embed(text, cancel),
            Model::Encoder(encoder) => Ok(encoder.encode(&[text], cancel)?.remove(0)),
        }
    }
}

impl Decoder {
    fn embed(&self, text: &str, cancel: &CancelToken) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        let tokenizer = self.engine.tokenizer();
        let mut tokens: Vec<TokenId> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        tokens.extend(tokenizer.encode(text, SpecialTokens::AsText)?);
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.truncate(session.context_len() - 1);
        tokens.push(self.end);
        session.truncate(0)?;
        session.append_tokens(&tokens)?;
        let mut vector = session.last_hidden_state(cancel)?;
        normalize(&mut vector);
        Ok(vector)
    }
}

/// Scales to length 1. Zeros stay.
fn normalize(vector: &mut [f32]) {
    // In f64, in the order of the elements: the same bits everywhere.
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

impl Embedder for ModelEmbedder {
    /// A hash of the model, the tokenizer and the end token; of an encoder, of its pooling, its length of texts and its prompt too.
    fn identity(&self) -> u64 {
        self.identity
    }

    fn dimensions(&self) -> usize {
        match &self.model {
            Model::Encoder(encoder) => encoder.dimensions(),
            Model::Decoder(decoder) => decoder.engine.config().hidden_dim,
        }
    }

    /// 0.35 of a sentence encoder. With MiniLM, the best passages of the 87 questions of `fixtures/quality` that notes answer have 0.39
    /// or more; those of English questions without an answer have 0.26 or less, and of the others 0.20 to 0.72.
    fn similarity_min(&self) -> Option<f32> {
        match &self.model {
            Model::Encoder(_) => Some(0.35),
            Model::Decoder(_) => None,
        }
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Box<dyn Error + Send + Sync>> {
        let cancel = CancelToken::new();
        match &self.model {
            Model::Decoder(decoder) => texts.iter().map(|text| decoder.embed(text, &cancel)).collect(),
            Model::Encoder(encoder) if encoder.passage_prompt().is_empty() => {
                Ok(encoder.encode(texts, &cancel)?)
            }
            Model::Encoder(encoder) => {
                let prompt = encoder.passage_prompt();
                let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                Ok(encoder.encode(&texts, &cancel)?)
            }
        }
    }

    fn embed_query(&self, text: &str) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        self.embed_text(&format!("{}{text}", self.instruction), &CancelToken::new())
    }
}
