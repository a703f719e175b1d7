//! The quality check: on notes with names that training never used, the answer contains the requested fact.

use burn::tensor::Device;
use tokenizers::Tokenizer;

use crate::Error;
use crate::generate::greedy;
use crate::model::Llama;
use crate::rng::Rng;
use crate::tokens;
use crate::world::answer::{self, Span};
use crate::world::document::{MESSAGE_END, Question, prompt};
use crate::world::lexicon::Lexicon;
use crate::world::{FULL, reply, summary, ui};

/// Seed of the evaluation's notes. Their names come from the held-out part.
pub const SEED: u64 = 0x5EED;

/// The notes of an evaluation question: one to three, as a retriever returns them.
pub const SPAN: Span = Span { notes: [1, 3], facts: [2, 6], ..FULL };

/// A question with the model's answer.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The question.
    pub question: Question,
    /// The model's answer.
    pub answer: String,
}

impl Answered {
    /// Whether the answer contains the fact.
    pub fn is_right(&self) -> bool {
        self.answer.to_lowercase().contains(&self.question.fact.to_lowercase())
    }
}

/// Evaluation question `number`.
pub fn question(number: usize) -> Question {
    let mut words = Lexicon::new(Rng::new(SEED, number as u64), true);
    answer::question(&mut words, SPAN)
}

/// One prompt per task about unseen notes, with the model's answer.
pub fn samples(
    model: &Llama,
    tokenizer: &Tokenizer,
    device: &Device,
) -> Result<Vec<(String, String)>, Error> {
    let mut messages = Vec::new();
    for number in 0..3 {
        let mut words = Lexicon::new(Rng::new(SEED, 1_000_000 + number), true);
        for chat in [
            answer::chat(&mut words, SPAN),
            summary::chat(&mut words, SPAN),
            reply::chat(&mut words, SPAN),
            ui::chat(&mut words),
        ] {
            messages.push(chat.turns()[0].0.clone());
        }
    }
    let outputs = complete(model, tokenizer, &messages, 120, device)?;
    Ok(messages.into_iter().zip(outputs).collect())
}

/// Answers the first `count` questions.
pub fn questions(
    model: &Llama,
    tokenizer: &Tokenizer,
    count: usize,
    device: &Device,
) -> Result<Vec<Answered>, Error> {
    let questions: Vec<Question> = (0..count).map(question).collect();
    let messages: Vec<String> = questions.iter().map(|question| question.message.clone()).collect();
    let answers = complete(model, tokenizer, &messages, 48, device)?;
    Ok(questions.into_iter().zip(answers).map(|(question, answer)| Answered { question, answer }).collect())
}

/// Answers to user messages, each of up to `most` tokens.
fn complete(
    model: &Llama,
    tokenizer: &Tokenizer,
    messages: &[String],
    most: usize,
    device: &Device,
) -> Result<Vec<String>, Error> {
    let end = tokenizer.token_to_id(MESSAGE_END).ok_or(Error::NoSpecialToken(MESSAGE_END))?;
    let mut prompts = Vec::with_capacity(messages.len());
    for message in messages {
        prompts.push(tokens::encode(tokenizer, &prompt(message))?);
    }
    // Prompts of similar length share a batch.
    let mut order: Vec<usize> = (0..messages.len()).collect();
    order.sort_by_key(|&at| prompts[at].len());
    let mut answers = vec![String::new(); messages.len()];
    for group in order.chunks(8) {
        let group_prompts: Vec<Vec<u32>> = group.iter().map(|&at| prompts[at].clone()).collect();
        let outputs = greedy(model, &group_prompts, end, most, device);
        for (&at, output) in group.iter().zip(outputs) {
            answers[at] = tokenizer.decode(&output, false)?;
        }
    }
    Ok(answers)
}
