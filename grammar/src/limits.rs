//! The bounds of a grammar: its text, its compiled form, and the work of one mask.

use llguidance::api::ParserLimits;

/// Maximum bytes of a schema, regular expression or Lark grammar, and of all choices together. Published schemas of API
/// definitions have up to about 1 MB; compiling takes memory in proportion.
pub const GRAMMAR_BYTES_MAX: usize = 2 << 20;

/// Maximum number of choices.
pub const CHOICES_MAX: usize = 10_000;

/// Maximum bytes of a marker: markers of reasoning have about 10.
pub const MARKER_BYTES_MAX: usize = 256;

/// Maximum bytes of a token in the trie of the vocabulary, whose nodes count their depth in 10 bits. A longer token is never
/// allowed by a grammar. (The longest published token has 1024 spaces.)
pub(crate) const TOKEN_BYTES_MAX: usize = 1024;

/// Stack of the thread that compiles a grammar. Nesting is bounded by the readers (JSON 128 levels, Lark 30, regular
/// expressions 250); the parts of the compiler recurse along it.
pub(crate) const COMPILE_STACK_BYTES: usize = 64 << 20;

/// The limits of the parser.
///
/// They are llguidance's defaults except `max_lexer_states`: a state takes 1 to 2 kB, so the lexer of a generation takes at
/// most 100 MB instead of 500. The fuel counts operations, not time, so a limit is reached at the same token on every machine.
pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        // The state of a parser may have text of the user.
        verbose_errors: false,
    }
}
