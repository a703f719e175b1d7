//! Drafts a reply to a mail from the notes, in the background, while the user asks something else.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example auto_reply
//! ```

use std::error::Error;
use std::path::Path;
use std::thread;

use refrain::{Engine, EngineOptions};
use refrain_assistant::{AnswerRequest, Assistant, JobOptions, Passage, Priority, ReplyRequest};

const MAIL: &str =
    "Hi Bouma,\n\nWhat is the company for the repair of the car? Thank you in advance.\n\nCheers,\nBaidris";

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    let note = Passage::new(
        "Car repair",
        "Qulittus Works takes care of the repair of the car. The repair is planned for 18 August.",
    );

    // The mail has arrived: its reply is prepared before anybody asks.
    let mut request = ReplyRequest::new("Mail from Baidris", MAIL);
    request.passages = vec![note.clone()];
    let mut background = JobOptions::default();
    background.priority = Priority::Background;
    let reply = assistant.reply(request, background)?;
    let reply = thread::spawn(move || reply.run());

    // Meanwhile a question of the user goes first, pass by pass.
    let mut question = AnswerRequest::new("When is the repair of the car?");
    question.passages = Some(vec![note]);
    println!("answer: {}", assistant.answer(question, JobOptions::default())?.run()?.text);

    let reply = reply.join().expect("the job does not panic")?;
    println!("reply:\n{}", reply.text);
    for span in &reply.provenance.copied {
        println!(
            "  copied from {:?}: {:?}",
            reply.passages[span.passage].title,
            &reply.text[span.output.clone()]
        );
    }
    Ok(())
}
