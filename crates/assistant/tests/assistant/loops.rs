//! Loops of free text are broken, and copies are not.

use refrain::{Drafting, DryOptions, Sampling, SessionOptions, TokenId};
use refrain_assistant::{
    AnswerRequest, Assistant, AssistantOptions, EditRequest, JobOptions, Passage, ReplyRequest,
    SummarizeRequest,
};

use crate::support::{engine, options};

/// A bias that makes the model prefer the tokens of a text: it writes them in a loop unless something breaks it.
fn looping(text: &str) -> Sampling {
    let tokens = engine().tokenizer().encode(text, refrain::SpecialTokens::AsText).unwrap();
    let favoured = tokens.iter().map(|&token: &TokenId| (token, 30.0)).collect();
    Sampling { logit_bias: favoured, ..AssistantOptions::default().sampling }
}

fn longest_run(text: &str) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut longest = 0;
    for period in 1..=words.len() / 2 {
        let mut run = 0;
        for at in period..words.len() {
            run = if words[at] == words[at - period] { run + 1 } else { 0 };
            longest = longest.max(run / period);
        }
    }
    longest
}

#[test]
fn a_loop_is_broken_in_every_task_of_free_text() {
    let passage = || Passage::new("Trip", "The train leaves at nine. The hotel is at the harbour.");
    let texts = |sampling: Sampling| {
        let mut options = options();
        options.sampling = sampling;
        let assistant = Assistant::builder(engine()).options(options).build().unwrap();
        let job = JobOptions::default;
        let mut ask = AnswerRequest::new("When does the train leave?");
        ask.passages = Some(vec![passage()]);
        [
            assistant.answer(ask, job()).unwrap().run().unwrap().text,
            assistant.summarize(SummarizeRequest::texts([passage()]), job()).unwrap().run().unwrap().text,
            assistant.reply(ReplyRequest::of(passage()), job()).unwrap().run().unwrap().text,
        ]
    };
    let with = looping(" the train");
    let without = Sampling { dry: DryOptions::default(), ..with.clone() };
    for (broken, looped) in texts(with).iter().zip(texts(without)) {
        assert!(longest_run(&looped) > 2 * longest_run(broken).max(4), "{looped:?} was broken to {broken:?}");
    }
}

#[test]
fn a_copy_of_similar_lines_is_the_same_with_and_without() {
    let table: String = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
        .map(|day| format!("- {day}: open from 8 to 12 and from 14 to 18\n"))
        .concat();
    let edited = |sampling: Sampling, drafting: Drafting| {
        let session = SessionOptions { drafting, ..SessionOptions::default() };
        let mut options = options();
        options.answer_tokens = Some(200);
        options.sampling = sampling;
        options.session = session;
        let assistant = Assistant::builder(engine()).options(options).build().unwrap();
        let job = assistant
            .edit(EditRequest::new(table.as_str(), "Write Sunday for Monday."), JobOptions::default());
        job.unwrap().run().unwrap().text
    };
    let default = AssistantOptions::default().sampling;
    let text = edited(default.clone(), Drafting::default());
    assert_eq!(
        text,
        edited(Sampling::default(), Drafting::default()),
        "loops are not broken where there are none"
    );
    assert_eq!(text, edited(default, Drafting::Off), "drafts change no text");
}
