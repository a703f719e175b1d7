//! A mask for outputs that may call tools: free text, and behind the marker that opens a call, the grammar of calls.
//!
//! Of a model that calls in channels, the marker counts in headers only.
//!
//! The free text equals an output without tools, except that no token may have bytes behind the marker, so that the grammar begins with a token
//! of its own.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{Engine, LogitsProcessor, ProcessorError, TokenId};
use refrain_grammar::{Grammar, GrammarMask};

use super::call_form::{CallFormat, read_token};

/// The mask of one generation. Clones share it: one is among the generation's processors, and one computes between the passes.
#[derive(Clone)]
pub(crate) struct AutoMask(Arc<Mutex<Auto>>);

struct Auto {
    engine: Engine,
    format: CallFormat,
    grammar: Grammar,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Tokens that were read.
    n_read: usize,
    /// Separates reasoning, in which a marker is only mentioned.
    splitter: ReasoningSplitter,
    /// The end of the free text; shorter than the marker.
    tail: Vec<u8>,
    /// Tokens that have the marker with bytes behind it.
    surplus: Vec<TokenId>,
    /// The mask behind the marker.
    mask: Option<GrammarMask>,
}

impl AutoMask {
    /// A mask for an output after `prompt`. `grammar` begins behind the marker.
    pub(crate) fn new(engine: &Engine, format: CallFormat, grammar: &Grammar, prompt: &[TokenId]) -> Self {
        Self(Arc::new(Mutex::new(Auto::new(engine, format, grammar, prompt))))
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
    fn new(engine: &Engine, format: CallFormat, grammar: &Grammar, prompt: &[TokenId]) -> Self {
        let tokenizer = engine.tokenizer();
        let marker = format.marker().as_bytes();
        let has_surplus = |&token: &TokenId| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            let behind = bytes.len().saturating_sub(1);
            bytes[..behind].windows(marker.len()).any(|window| window == marker)
        };
        let surplus = (0..tokenizer.vocab_size() as u32).map(TokenId).filter(has_surplus).collect();
        Self {
            engine: engine.clone(),
            format,
            grammar: grammar.clone(),
            n_prompt: prompt.len(),
            n_read: prompt.len(),
            splitter: engine.tokenizer().reasoning_splitter(prompt),
            tail: Vec::new(),
            surplus,
            mask: None,
        }
    }

    fn read(&mut self, token: TokenId) {
        let tokenizer = self.engine.tokenizer();
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        read_token(&mut self.splitter, tokenizer, token);
        if !self.format.may_call(&self.splitter) {
            self.tail.clear();
            return;
        }
        let marker = self.format.marker();
        self.tail.extend_from_slice(bytes);
        if self.tail.ends_with(marker.as_bytes()) {
            self.mask = Some(self.grammar.mask());
        }
        let surplus = self.tail.len().saturating_sub(marker.len() - 1);
        self.tail.drain(..surplus);
    }

    /// Forbids tokens that complete the marker and go on.
    fn forbid_surplus(&self, logits: &mut [f32]) {
        for token in &self.surplus {
            if let Some(logit) = logits.get_mut(token.index()) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let marker = self.format.marker().as_bytes();
        // The longest end of the text that begins the marker. A shorter one cannot also: its first byte comes once.
        let Some(n_begun) = (1..marker.len()).rev().find(|&n| self.tail.ends_with(&marker[..n])) else {
            return;
        };
        let tokenizer = self.engine.tokenizer();
        for (id, logit) in (0..).zip(logits) {
            let bytes = tokenizer.token_bytes(TokenId(id)).unwrap_or_default();
            if bytes.strip_prefix(&marker[n_begun..]).is_some_and(|behind| !behind.is_empty()) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn compute_ahead(&mut self, output: &[TokenId]) {
        while self.mask.is_none() && self.n_read < self.n_prompt + output.len() {
            self.n_read += 1;
            self.read(output[self.n_read - 1 - self.n_prompt]);
        }
        if let (Some(mask), Some(behind)) = (&self.mask, output.get(self.n_read - self.n_prompt..)) {
            mask.ahead().compute(behind);
        }
    }

    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() < self.n_read {
            // A step is repeated, from an earlier place.
            *self = Self::new(
                &self.engine,
                self.format,
                &self.grammar,
                &tokens[..self.n_prompt.min(tokens.len())],
            );
        }
        while self.mask.is_none() && self.n_read < tokens.len() {
            self.n_read += 1;
            self.read(tokens[self.n_read - 1]);
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
    use crate::work::call_form::{CallPart, Form};
    use crate::work::calls::{self, CallReader};
    use crate::work::{Function, Tools};

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
        let mut mask = AutoMask::new(&engine, CallFormat::Text, &grammar, &prompt);
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
        let new = || AutoMask::new(&engine, CallFormat::Text, &grammar, &prompt);
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
        let grammar = Grammar::lark(&vocabulary, &calls::grammar(&tools, false, Form::BehindMarker)).unwrap();
        for seed in 0..8_u64 {
            let mut session = engine.session(SessionOptions::default()).unwrap();
            session.append_text("The weather?", SpecialTokens::AsText).unwrap();
            let prompt = session.tokens().to_vec();
            let forced = engine.tokenizer().encode("Let me see. <tool_call>", SpecialTokens::AsText).unwrap();
            let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
            let mut options = GenerateOptions { max_tokens: 200, sampling, ..GenerateOptions::default() };
            options.processors.push(Box::new(Force { n_prompt: prompt.len(), tokens: forced }));
            options.processors.push(Box::new(AutoMask::new(&engine, CallFormat::Text, &grammar, &prompt)));
            let (mut reader, mut parts) = (CallReader::new(&tools), Vec::new());
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
            assert_eq!(finish, Some(FinishReason::EndToken));
            let text = |part: &CallPart| match part {
                CallPart::Text(text) => Some(text.clone()),
                _ => None,
            };
            assert_eq!(parts.iter().filter_map(text).collect::<String>().trim(), "Let me see.");
            let arguments = |part: &CallPart| match part {
                CallPart::Arguments(text) => Some(text.clone()),
                _ => None,
            };
            let arguments: String = parts.iter().filter_map(arguments).collect();
            let value: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
            assert!(["Oslo", "Bergen"].contains(&value["city"].as_str().unwrap()));
            assert!((1..=7).contains(&value["days"].as_i64().unwrap()));
        }
    }
}
