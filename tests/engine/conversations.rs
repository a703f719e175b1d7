//! Conversations through a chat template: its options, messages with more than a content, and reasoning in the
//! events.

use refrain::internals::draft::testing::AlwaysRight;
use refrain::{
    ChatDate, ChatOptions, Drafting, Engine, Event, GenerateOptions, Message, Origin, Role, Session,
    SessionOptions, TextKind, TokenEvent, TokenId,
};
use serde_json::json;

use crate::common::{self, EOS, ForceAt, Tiny, plain, run_in};

/// Shows the values that a session passes to a template. An answer may begin with reasoning.
const TEMPLATE: &str = "{{ strftime_now('%d') }}{% if tools %}<{{ tools[0].name }}>{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}\
    {% for call in m.tool_calls %}({{ call.name }}){% endfor %}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>{% else %}</think>{% endif %}{% endif %}";

const TINY: Tiny = Tiny { template: TEMPLATE, ..Tiny::DEFAULT };

fn on_day(day: u32) -> ChatOptions {
    let mut options = ChatOptions::default();
    options.date = ChatDate::from_ymd(2026, 3, day);
    options
}

fn thinking_on_day(day: u32, thinks: bool) -> ChatOptions {
    let mut options = on_day(day);
    options.enable_thinking = Some(thinks);
    options
}

/// The text that the model continues: all tokens except the one generated here.
fn prompt_text(engine: &Engine, session: &mut Session) -> String {
    let options = GenerateOptions { max_tokens: 1, ignore_eos: true, ..GenerateOptions::default() };
    run_in(session, options, usize::MAX);
    let prompt = &session.tokens()[..session.tokens().len() - 1];
    engine.tokenizer().decode(prompt)
}

#[test]
fn chat_options_apply_from_the_next_answer_on() {
    let engine = TINY.engine(1);
    let mut session = engine.session(plain()).unwrap();
    session.set_chat_options(on_day(5));
    session.append_turn(Role::User, "When?").unwrap();
    assert_eq!(prompt_text(&engine, &mut session), "05[user]When?[assistant]</think>");

    // The tokens of the earlier turns change too, and the date is kept.
    let mut options = ChatOptions::default();
    options.enable_thinking = Some(true);
    options.tools = vec![json!({"name": "clock"})];
    session.set_chat_options(options);
    let answer = session.turns()[1].content.clone();
    session.append_turn(Role::User, "Where?").unwrap();
    let expected = format!("05<clock>[user]When?[assistant]{answer}[user]Where?[assistant]<think>");
    assert_eq!(prompt_text(&engine, &mut session), expected);

    // With the same options a conversation only grows.
    let n_tokens = session.tokens().len();
    session.set_chat_options(on_day(6));
    session.pop_turn().unwrap();
    session.pop_turn().unwrap();
    assert!(session.tokens().len() < n_tokens);
    assert_eq!(
        prompt_text(&engine, &mut session),
        format!("06[user]When?[assistant]{answer}[assistant]</think>")
    );
}

#[test]
fn a_session_whose_options_changed_continues_like_a_new_one() {
    let engine = TINY.engine(1);
    let ask = |session: &mut Session, text: &str| {
        session.append_turn(Role::User, text).unwrap();
        run_in(session, common::options(12), usize::MAX).tokens
    };
    let mut changed = engine.session(SessionOptions::default()).unwrap();
    changed.set_chat_options(on_day(5));
    ask(&mut changed, "When?");
    changed.set_chat_options(thinking_on_day(6, true));
    let continued = ask(&mut changed, "Where?");

    let mut new = engine.session(plain()).unwrap();
    new.set_chat_options(thinking_on_day(6, true));
    changed.turns()[..2].iter().for_each(|turn| new.append_message(turn.clone()).unwrap());
    assert_eq!(ask(&mut new, "Where?"), continued);
    assert_eq!(new.tokens(), changed.tokens());
}

#[test]
fn messages_reach_the_template_with_all_their_fields() {
    let engine = TINY.engine(1);
    let mut session = engine.session(plain()).unwrap();
    session.set_chat_options(on_day(5));
    session.append_turn(Role::User, "What time is it?").unwrap();
    let mut call = Message::new(Role::Assistant, "");
    call.tool_calls = vec![json!({"name": "clock"})];
    session.append_message(call).unwrap();
    let mut result = Message::new(Role::Tool, "10:15");
    result.tool_call_id = Some("1".to_owned());
    session.append_message(result).unwrap();
    let expected = "05[user]What time is it?[assistant](clock)[tool]10:15[assistant]</think>";
    assert_eq!(prompt_text(&engine, &mut session), expected);
    assert_eq!(session.turns()[2].tool_call_id.as_deref(), Some("1"));

    let mut text = engine.session(plain()).unwrap();
    text.append_tokens(&[TokenId(65)]).unwrap();
    assert!(
        text.append_message(Message::new(Role::Tool, "10:15")).is_err(),
        "plain text and turns do not mix"
    );
}

/// The events of an answer whose text is forced, with every token but the first of a step drafted or none.
fn forced(
    engine: &Engine,
    drafting: Drafting,
    chat: &ChatOptions,
    output: &[TokenId],
) -> (Session, Vec<Event>) {
    let messages = [Message::new(Role::User, "When?")];
    let prompt_len = engine.tokenizer().encode_chat(&messages, chat, true).unwrap().len();
    let mut session = engine.session(SessionOptions { drafting, ..plain() }).unwrap();
    if drafting != Drafting::Off {
        session.add_source(Box::new(AlwaysRight::new(prompt_len, output.to_vec()))).unwrap();
    }
    session.set_chat_options(chat.clone());
    session.append_turn(Role::User, "When?").unwrap();
    let places = output.iter().enumerate().map(|(i, &token)| (prompt_len + i, token));
    let options = GenerateOptions {
        max_tokens: 200,
        processors: vec![Box::new(ForceAt(places.collect()))],
        ..GenerateOptions::default()
    };
    let events = common::events(&mut session, options);
    (session, events)
}

/// The parts of an output by kind, in order, with neighbours of one kind joined.
fn segments(events: &[Event]) -> Vec<(TextKind, String)> {
    let parts = events.iter().flat_map(|event| match event {
        Event::Token(TokenEvent { segments, .. }) => segments,
        Event::Done(summary) => &summary.segments,
        _ => unreachable!("an event that this test does not know"),
    });
    let mut joined: Vec<(TextKind, String)> = Vec::new();
    for (kind, text) in parts {
        match joined.last_mut() {
            Some((last, joined)) if last == kind => joined.push_str(text),
            _ => joined.push((*kind, text.clone())),
        }
    }
    joined
}

#[test]
fn events_tell_reasoning_from_the_answer() {
    use TextKind::{Answer, Reasoning};
    let engine = TINY.engine(1);
    type Segments<'a> = &'a [(TextKind, &'a str)];
    let cases: [(bool, &str, Segments); 5] = [
        (false, "At ten.", &[(Answer, "At ten.")]),
        (false, " <think>Ten? <b></think>At ten.", &[(Reasoning, " Ten? <b>"), (Answer, "At ten.")]),
        (true, "Ten?</think>At </think> ten.", &[(Reasoning, "Ten?"), (Answer, "At </think> ten.")]),
        (true, "Ten?</thi", &[(Reasoning, "Ten?</thi")]),
        (false, "<thin", &[(Answer, "<thin")]),
    ];
    for (thinks, text, expected) in cases {
        let chat = thinking_on_day(5, thinks);
        let output: Vec<TokenId> = text.bytes().map(|byte| TokenId(u32::from(byte))).chain([EOS]).collect();
        let tokens = |events: &[Event]| -> Vec<TokenEvent> {
            let token = |event: &Event| match event {
                Event::Token(token) => {
                    let mut token = token.clone();
                    token.origin = Origin::Target;
                    Some(token)
                }
                _ => None,
            };
            events.iter().filter_map(token).collect()
        };
        let (_, plain) = forced(&engine, Drafting::Off, &chat, &output);
        let (session, drafted) = forced(&engine, Drafting::OwnSources, &chat, &output);
        assert_eq!(tokens(&drafted), tokens(&plain), "{text}");
        let n_steps = drafted.iter().find_map(|event| match event {
            Event::Done(summary) => Some(summary.stats.steps),
            _ => None,
        });
        assert!(n_steps.unwrap() < output.len() / 2, "{text}: markers are verified as drafts");
        let got = segments(&drafted);
        assert_eq!(
            got.iter().map(|(kind, text)| (*kind, text.as_str())).collect::<Vec<_>>(),
            expected,
            "{text}"
        );
        let whole: String = tokens(&drafted).iter().map(|token| token.text.as_str()).collect();
        assert_eq!(whole, text, "the text of the events has the markers");
        // The turn keeps both apart, for templates that show the answer alone.
        let part = |kind| expected.iter().find(|(k, _)| *k == kind).map(|(_, text)| text.trim());
        assert_eq!(session.turns()[1].content, part(Answer).unwrap_or_default(), "{text}");
        assert_eq!(session.turns()[1].reasoning_content.as_deref(), part(Reasoning), "{text}");
    }
}
