//! A chat template, rendered over a short conversation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::internals::tokenizer::{ChatTemplate, SpecialTexts};
use refrain::{ChatOptions, Message, Role};

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source.to_owned()) else { return };
    let messages = [
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "When is it?"),
        Message::new(Role::Assistant, "<think>\nhm\n</think>\n\nAt ten."),
        Message::new(Role::User, "Where?"),
    ];
    let special = SpecialTexts { bos: "<s>".to_owned(), eos: "</s>".to_owned() };
    let _ = template.render(&messages, &ChatOptions::default(), true, &special);
});
