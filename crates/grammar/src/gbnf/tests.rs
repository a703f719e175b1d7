use super::*;

fn refused(text: &str) -> (usize, usize, GbnfProblem) {
    match to_lark(text) {
        Err(GrammarError::Gbnf { line, column, problem, .. }) => (line, column, problem),
        other => panic!("{text:?}: {other:?}"),
    }
}

/// How a grammar is translated.
fn form(text: &str) -> &'static str {
    let lark = to_lark(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let is_letter = |line: &str| {
        let rest = line.split_once(": /").map_or("", |(_, rest)| rest.trim_end_matches('/'));
        rest.len() == 1
            || rest.starts_with('[') && rest.find(']') == Some(rest.len() - 1)
            || rest.starts_with("\\x{") && rest.find('}') == Some(rest.len() - 1)
    };
    let lexemes: Vec<&str> = lark.lines().filter(|line| line.starts_with('L')).collect();
    match (lark.lines().any(|line| line.starts_with('r')), lexemes.iter().all(|line| is_letter(line))) {
        (false, _) => "whole",
        (true, false) => "lexemes",
        (true, true) => "letters",
    }
}

/// A string, a number and white space end where the next mark begins.
const JSON: &str = r#"
root   ::= map
map    ::= "{" gap (entry ("," gap entry)*)? "}" gap
entry  ::= text ":" gap any
list   ::= "[" gap (any ("," gap any)*)? "]" gap
any    ::= map | list | text | number | ("null" | "false" | "true") gap
text   ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9A-F]{4}))* "\"" gap
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([Ee] [+-]? [0-9]{1,3})? gap
gap    ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn each_grammar_has_the_fastest_form_that_keeps_its_language() {
    for (text, expected) in [
        ("root ::= \"a\" b | b{2,}\nb ::= [b-d] # a comment\n", "whole"),
        ("root ::= (\"ab\" | \"abc\") \"cd\"", "whole"),
        ("root ::= \"\"", "whole"),
        (JSON, "lexemes"),
        ("root ::= \"(\" root \")\" | [a-z]+", "lexemes"),
        // A lexeme would swallow what follows, or two begin alike.
        ("root ::= \"(\" root \")\" | [a-z]+ \")\"?", "letters"),
        ("root ::= \"a\" root \"b\" | \"ab\"", "letters"),
        ("root ::= root \"a\" | \"b\"", "letters"),
        // Letters with one first byte.
        ("root ::= \"é\" root \"x\" | \"è\"", "letters"),
    ] {
        assert_eq!(form(text), expected, "{text}\n{}", to_lark(text).unwrap());
    }
}

#[test]
fn problems_have_their_place() {
    use GbnfProblem::*;
    for (text, expected) in [
        ("", (1, 1, Expected("a rule `root`"))),
        ("a ::= \"b\"", (1, 10, Expected("a rule `root`"))),
        ("root \"a\"", (1, 6, Expected("`::=`"))),
        ("root ::= \"é\" )", (1, 14, Expected("the end of the line"))),
        ("root ::= a\n\nb ::= \"x\"", (1, 10, UnknownRule)),
        ("root ::=\n  (\"a\"", (2, 7, Expected("`)`"))),
        ("root ::= \"a", (1, 12, Expected("the end of the literal or class"))),
        ("root ::= \"\\q\"", (1, 11, Escape)),
        ("root ::= \"\\uD800\"", (1, 11, Escape)),
        ("root ::= \"\\x4é\"", (1, 11, Escape)),
        ("root ::= [b-a]", (1, 14, Range)),
        ("root ::= \"a\"{3,2}", (1, 17, Range)),
        ("root ::= []", (1, 10, EmptyClass)),
        ("root ::= [^\\x00-\\U0010FFFF]", (1, 10, EmptyClass)),
        ("root ::= \"a\"{,2}", (1, 14, Expected("a number"))),
        ("root ::= \"a\"{2", (1, 15, Expected("`}`"))),
        ("root ::= <[1000]>", (1, 10, Unsupported("a token"))),
        ("root ::= !<think>", (1, 10, Unsupported("a token"))),
        ("::= \"a\"", (1, 1, Expected("the name of a rule"))),
    ] {
        assert_eq!(refused(text), expected, "{text:?}");
    }
    let limits = [
        ("repetitions", "root ::= \"a\"{2001}".to_owned()),
        ("repetitions", "root ::= \"a\"{99999999999}".to_owned()),
        ("levels of brackets", format!("root ::= {}\"a\"", "(".repeat(100_000))),
        ("operators behind one part", format!("root ::= \"a\"{}", "*".repeat(100_000))),
        ("letters, classes, names and operators", format!("root ::= \"{}\"", "a".repeat(PARTS_MAX + 1))),
        ("rules", (0..=RULES_MAX).map(|rule| format!("r{rule} ::= \"a\"\n")).collect()),
    ];
    for (expected, text) in limits {
        assert!(matches!(refused(&text).2, Limit { what, .. } if what == expected), "{:?}", refused(&text));
    }
    // A long chain of rules is no recursion of this program.
    let chain: String =
        (0..RULES_MAX - 1).map(|rule| format!("r{rule} ::= r{} \"a\"?\n", rule + 1)).collect();
    to_lark(&format!("root ::= r0\n{chain}").replace(&format!("r{} \"a\"?", RULES_MAX - 1), "\"b\""))
        .unwrap();
}

#[test]
fn gbnf_is_told_from_lark() {
    for text in ["root ::= \"a\"", "# a\n\n  root::= x\n", "ws-x\t::=\n"] {
        assert!(is_gbnf(text), "{text}");
    }
    for text in ["", "start: \"::=\"", "start: a // b ::= c\na: \"x\"", "::=", "%json {\"a ::= b\": 1}"] {
        assert!(!is_gbnf(text), "{text}");
    }
}

#[test]
fn large_expressions_end() {
    // The places of this one would be compared with each other.
    let wide = "root ::= \"(\" root \")\" | ([a-z]{0,1900} [a-z]{0,90})";
    to_lark(wide).unwrap();
    let nested = format!("root ::= \"(\" root \")\" | {}\"a\"?{}", "(".repeat(60), "{0,2000})".repeat(60));
    to_lark(&nested).unwrap();
    // Nothing, very often.
    let nothing =
        format!("root ::= \"(\" root \")\" | \"b\" {}\"\"{}", "(".repeat(60), "{0,2000})".repeat(60));
    to_lark(&nothing).unwrap();
}
