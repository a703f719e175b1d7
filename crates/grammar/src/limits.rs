//! The bounds of a grammar: its text, its compiled form, and the work of one mask.
//!
//! All limits count work or bytes, so a grammar is refused on every machine or on none. The two times are for what was not foreseen.

use std::time::Duration;

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

/// Stack of the thread that compiles a grammar. The parts of the compiler recurse along the nesting (JSON 127 levels, Lark 30, regular
/// expressions 250), along references ([`HEIGHTS_MAX`]), properties ([`PROPERTIES_MAX`]) and rules ([`LARK_LEVELS_MAX`]), with at most 20 kB
/// for each level.
pub(crate) const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Maximum values of a schema without its annotations.
pub(crate) const VALUES_MAX: usize = 100_000;

/// Maximum keywords of one schema, annotations included: some checks compare all pairs.
pub(crate) const KEYWORDS_MAX: usize = 1_000;

/// Maximum names in all `properties` and `required`, those in both once: the compiler recurses along the properties of an object.
pub(crate) const PROPERTIES_MAX: usize = 4_000;

/// Maximum names in all `patternProperties`: the compiler checks all pairs.
pub(crate) const PATTERN_PROPERTIES_MAX: usize = 32;

/// Maximum `pattern` and `format` keywords: the compiler searches each for a text that matches.
pub(crate) const PATTERNS_MAX: usize = 256;

/// Maximum values in all `oneOf`: the compiler compares all pairs.
pub(crate) const ONE_OF_MAX: usize = 10_000;

/// Maximum references of a schema with different targets.
pub(crate) const REFS_MAX: usize = 2_000;

/// Maximum levels of all targets of references together: a chain of references is compiled one inside the other.
pub(crate) const HEIGHTS_MAX: usize = 8_000;

/// Maximum bytes of a key in a schema.
pub(crate) const NAME_BYTES_MAX: usize = 4 << 10;

/// Maximum bytes of all strings of a schema that become text, and of all choices: each byte is a state of the lexer.
pub(crate) const STRING_BYTES_MAX: usize = 256 << 10;

/// Maximum bytes of texts that a grammar may force one after the other: forced text is tokenized again for the mask of each of its tokens, at
/// about a millisecond for each kilobyte.
pub(crate) const FORCED_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of a schema times its alternatives that are combined with other keywords, for each of which the compiler copies the others.
pub(crate) const COPIES_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of the parts of a schema that are copied before it is compiled.
pub(crate) const COPIED_BYTES_MAX: usize = 8 << 20;

/// Maximum of `minLength`, `maxItems` and the like, where 32 bits end.
pub(crate) const COUNT_MAX: u64 = u32::MAX as u64 - 1;

/// Maximum rules, terminals and opening brackets of a Lark grammar: the compiler recurses along them.
pub(crate) const LARK_LEVELS_MAX: usize = 4_000;

/// Maximum literals, names and operators of a Lark grammar.
pub(crate) const LARK_TOKENS_MAX: usize = 20_000;

/// Maximum lexemes of a compiled grammar: each state of the lexer has a bit for each.
pub(crate) const LEXEMES_MAX: usize = 6_000;

/// Maximum symbols of a compiled grammar.
pub(crate) const SYMBOLS_MAX: usize = 30_000;

/// Maximum time of compiling a grammar, with its first mask.
pub(crate) const COMPILE_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum compilers that have not ended in their time. Further grammars are refused until one ends.
pub(crate) const OVERDUE_MAX: usize = 2;

/// Maximum time of a mask.
pub(crate) const MASK_TIME_MAX: Duration = Duration::from_secs(5);

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

/// Maximum bytes of a compiled grammar: each generation copies it twice.
pub(crate) const PARSER_BYTES_MAX: usize = 64 << 20;
