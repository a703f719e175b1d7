//! A screen of accessibility XML, and its bytes as a chat, as a screen of lines, and as a screen of a UI agent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_assistant::Screen;
use refrain_index::notes::internals::read;

fuzz_target!(|bytes: &[u8]| {
    read("a.xml", bytes);
    read("a.jsonl", bytes);
    read("a.screen", bytes);
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    if let Ok(screen) = Screen::read(source) {
        for element in screen.elements() {
            assert!(!element.label.contains(['"', '\n']));
            assert!(element.place.end <= source.len());
            let id = element.id.as_deref();
            assert!(id.is_none_or(|id| screen.element(id) == Some(element)), "an id names two elements");
        }
    }
});
