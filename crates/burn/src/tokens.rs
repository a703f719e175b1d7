//! The byte-level BPE of the fixture models: training, and documents as token ids.

use std::collections::HashSet;
use std::path::Path;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::Error;
use crate::world::document::{Document, END_OF_TEXT, MESSAGE_END, MESSAGE_START};
use crate::world::{self, Stage};

/// Entries of the vocabulary, the three special tokens and the 256 bytes included. The vocabulary is small because
/// embeddings are a large part of a small model, and because names are then split into several pieces. Copying such
/// names is the skill to learn.
pub const VOCABULARY: usize = 2048;

/// The split regex of Qwen2: digits stand alone, so numbers are copied digit by digit.
pub const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The name of this split in `tokenizer.ggml.pre`.
pub const SPLIT_NAME: &str = "qwen2";

/// Number of documents for training the merges.
const SAMPLE: u64 = 12_000;

/// Trains the tokenizer on the first documents of the corpus.
pub fn train(seed: u64) -> Result<Tokenizer, Error> {
    train_on(seed, SAMPLE, VOCABULARY)
}

/// Trains a tokenizer of `vocabulary` entries on the first `documents` documents.
pub fn train_on(seed: u64, documents: u64, vocabulary: usize) -> Result<Tokenizer, Error> {
    let mut tokenizer = Tokenizer::new(BPE::default());
    let split = Split::new(SplitPattern::Regex(SPLIT.to_owned()), SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, false, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
    tokenizer.with_decoder(Some(bytes));
    let special = [END_OF_TEXT, MESSAGE_START, MESSAGE_END].map(|text| AddedToken::from(text, true));
    let trainer = BpeTrainerBuilder::new()
        .vocab_size(vocabulary)
        .min_frequency(2)
        .special_tokens(special.to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let texts = (0..documents).map(|number| {
        let text = world::document(seed, number, Stage::Full).text();
        text.replace(MESSAGE_START, "").replace(MESSAGE_END, "").replace(END_OF_TEXT, "")
    });
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts)?;
    Ok(tokenizer)
}

/// Reads a tokenizer.json.
pub fn load(path: &Path) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_file(path)?)
}

/// The ids of a text. Special tokens inside it become their ids.
pub fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    Ok(tokenizer.encode_fast(text, false)?.get_ids().to_vec())
}

/// A document as ids, with a mark per token: whether the loss counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether the loss counts this token.
    pub learnt: Vec<bool>,
}

/// Encodes a document piece by piece: a learnt piece never shares a token with its neighbour. With `repeats`,
/// repetitions inside a prompt are learnt too.
pub fn row(tokenizer: &Tokenizer, document: &Document, repeats: bool) -> Result<Row, Error> {
    let mut row = Row { ids: Vec::new(), learnt: Vec::new() };
    for (text, learnt) in &document.pieces {
        row.ids.extend(encode(tokenizer, text)?);
        row.learnt.resize(row.ids.len(), *learnt);
    }
    if repeats {
        learn_repeats(&mut row);
    }
    Ok(row)
}

/// Marks prompt tokens that followed the same token before: repeated names and phrases. They train copying, and there
/// are six times as many of them as answer tokens. The rest of a prompt consists of unpredictable names.
fn learn_repeats(row: &mut Row) {
    let mut seen = HashSet::new();
    for at in 1..row.ids.len() {
        let pair = (row.ids[at - 1], row.ids[at]);
        if !seen.insert(pair) {
            row.learnt[at] = true;
        }
    }
}
