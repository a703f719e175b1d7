//! A mask for outputs that may call tools: free text, and from the opening of a call on, the grammar of calls.
//!
//! Most forms of calls have a marker, which counts where its form says so: outside of reasoning, or in headers only. In forms without one, the
//! beginning of an answer may be that of a call. As soon as it names a function, the grammar follows the answer from its first token on.
//!
//! The free text equals an output without tools, except that no token may have bytes behind the opening, so that the grammar begins with a token
//! of its own.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{Engine, LogitsProcessor, ProcessorError, TokenId};
use refrain_grammar::{Grammar, GrammarMask};

use super::request::Tools;
use super::tool_format::{Begins, ToolFormat, read_token};

/// The mask of one generation. Clones share it: one is among the generation's processors, and one computes between the passes.
#[derive(Clone)]
pub(crate) struct AutoMask(Arc<Mutex<Auto>>);

struct Auto {
    engine: Engine,
    format: &'static dyn ToolFormat,
    /// The names of the functions.
    names: Arc<[String]>,
    grammar: Grammar,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Tokens that were read.
    n_read: usize,
    /// Separates reasoning, in which a marker is only mentioned.
    splitter: ReasoningSplitter,
    /// The end of the free text; shorter than the longest marker.
    tail: Vec<u8>,
    /// The answer, as long as it may begin a call without a marker.
    answer: Option<Vec<u8>>,
    /// Tokens before the answer.
    n_before: usize,
    /// Tokens that have a marker with bytes behind it.
    surplus: Arc<[TokenId]>,
    /// The mask from the opening on.
    mask: Option<GrammarMask>,
    /// Tokens before the text of the grammar.
    n_free: usize,
}

impl AutoMask {
    /// A mask for an output after `prompt`. `grammar` begins behind the marker.
    pub(crate) fn new(
        engine: &Engine,
        format: &'static dyn ToolFormat,
        tools: &Tools,
        grammar: &Grammar,
        prompt: &[TokenId],
    ) -> Self {
        let names = tools.callable().iter().map(|function| function.name.clone()).collect();
        let tokenizer = engine.tokenizer();
        let markers = format.triggers();
        let has_surplus = |&token: &TokenId| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            let behind = &bytes[..bytes.len().saturating_sub(1)];
            markers
                .iter()
                .any(|marker| behind.windows(marker.len()).any(|window| window == marker.as_bytes()))
        };
        let surplus = (0..tokenizer.vocab_size() as u32).map(TokenId).filter(has_surplus).collect();
        Self(Arc::new(Mutex::new(Auto::new(engine, format, names, grammar, surplus, prompt))))
    }

    /// Computes the mask behind `output`, the tokens of the generation so far, before it is asked for. The output is the same.
    pub(crate) fn compute_ahead(&self, output: &[TokenId]) {
        self.lock().compute_ahead(output);
    }

    fn lock(&self) -> MutexGuard<'_, Auto> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogitsProcessor for AutoMask {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        self.lock().process(tokens, logits)
    }
}

impl Auto {
    fn new(
        engine: &Engine,
        format: &'static dyn ToolFormat,
        names: Arc<[String]>,
        grammar: &Grammar,
        surplus: Arc<[TokenId]>,
        prompt: &[TokenId],
    ) -> Self {
        Self {
            engine: engine.clone(),
            format,
            names,
            grammar: grammar.clone(),
            n_prompt: prompt.len(),
            n_read: prompt.len(),
            splitter: engine.tokenizer().reasoning_splitter(prompt),
            tail: Vec::new(),
            answer: Some(Vec::new()),
            n_before: prompt.len(),
            surplus,
            mask: None,
            n_free: 0,
        }
    }

    /// Reads the next token.
    fn read(&mut self, token: TokenId) {
        self.n_read += 1;
        let tokenizer = self.engine.tokenizer();
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        let might_call = self.format.may_call(&self.splitter);
        read_token(&mut self.splitter, tokenizer, token);
        if !self.format.may_call(&self.splitter) {
            self.tail.clear();
            (self.answer, self.n_before) = (Some(Vec::new()), self.n_read);
            return;
        }
        self.tail.extend_from_slice(bytes);
        if self.format.triggers().iter().any(|marker| self.tail.ends_with(marker.as_bytes())) {
            return self.begin(self.n_read);
        }
        let n_marker = self.format.triggers().iter().map(|marker| marker.len()).max().unwrap_or(0);
        self.tail.drain(..self.tail.len().saturating_sub(n_marker.saturating_sub(1)));
        // The token that ends the reasoning is no part of the answer.
        if !might_call {
            self.n_before = self.n_read;
            return;
        }
        let Some(mut answer) = self.answer.take() else { return };
        answer.extend_from_slice(bytes);
        match self.begins(&answer) {
            Begins::At(at) if at == answer.len() => self.begin(self.n_before),
            Begins::Perhaps => self.answer = Some(answer),
            _ => {}
        }
    }

    /// The text of the grammar begins behind so many tokens.
    fn begin(&mut self, n_free: usize) {
        let mut mask = self.grammar.mask();
        mask.begin_at(n_free);
        (self.mask, self.n_free) = (Some(mask), n_free);
    }

    /// Whether an answer begins a call.
    fn begins(&self, answer: &[u8]) -> Begins {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        match std::str::from_utf8(answer) {
            Ok(answer) => self.format.begins(answer, &names),
            // Openings are ASCII.
            Err(_) => Begins::Never,
        }
    }

    /// Forbids tokens that complete the opening and go on.
    fn forbid_surplus(&self, logits: &mut [f32]) {
        for token in &*self.surplus {
            if let Some(logit) = logits.get_mut(token.index()) {
                *logit = f32::NEG_INFINITY;
            }
        }
        // The longest end of the text that begins a marker. A shorter one cannot also: the marker's first byte comes once.
        let n_begun = |marker: &[u8]| (1..marker.len()).rev().find(|&n| self.tail.ends_with(&marker[..n]));
        let markers = self.format.triggers().iter().map(|marker| marker.as_bytes());
        let begun: Vec<&[u8]> = markers.filter_map(|marker| Some(&marker[n_begun(marker)?..])).collect();
        let answer = self.answer.as_ref().filter(|answer| !answer.is_empty());
        if begun.is_empty() && answer.is_none() {
            return;
        }
        let tokenizer = self.engine.tokenizer();
        // An opening without a marker ends with one of these.
        let may_end = |bytes: &[u8]| bytes.iter().rev().skip(1).any(|byte| matches!(byte, b'"' | b'('));
        for (id, logit) in (0..).zip(logits) {
            let bytes = tokenizer.token_bytes(TokenId(id)).unwrap_or_default();
            let goes_on = |rest: &&[u8]| bytes.strip_prefix(*rest).is_some_and(|behind| !behind.is_empty());
            let begins = || {
                let answer = answer.filter(|_| may_end(bytes))?;
                let answer = [answer.as_slice(), bytes].concat();
                let text = String::from_utf8_lossy(&answer);
                Some(matches!(self.begins(text.as_bytes()), Begins::At(at) if at < text.len()))
            };
            if begun.iter().any(goes_on) || begins() == Some(true) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn compute_ahead(&mut self, output: &[TokenId]) {
        while self.mask.is_none() && self.n_read < self.n_prompt + output.len() {
            self.read(output[self.n_read - self.n_prompt]);
        }
        if let (Some(mask), Some(behind)) =
            (&self.mask, output.get(self.n_free.saturating_sub(self.n_prompt)..))
        {
            mask.ahead().compute(behind);
        }
    }

    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() < self.n_read {
            // A step is repeated, from an earlier place.
            *self = Self::new(
                &self.engine,
                self.format,
                Arc::clone(&self.names),
                &self.grammar,
                Arc::clone(&self.surplus),
                &tokens[..self.n_prompt.min(tokens.len())],
            );
        }
        while self.mask.is_none() && self.n_read < tokens.len() {
            self.read(tokens[self.n_read]);
        }
        match &mut self.mask {
            Some(mask) => mask.process(tokens, logits),
            None => {
                self.forbid_surplus(logits);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use refrain::{
        EngineOptions, Event, FinishReason, GenerateOptions, Sampling, SessionOptions, SpecialTokens,
    };
    use refrain_grammar::Vocabulary;
    use serde_json::{Value, json};

    use super::*;
    use crate::work::Function;
    use crate::work::tool_format::hermes::HERMES;
    use crate::work::tool_format::{self, CallPart, Form, OutputReader, named};

    fn engine() -> Engine {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        Engine::open(path, EngineOptions::default()).unwrap()
    }

    #[test]
    fn free_text_is_free_and_a_call_is_not() {
        let engine = engine();
        let vocabulary = Vocabulary::of_engine(&engine).unwrap();
        let grammar = Grammar::choices(&vocabulary, ["xyz"]).unwrap();
        let tokenizer = engine.tokenizer();
        let encode = |text: &str| tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        let prompt = encode("A prompt that has <tool_call> in it");
        let mut mask = AutoMask::new(&engine, &HERMES, &Tools::default(), &grammar, &prompt);
        let mut tokens = prompt.clone();
        let mut allowed = |tokens: &[TokenId]| {
            let mut logits = vec![0.0; engine.config().vocab_size];
            mask.process(tokens, &mut logits).unwrap();
            let ids = (0..).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(id, _)| TokenId(id));
            ids.collect::<Vec<_>>()
        };
        // Each place is visited once, as a generation does.
        for token in encode("So: <tool_call>") {
            let may = allowed(&tokens);
            assert!(may.contains(&token) && may.len() > engine.config().vocab_size / 2);
            tokens.push(token);
        }
        let first = allowed(&tokens);
        let starts = |token: &TokenId| "xyz".as_bytes().starts_with(tokenizer.token_bytes(*token).unwrap());
        assert!(!first.is_empty() && first.iter().all(starts));
    }

    /// The copy of a grammar is made between the passes, and the masks are the same.
    #[test]
    fn masks_are_computed_ahead() {
        let engine = engine();
        let vocabulary = Vocabulary::of_engine(&engine).unwrap();
        let grammar = Grammar::choices(&vocabulary, ["xyz"]).unwrap();
        let encode = |text: &str| engine.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
        let (prompt, output) = (encode("A prompt"), encode("So: <tool_call>"));
        let new = || AutoMask::new(&engine, &HERMES, &Tools::default(), &grammar, &prompt);
        let (mut plain, mut ahead) = (new(), new());
        let call = [output.clone(), encode("xyz")].concat();
        for n in 0..=call.len() {
            ahead.compute_ahead(&call[..n]);
            assert_eq!(ahead.lock().mask.is_some(), n >= output.len(), "{n}");
            let tokens = [&prompt[..], &call[..n]].concat();
            let logits = [&mut plain, &mut ahead].map(|mask| {
                let mut logits = vec![0.0_f32; engine.config().vocab_size];
                mask.process(&tokens, &mut logits).unwrap();
                logits
            });
            assert_eq!(logits[0], logits[1], "{n}");
        }
    }

    /// Forces the beginning of an output: a small model calls no tools on its own.
    struct Force {
        n_prompt: usize,
        tokens: Vec<TokenId>,
    }

    impl LogitsProcessor for Force {
        fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
            if let Some(forced) = self.tokens.get(tokens.len() - self.n_prompt) {
                let others = logits.iter_mut().enumerate().filter(|(id, _)| *id != forced.index());
                others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
            Ok(())
        }
    }

    /// The forced beginning, the form, and the text before the call.
    const BEGINNINGS: [(&str, &str, &str); 4] = [
        ("Let me see. <tool_call>", "hermes", "Let me see."),
        ("So <tool_call>", "qwen_coder", "So"),
        ("{\"name\": \"weather\"", "llama", ""),
        ("\n[weather(", "pythonic", ""),
    ];

    #[test]
    fn a_call_that_the_model_begins_follows_its_schema() {
        let engine = engine();
        let vocabulary = Vocabulary::of_engine(&engine).unwrap();
        let schema = json!({
            "type": "object",
            "properties": { "city": { "enum": ["Oslo", "Bergen"] }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
            "required": ["city", "days"],
            "additionalProperties": false,
        });
        let function = Function {
            name: "weather".to_owned(),
            description: None,
            parameters: schema,
            path: String::new(),
        };
        let tools = Tools { functions: vec![function], ..Tools::default() };
        for (beginning, format, introduction) in BEGINNINGS {
            let format = named(format);
            let source = tool_format::grammar(format, &tools, engine.tokenizer(), false, Form::BehindMarker);
            let grammar = Grammar::lark(&vocabulary, &source).unwrap();
            for seed in 0..4_u64 {
                let mut session = engine.session(SessionOptions::default()).unwrap();
                session.append_text("The weather?", SpecialTokens::AsText).unwrap();
                let prompt = session.tokens().to_vec();
                let forced = engine.tokenizer().encode(beginning, SpecialTokens::AsText).unwrap();
                let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
                let mut options = GenerateOptions { max_tokens: 200, sampling, ..GenerateOptions::default() };
                options.processors.push(Box::new(Force { n_prompt: prompt.len(), tokens: forced }));
                options.processors.push(Box::new(AutoMask::new(&engine, format, &tools, &grammar, &prompt)));
                let (mut reader, mut parts) = (OutputReader::new(format, &tools, false), Vec::new());
                let mut finish = None;
                for event in session.generate(options).unwrap() {
                    match event.unwrap() {
                        Event::Token(token) => reader.push(&token.text, &mut parts),
                        Event::Done(summary) => {
                            reader.push(&summary.text, &mut parts);
                            finish = Some(summary.finish);
                        }
                        _ => {}
                    }
                }
                reader.finish(&mut parts);
                assert_eq!(finish, Some(FinishReason::EndToken), "{format:?}: {parts:?}");
                let (mut text, mut arguments) = (String::new(), String::new());
                for part in &parts {
                    match part {
                        CallPart::Text(piece) => text.push_str(piece),
                        CallPart::Begin(name) => assert_eq!(name, "weather"),
                        CallPart::Arguments(piece) => arguments.push_str(piece),
                    }
                }
                assert_eq!(text.trim(), introduction, "{format:?}");
                let value: Value = serde_json::from_str(&arguments)
                    .unwrap_or_else(|error| panic!("{format:?}: {error}: {arguments}"));
                assert!(["Oslo", "Bergen"].contains(&value["city"].as_str().unwrap()));
                assert!((1..=7).contains(&value["days"].as_i64().unwrap()));
            }
        }
    }
}
