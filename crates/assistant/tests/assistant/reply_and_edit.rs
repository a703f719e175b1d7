//! Replies and edits.

use refrain::{PromptPassage, Task};
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::{
    Assistant, EditRequest, FileError, JobEvent, JobOptions, Length, Passage, ReplyRequest, TaskError,
};

use crate::support::{Place, engine, options, plain_answer};

const MAIL: &str =
    "Hi Bouma,\n\nWhat is the company for the repair of the car? Thank you in advance.\n\nCheers,\nBaidris";

#[test]
fn a_reply_is_that_of_plain_decoding() {
    let place = Place::new();
    place.write("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car. The repair is planned for 18 August.\n");
    place.update();
    let assistant = place.assistant();
    let mut request = ReplyRequest::new("Mail from Baidris", MAIL);
    request.n_passages = 2;
    let reply = assistant.reply(request, JobOptions::default()).unwrap().run().unwrap();
    let shown: Vec<_> = reply.passages.iter().map(|p| PromptPassage::new(&p.title, &p.text)).collect();
    assert_eq!((shown.len(), shown[0].title), (2, "Mail from Baidris"));
    assert_eq!(reply.text, plain_answer(&Task::Reply.user_message(&shown, "")));
    assert!(reply.text.contains("Qulittus Works"), "{}", reply.text);
    assert!(reply.provenance.copied.iter().all(|span| span.passage < 2));
}

#[test]
fn tone_and_length_are_part_of_the_request() {
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let mut request = ReplyRequest::new("Mail", MAIL);
    request.earlier = vec![Passage::new("Mail before", "Hi Baidris, the car is broken.")];
    request.request = "Say no.".to_owned();
    request.tone = Some("friendly".to_owned());
    request.length = Some(Length::Short);
    let reply = assistant.reply(request, JobOptions::default()).unwrap().run().unwrap();
    let shown = [("Mail", MAIL), ("Mail before", "Hi Baidris, the car is broken.")]
        .map(|(title, text)| PromptPassage::new(title, text));
    let wish = "Say no. Tone: friendly. Length: one or two sentences.";
    assert_eq!(reply.text, plain_answer(&Task::Reply.user_message(&shown, wish)));
    let empty = assistant.reply(ReplyRequest::new("Mail", " "), JobOptions::default());
    assert!(matches!(empty, Err(TaskError::Nothing { .. })));
}

/// Applies changes to the old text.
fn applied(old: &str, new: &str, changes: &[DiffEvent]) -> String {
    let (mut text, mut at) = (String::new(), 0);
    for change in changes {
        match change {
            DiffEvent::Keep { old: kept, .. } => {
                assert_eq!(kept.start, at, "in order");
                text.push_str(&old[kept.clone()]);
                at = kept.end;
            }
            DiffEvent::Insert { new: inserted, .. } => text.push_str(&new[inserted.clone()]),
            DiffEvent::Delete { old: deleted } => {
                assert_eq!(deleted.start, at, "in order");
                at = deleted.end;
            }
        }
    }
    assert_eq!(at, old.len(), "the whole old text");
    text
}

#[test]
fn the_changes_of_an_edit_lead_to_the_new_text() {
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let old = "\nThe car repair is planned for 18 August. Qulittus Works does it.\n\n";
    let job = assistant.edit(EditRequest::new(old, "Say 19 August."), JobOptions::default()).unwrap();
    let (mut streamed, mut changes) = (String::new(), Vec::new());
    let edit = job.run_with(|event| match event {
        JobEvent::Text(text) => streamed.push_str(&text.text),
        JobEvent::Edit(change) => changes.push(change.clone()),
        _ => {}
    });
    let edit = edit.unwrap();
    let message = format!("Edit the text.\n\n{}\n\nRequest: Say 19 August.", old.trim());
    assert!(edit.text.starts_with('\n') && edit.text.ends_with("\n\n"));
    assert!(
        plain_answer(&message)
            .starts_with(edit.text.strip_prefix('\n').unwrap().strip_suffix("\n\n").unwrap())
    );
    assert_eq!((&streamed, &changes), (&edit.text, &edit.changes));
    assert_eq!(applied(old, &edit.text, &edit.changes), edit.text);
}

#[test]
fn a_text_without_words_is_no_text_to_edit() {
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let empty = assistant.edit(EditRequest::new(" \n", "Shorter."), JobOptions::default());
    assert!(matches!(empty, Err(TaskError::Nothing { .. })));
}

#[test]
fn a_thread_is_read_as_the_index_reads_it() {
    let mailbox = b"From a Wed May 1 10:00:00 2024\nSubject: Car\nFrom: bo@x\n\nThe car is broken.\n\n\
        From b Wed May 1 11:00:00 2024\nSubject: =?utf-8?q?R=65:?= Car\nContent-Transfer-Encoding: quoted-printable\n\n\
        > The car is broken.\n\nWho takes care of the re=\npair of the car?\n";
    let (messages, lost) = Passage::read("thread.mbox", mailbox).unwrap();
    assert!(lost.is_none() && messages.iter().all(|message| message.source.is_some()));
    let request = ReplyRequest::of_thread(messages).unwrap();
    assert_eq!((request.message.title.as_str(), request.earlier.len()), ("Re: Car", 1));
    assert_eq!(request.message.text, "> The car is broken.\n\nWho takes care of the repair of the car?");
    let shown = [&request.message, &request.earlier[0]].map(|text| (text.title.clone(), text.text.clone()));
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let reply = assistant.reply(request, JobOptions::default()).unwrap().run().unwrap();
    let shown = [0, 1].map(|n| PromptPassage::new(&shown[n].0, &shown[n].1));
    assert_eq!(reply.text, plain_answer(&Task::Reply.user_message(&shown, "")));
    assert!(ReplyRequest::of_thread([]).is_none());
    assert!(matches!(Passage::read("a.png", b""), Err(FileError::Unread { .. })));
    assert!(matches!(Passage::read("", b""), Err(FileError::Path(_))));
}
