//! The vocabulary of a tokenizer as the parser needs it: a trie of the tokens' bytes, and tokenisation of forced text.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{ParserFactory, panic_utils};
use refrain::{Engine, SpecialTokens, TokenId, Tokenizer};

use crate::error::{VocabularyError, brief};
use crate::limits::{TOKEN_BYTES_MAX, parser_limits};

/// The tokens of a model, prepared for grammars. Build it once per tokenizer; clones share it.
///
/// Memory: about 40 bytes per byte of all tokens (several tries over parts of the vocabulary).
#[derive(Clone)]
pub struct Vocabulary {
    shared: Arc<Shared>,
}

struct Shared {
    words: Arc<Words>,
    factory: ParserFactory,
    /// The token of each byte, if there is one.
    byte_tokens: Vec<Option<TokenId>>,
}

/// The owner of the tokenizer.
enum Owner {
    Engine(Engine),
    Tokenizer(Arc<Tokenizer>),
}

/// The tokenizer and the trie of its tokens.
struct Words {
    owner: Owner,
    trie: TokTrie,
}

impl Vocabulary {
    /// The vocabulary of an engine's model. It keeps a handle to the engine.
    ///
    /// # Errors
    /// [`VocabularyError`].
    pub fn of_engine(engine: &Engine) -> Result<Self, VocabularyError> {
        Self::build(Owner::Engine(engine.clone()))
    }

    /// The vocabulary of a tokenizer without a model.
    ///
    /// # Errors
    /// [`VocabularyError`].
    pub fn of_tokenizer(tokenizer: Arc<Tokenizer>) -> Result<Self, VocabularyError> {
        Self::build(Owner::Tokenizer(tokenizer))
    }

    fn build(owner: Owner) -> Result<Self, VocabularyError> {
        let tokenizer = owner.tokenizer();
        let ends: Vec<u32> = tokenizer.eos().iter().map(|id| id.0).collect();
        let Some(&end) = ends.first() else { return Err(VocabularyError::NoEndToken) };
        let words: Vec<Vec<u8>> =
            (0..tokenizer.vocab_size() as u32).map(|id| word(tokenizer, TokenId(id))).collect();
        let mut byte_tokens = vec![None; 256];
        for (id, word) in (0..).zip(&words) {
            if let &[byte] = word.as_slice() {
                byte_tokens[usize::from(byte)].get_or_insert(TokenId(id));
            }
        }
        let built = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let info = TokRxInfo::new(words.len() as u32, end);
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
            let words = Arc::new(Words { owner, trie });
            let env: TokEnv = words.clone();
            let mut factory = ParserFactory::new_simple(&env)?;
            factory.quiet();
            *factory.limits_mut() = parser_limits();
            Ok((words, factory))
        }));
        let (words, factory) = built.map_err(|error| VocabularyError::Refused { reason: brief(&error) })?;
        Ok(Self { shared: Arc::new(Shared { words, factory, byte_tokens }) })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.shared.words.owner.tokenizer()
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.shared.factory
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        &self.shared.words.trie
    }

    /// Whether a token ends the output.
    pub(crate) fn is_end(&self, token: TokenId) -> bool {
        self.tokenizer().eos().contains(&token)
    }

    /// The token of a single byte; `None` if the vocabulary lacks it.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.shared.byte_tokens[usize::from(byte)]
    }

    /// The tokens of forced bytes, as the model's tokenizer would give them.
    pub(crate) fn tokenize(&self, bytes: &[u8]) -> Vec<u32> {
        self.shared.words.tokenize_bytes(bytes)
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokenizer", self.tokenizer()).finish_non_exhaustive()
    }
}

impl Owner {
    fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Engine(engine) => engine.tokenizer(),
            Self::Tokenizer(tokenizer) => tokenizer,
        }
    }
}

/// The bytes of a token in the trie. Control tokens have a marker before their text, so that no text produces them. Tokens
/// without bytes are empty: never allowed.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let Some(bytes) = tokenizer.token_bytes(id) else { return Vec::new() };
    let mut word = Vec::with_capacity(bytes.len() + 1);
    if tokenizer.is_special(id) {
        word.push(TokTrie::SPECIAL_TOKEN_MARKER);
    }
    word.extend_from_slice(bytes);
    if word.len() > TOKEN_BYTES_MAX { Vec::new() } else { word }
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokens with exactly these bytes, up to the first byte that has no token.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            for part in [self.tokenize_text(chunk.valid()), self.tokenize_greedily(chunk.invalid())] {
                tokens.extend(part.tokens);
                if part.is_cut {
                    return tokens;
                }
            }
        }
        tokens
    }
}

/// The tokens of a text; cut before a byte that has no token.
struct Tokens {
    tokens: Vec<u32>,
    is_cut: bool,
}

impl Words {
    /// As the model's tokenizer, if its tokens have exactly the bytes of `text`. A sentence-piece tokenizer may put a space
    /// before a text, and a vocabulary may lack bytes.
    fn tokenize_text(&self, text: &str) -> Tokens {
        let tokenizer = self.owner.tokenizer();
        let encoded = tokenizer.encode(text, SpecialTokens::AsText).unwrap_or_default();
        let bytes_of = |tokens: &[TokenId]| -> Vec<u8> {
            tokens.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default()).copied().collect()
        };
        // After a character that no piece joins, the rest is tokenised without the space.
        let fits = |tokens: &[TokenId]| bytes_of(tokens) == text.as_bytes();
        let without_space = encoded.get(1..).unwrap_or_default();
        let found = [encoded.as_slice(), without_space].into_iter().find(|tokens| fits(tokens));
        match found {
            Some(tokens) => Tokens { tokens: tokens.iter().map(|id| id.0).collect(), is_cut: false },
            None => self.tokenize_greedily(text.as_bytes()),
        }
    }

    /// The longest token at each place.
    fn tokenize_greedily(&self, bytes: &[u8]) -> Tokens {
        let mut tokens = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (token, len) = self.trie.prefix_token_id(rest);
            if len == 0 {
                return Tokens { tokens, is_cut: true };
            }
            tokens.push(token);
            rest = &rest[len..];
        }
        Tokens { tokens, is_cut: false }
    }
}
