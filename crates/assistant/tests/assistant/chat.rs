//! Conversations.

use refrain::{PromptPassage, Role, Task};
use refrain_assistant::{Assistant, AssistantOptions, ChatRequest, Forget, JobOptions, TaskError};

use crate::support::{Place, changed, engine, options, plain};

fn say(conversation: &refrain_assistant::Conversation, text: &str) -> refrain_assistant::ChatAnswer {
    conversation.say(ChatRequest::new(text), JobOptions::default()).unwrap().run().unwrap()
}

#[test]
fn every_turn_is_that_of_plain_decoding() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let conversation = assistant.conversation();
    let mut first = ChatRequest::new("Who comes along on the trip to Aniarda?");
    first.n_passages = 2;
    let first = conversation.say(first, JobOptions::default()).unwrap().run().unwrap();
    let shown: Vec<_> = first.passages.iter().map(|p| PromptPassage::new(&p.title, &p.text)).collect();
    let message = Task::Answer.user_message(&shown, "Who comes along on the trip to Aniarda?");
    assert_eq!(first.text, plain(&[(Role::User, &message)], AssistantOptions::default().sampling));

    // The passages are in the conversation already.
    let mut second = ChatRequest::new("Who comes along on the trip to Aniarda?");
    second.n_passages = 2;
    let second = conversation.say(second, JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(second.passages, []);
    let turns = [
        (Role::User, message.as_str()),
        (Role::Assistant, first.text.as_str()),
        (Role::User, "Who comes along on the trip to Aniarda?"),
    ];
    assert_eq!(second.text, plain(&turns, AssistantOptions::default().sampling));
    assert!(second.report.stats[0].cached_tokens > 100, "{:?}", second.report.stats[0]);
    assert_eq!(conversation.turns().len(), 4);

    // Continued later, from its turns.
    let again = assistant.open_conversation(conversation.id(), conversation.turns());
    let turns: Vec<_> = conversation.turns();
    let turns: Vec<_> = turns.iter().map(|turn| (turn.message.role, turn.message.content.as_str())).collect();
    let third = say(&again, "Thank you.");
    assert_eq!(
        third.text,
        plain(&[&turns[..], &[(Role::User, "Thank you.")]].concat(), AssistantOptions::default().sampling)
    );
    // Its prompt was restored from the store.
    assert!(third.report.stats[0].cached_tokens > 100, "{:?}", third.report.stats[0]);
}

#[test]
fn a_stopped_turn_leaves_the_conversation_as_before() {
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let conversation = assistant.conversation();
    // A long answer.
    let text = "The Thuntigrad trip includes a stay at Hotel Prisinet and has a stop in Usta. The Epville trip costs 820 euros.";
    let trips = Task::Summarize.user_message(&[PromptPassage::new("Trips", text)], "");
    for n_events in 0..4 {
        let mut job = conversation.say(ChatRequest::new(&*trips), JobOptions::default()).unwrap();
        job.by_ref().take(n_events).for_each(|event| drop(event.unwrap()));
        let busy = conversation.say(ChatRequest::new("Hello."), JobOptions::default());
        assert!(matches!(busy, Err(TaskError::Busy)));
        if n_events % 2 == 0 {
            job.cancel_token().cancel();
            assert!(matches!(job.next(), Some(Err(TaskError::Cancelled))));
        }
        drop(job);
        assert_eq!(conversation.turns().len(), 0);
    }
    let first = say(&conversation, "Hello.");
    let mut job = conversation.say(ChatRequest::new(&*trips), JobOptions::default()).unwrap();
    job.by_ref().take(3).for_each(|event| drop(event.unwrap()));
    drop(job);
    assert_eq!(conversation.turns().len(), 2);
    let turns = [(Role::User, "Hello."), (Role::Assistant, first.text.as_str()), (Role::User, "Bye.")];
    assert_eq!(say(&conversation, "Bye.").text, plain(&turns, AssistantOptions::default().sampling));
}

#[test]
fn the_oldest_turns_are_left_out_when_the_context_is_full() {
    let assistant = Assistant::builder(engine())
        .options(changed(options(), |it| {
            it.system = Some("Be brief.".to_owned());
            it.answer_tokens = Some(20);
        }))
        .build()
        .unwrap();
    let conversation = assistant.conversation();
    let long = "The harbour opens at nine and closes at five. ".repeat(20);
    let mut n_dropped = 0;
    for _ in 0..6 {
        n_dropped += say(&conversation, &long).dropped.len();
    }
    assert!(n_dropped > 0 && n_dropped % 2 == 0, "{n_dropped}");
    let turns = conversation.turns();
    assert_eq!(
        (turns[0].message.role, turns[1].message.role, turns.len()),
        (Role::System, Role::User, 13 - n_dropped)
    );
    let too_long = conversation.say(ChatRequest::new(long.repeat(5)), JobOptions::default());
    assert!(matches!(too_long, Err(TaskError::RequestTooLong { .. })));
}

/// A turn is searched with what it refers to, also in a conversation that is continued; a turn about something else shows nothing.
#[test]
fn a_follow_up_question_is_searched_with_earlier_words() {
    let place = Place::new();
    place
        .write("boiler.md", "# Boiler\n\nInstalled in October.\n\n## Service\n\nMarlow charged 84 pounds.\n");
    place.write("roof.md", "# Roof\n\nNew tiles.\n\n## Service\n\nEbner charged 12 pounds.\n");
    place.update();
    let assistant = place.assistant();
    let ask = |conversation: &refrain_assistant::Conversation, text: &str| {
        let request = changed(ChatRequest::new(text), |it| it.n_passages = 1);
        conversation.say(request, JobOptions::default()).unwrap().run().unwrap()
    };
    let conversation = assistant.conversation();
    ask(&conversation, "When was the boiler installed?");
    let turns = conversation.turns();
    let asked: Vec<_> = turns.iter().filter_map(|turn| turn.asked.as_deref()).collect();
    assert_eq!(asked, ["When was the boiler installed?"]);
    let again = assistant.open_conversation(conversation.id(), turns);
    for conversation in [conversation, again] {
        let answer = ask(&conversation, "How much did the service cost?");
        assert!(answer.passages[0].text.contains("Marlow"), "{:?}", answer.passages);
        let searched = answer.searched.expect("a search");
        assert_eq!(searched.to_string(), "service, cost; from earlier turns: boiler, installed");
        let thanks = ask(&conversation, "Tremendous gratitude, wonderful assistant, farewell!");
        assert!(thanks.passages.is_empty() && thanks.searched.is_some_and(|it| it.is_not_in_notes()));
    }
}

#[test]
fn after_a_private_turn_nothing_of_the_conversation_is_kept() {
    let place = Place::new();
    place.write("a.md", "# A\n\nNothing.\n");
    place.update();
    let assistant = place.with_store();
    let conversation = assistant.conversation();
    say(&conversation, "Hello.");
    let private = ChatRequest::new("My word is Zanzibar.");
    conversation.say(private, changed(JobOptions::default(), |it| it.keep = false)).unwrap().run().unwrap();
    say(&conversation, "What is my word?");
    // Also when it is continued later, and when the private turn is left out.
    let again = assistant.open_conversation(conversation.id(), conversation.turns());
    let long = "The harbour opens at nine and closes at five. ".repeat(30);
    let mut n_dropped = 0;
    for _ in 0..4 {
        n_dropped += say(&again, &long).dropped.len();
    }
    assert!(n_dropped >= 4 && again.turns().iter().any(|turn| !turn.keep));
    let tokens = |text: &str| {
        let tokens = engine().tokenizer().encode(text, refrain::SpecialTokens::AsText).unwrap();
        tokens[tokens.len() - 2..].iter().flat_map(|token| token.0.to_le_bytes()).collect::<Vec<u8>>()
    };
    assert_eq!(place.files_with(&tokens("Zanzibar")), Vec::<std::path::PathBuf>::new());
    assert_eq!(place.files_with(&tokens("closes at five")), Vec::<std::path::PathBuf>::new());
    let forgotten = assistant.forget(Forget::Conversation(conversation.id())).unwrap();
    assert_eq!(forgotten.n_answers, 1, "the answer before");
}
