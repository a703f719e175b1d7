//! Compiles grammars, on a thread of their own and in bounded time.
//!
//! The compiler recurses along the nesting of the grammar, and the caller's stack may be small. It cannot be interrupted: whoever waits gives up
//! after [`COMPILE_TIME_MAX`], and the thread ends when it ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use llguidance::TokenParser;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;

use crate::dead_ends;
use crate::error::{GrammarError, GrammarKind, brief};
use crate::limits::{
    COMPILE_STACK_BYTES, COMPILE_TIME_MAX, LEXEMES_MAX, OVERDUE_MAX, PARSER_BYTES_MAX, SYMBOLS_MAX,
    parser_limits,
};
use crate::parser::{self, Start};
use crate::schema::Numbers;
use crate::vocabulary::Vocabulary;
use crate::watch::TICK;

/// Compilers that have not ended in their time.
static OVERDUE: AtomicUsize = AtomicUsize::new(0);

/// Describes and compiles a grammar, and computes its first masks.
///
/// # Errors
/// Those of `describe`; [`GrammarError::Refused`]; [`GrammarError::Busy`].
pub(crate) fn compile(
    vocabulary: &Vocabulary,
    kind: GrammarKind,
    describe: impl FnOnce(&mut Numbers) -> Result<TopLevelGrammar, GrammarError> + Send + 'static,
) -> Result<Start, GrammarError> {
    let refused = move |reason: String| GrammarError::Refused { kind, reason };
    check_overdue(OVERDUE.load(Ordering::Relaxed))?;
    let (sender, receiver) = sync_channel(1);
    let has_ended = Arc::new(AtomicBool::new(false));
    let (vocabulary, theirs) = (vocabulary.clone(), Arc::clone(&has_ended));
    let work = move || {
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            let mut numbers = Numbers::new();
            let grammar = match describe(&mut numbers) {
                Ok(grammar) => grammar,
                Err(error) => return Ok(Err(error)),
            };
            Ok(compile_here(&vocabulary, grammar, &numbers).map_err(refused))
        }));
        // The receiver may have gone.
        let _ = sender.send(compiled.unwrap_or_else(|error| Err(refused(brief(&error)))));
        if theirs.swap(true, Ordering::Relaxed) {
            OVERDUE.fetch_sub(1, Ordering::Relaxed);
        }
    };
    let builder = thread::Builder::new().name("refrain-grammar".to_owned()).stack_size(COMPILE_STACK_BYTES);
    let spawned = builder.spawn(work);
    spawned.map_err(|error| GrammarError::Busy { reason: format!("no thread is free: {error}") })?;
    match receive(COMPILE_TIME_MAX, |time| receiver.recv_timeout(time)) {
        Ok(compiled) => compiled,
        Err(RecvTimeoutError::Disconnected) => Err(refused("the compiler panicked".to_owned())),
        Err(RecvTimeoutError::Timeout) => {
            if !has_ended.swap(true, Ordering::Relaxed) {
                OVERDUE.fetch_add(1, Ordering::Relaxed);
            }
            Err(refused(format!("it takes more than {} s to compile", COMPILE_TIME_MAX.as_secs())))
        }
    }
}

fn check_overdue(n: usize) -> Result<(), GrammarError> {
    if n < OVERDUE_MAX {
        return Ok(());
    }
    let reason = format!("{n} earlier grammars are still compiled after their time; try again later");
    Err(GrammarError::Busy { reason })
}

/// Waits so long, in steps, so that the time of a process that is stopped does not count.
fn receive<T>(
    time: Duration,
    mut wait: impl FnMut(Duration) -> Result<T, RecvTimeoutError>,
) -> Result<T, RecvTimeoutError> {
    for _ in 1..time.div_duration_f64(TICK).ceil() as u32 {
        match wait(TICK) {
            Err(RecvTimeoutError::Timeout) => {}
            result => return result,
        }
    }
    wait(TICK)
}

fn compile_here(
    vocabulary: &Vocabulary,
    grammar: TopLevelGrammar,
    numbers: &Numbers,
) -> Result<Start, String> {
    let factory = vocabulary.factory();
    let limits = factory.limits().clone();
    let described = GrammarInit::Serialized(grammar).to_internal(Some(factory.tok_env().clone()), limits);
    let (grammar, mut lexer) = described.map_err(|error| brief(&error))?;
    replace(&mut lexer, numbers)?;
    check_replaced(&lexer, numbers)?;
    for (given, max, what) in
        [(lexer.lexemes.len(), LEXEMES_MAX, "lexemes"), (grammar.num_symbols(), SYMBOLS_MAX, "symbols")]
    {
        if given > max {
            return Err(format!("the compiled grammar has {given} {what}, more than {max}"));
        }
    }
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
    let mut parser = parser.map_err(|error| brief(&error))?;
    if let Some(symbol) = dead_end(&mut parser) {
        return Err(format!("a text can reach `{symbol}` and never end from there"));
    }
    let n_bytes = parser::bytes(&parser);
    if n_bytes > PARSER_BYTES_MAX {
        return Err(format!("the compiled grammar has {n_bytes} bytes, more than {PARSER_BYTES_MAX}"));
    }
    let start = Start::new(parser);
    let probed = start.and_then(|start| start.parser().probe().map(|()| start));
    probed.map_err(|error| match error {
        GrammarError::TooComplex { reason, .. } => format!("its masks are too complex: {reason}"),
        error => error.to_string(),
    })
}

/// Replaces the lexemes of the texts that stand for sets of numbers.
fn replace(lexer: &mut LexerSpec, numbers: &Numbers) -> Result<(), String> {
    let beginning = numbers.beginning();
    for index in 0..lexer.lexemes.len() {
        if !lexer.has_forced_bytes(&lexer.lexemes[index], beginning.as_bytes()) {
            continue;
        }
        let regex = set(lexer, index, &beginning).and_then(|number| numbers.set(&number));
        let Some(regex) = regex else {
            return Err("a set of numbers is combined with another schema".to_owned());
        };
        // A lexeme gets its index when it is added, so the later ones step aside meanwhile.
        let mut later = lexer.lexemes.split_off(index);
        lexer.current_class = later[0].class();
        let added = lexer.add_greedy_lexeme(String::new(), regex.clone(), false, None, usize::MAX);
        let added = added.map_err(|error| brief(&error))?.as_usize();
        if added < index {
            // An earlier lexeme is the same; the lexer reports both.
            lexer.lexemes.push(lexer.lexemes[added].clone());
        }
        lexer.lexemes.extend(later.drain(1..));
    }
    Ok(())
}

/// Checks that no lexeme has a text that stands for a set: one that was combined with others is not found above.
fn check_replaced(lexer: &LexerSpec, numbers: &Numbers) -> Result<(), String> {
    let mut texts = numbers.texts().peekable();
    if texts.peek().is_none() {
        return Ok(());
    }
    let mut automaton = lexer.to_regex_vec(&mut parser_limits()).map_err(|error| brief(&error))?;
    let start = automaton.initial_state(&lexer.all_lexemes());
    let mut lexemes_of = |text: &str| {
        let state = text.bytes().fold(start, |state, byte| automaton.transition(state, byte));
        automaton.state_desc(state).greedy_accepting.as_slice().to_vec()
    };
    // A lexeme of any string has both texts.
    let is_left = texts.any(|(text, other)| {
        let others = lexemes_of(&other);
        lexemes_of(&text).iter().any(|lexeme| !others.contains(lexeme))
    });
    if is_left { Err("a set of numbers is combined with another schema".to_owned()) } else { Ok(()) }
}

/// The number of the set that a lexeme stands for.
fn set(lexer: &LexerSpec, index: usize, beginning: &str) -> Option<String> {
    let mut text = beginning.to_owned();
    while !(text.len() > beginning.len() && text.ends_with('"')) {
        let next = "0123456789\""
            .chars()
            .find(|&c| lexer.has_forced_bytes(&lexer.lexemes[index], format!("{text}{c}").as_bytes()));
        text.push(next?);
    }
    Some(text[beginning.len()..text.len() - 1].to_owned())
}

/// The symbol of a dead end, if there is one.
fn dead_end(parser: &mut TokenParser) -> Option<String> {
    let all = parser.parser.grammar().lexer_spec().all_lexemes();
    let possible = parser.parser.with_recognizer(|recognizer| {
        let lexer = recognizer.lexer_mut();
        let state = lexer.start_state(&all);
        lexer.possible_lexemes(state).clone()
    });
    dead_ends::find(parser.parser.grammar(), &|lexeme| {
        !possible.contains(llguidance::earley::lexerspec::LexemeIdx::new(lexeme))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_that_take_too_long_are_no_fault_of_a_grammar() {
        assert_eq!(check_overdue(OVERDUE_MAX - 1), Ok(()));
        assert!(matches!(check_overdue(OVERDUE_MAX), Err(GrammarError::Busy { .. })));
    }

    #[test]
    fn a_time_is_waited_for_in_steps() {
        let mut times = Vec::new();
        let waited = receive(4 * TICK, |time| {
            times.push(time);
            Err::<(), _>(RecvTimeoutError::Timeout)
        });
        assert_eq!((waited, times), (Err(RecvTimeoutError::Timeout), vec![TICK; 4]));
        assert_eq!(receive(4 * TICK, |_| Ok(1)), Ok(1));
    }
}
