//! A draft source of the app: a book of phrases that this user often writes.
//!
//! A source may be wrong at will. The target model checks every token, so a source changes speed and never
//! the text. The reliability table learns the share of this source's tokens that come true.
//!
//! ```sh
//! cargo run --release --example own_source
//! ```

use std::error::Error;
use std::path::Path;

use refrain::drafting::{Anchor, Candidate, Candidates, Cursor, DraftSource, EvidenceClass};
use refrain::{
    Engine, EngineOptions, Event, GenerateOptions, Role, SessionOptions, SpecialTokens, Stats, TokenId,
    Tokenizer,
};

const PHRASES: [&str; 3] = [
    "Thank you for your message. I am sorry, but",
    "I look forward to hearing from you.\n\nBest regards,",
    "Unfortunately I cannot come.",
];

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf"));
    let engine = Engine::open(model, EngineOptions::default())?;

    let (plain, _) = reply(&engine, None)?;
    let (text, stats) = reply(&engine, Some(Box::new(PhraseBook::new(engine.tokenizer())?)))?;
    assert_eq!(plain, text, "a source never changes the output");
    println!("{text}\n");
    for source in &stats.sources {
        println!("{}: {} drafted, {} accepted", source.name, source.drafted, source.accepted);
    }
    Ok(())
}

fn reply(engine: &Engine, source: Option<Box<dyn DraftSource>>) -> Result<(String, Stats), Box<dyn Error>> {
    let mut options = SessionOptions::default();
    options.history = false;
    let mut session = engine.session(options)?;
    if let Some(source) = source {
        session.add_source(source)?;
    }
    session.append_turn(
        Role::User,
        "Write a reply to the message.\n\nDear Ada,\n\nCan we meet on 4 May?\n\nRafael",
    )?;
    let mut text = String::new();
    let mut options = GenerateOptions::default();
    options.max_tokens = 80;
    for event in session.generate(options)? {
        match event? {
            Event::Token(token) => text.push_str(&token.text),
            Event::Done(summary) => return Ok((text, summary.stats)),
            _ => {}
        }
    }
    Err("a generation ends with its statistics".into())
}

/// Phrases as tokens. A cursor is a place in one of them.
struct PhraseBook {
    phrases: Vec<Vec<TokenId>>,
}

impl PhraseBook {
    fn new(tokenizer: &Tokenizer) -> Result<Self, Box<dyn Error>> {
        let encode = |phrase: &&str| tokenizer.encode(phrase, SpecialTokens::AsText);
        Ok(Self { phrases: PHRASES.iter().map(encode).collect::<Result<_, _>>()? })
    }

    /// Phrase number and place, packed into the 64 bits of a cursor.
    fn cursor(phrase: usize, place: usize) -> Cursor {
        Cursor((phrase as u64) << 32 | place as u64)
    }

    fn token_at(&self, Cursor(bits): Cursor) -> Option<TokenId> {
        self.phrases.get((bits >> 32) as usize)?.get(bits as u32 as usize).copied()
    }
}

impl DraftSource for PhraseBook {
    fn name(&self) -> &str {
        "phrase book"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    /// Every phrase with a beginning that equals the end of the text.
    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        for (number, phrase) in self.phrases.iter().enumerate() {
            let longest = (1..phrase.len()).rev().find(|&len| committed.ends_with(&phrase[..len]));
            if let Some(len) = longest {
                out.push(Anchor::new(Self::cursor(number, len), len as u32));
            }
        }
        out.sort_by_key(|anchor| std::cmp::Reverse(anchor.match_len));
    }

    /// The next token of each phrase.
    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, &cursor) in frontier.iter().enumerate() {
            if let Some(token) = self.token_at(cursor) {
                let mut candidate = Candidate::new(parent as u32, token, 0.6, Cursor(cursor.0 + 1));
                candidate.match_len = cursor.0 as u32;
                out.push(candidate);
            }
        }
    }

    // The book does not depend on the text, so there is nothing to observe or to forget.
    fn truncate(&mut self, _len: usize) {}

    fn memory_usage(&self) -> u64 {
        self.phrases.iter().map(|phrase| (phrase.len() * size_of::<TokenId>()) as u64).sum()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Self { phrases: self.phrases.clone() })
    }
}
