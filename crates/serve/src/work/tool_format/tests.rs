//! Every form: its template, its grammar, and outputs in it, whole and cut at every place.

use proptest::prelude::*;
use refrain::{Engine, EngineOptions, LogitsProcessor as _, SpecialTokens};
use refrain_grammar::{Grammar, Vocabulary};
use serde_json::{Value, json};

use super::prompt::recognised;
use super::*;
use crate::work::request::Function;

fn function(name: &str, parameters: Value) -> Function {
    Function { name: name.to_owned(), description: None, parameters, path: String::new() }
}

fn tools() -> Tools {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "days": { "type": "integer", "minimum": 1 },
            "metric": { "type": "boolean" },
            "tags": { "type": "array", "items": { "type": "string" } },
            "place": { "$ref": "#/$defs/place" },
        },
        "required": ["city"],
        "additionalProperties": false,
        "$defs": { "place": { "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"], "additionalProperties": false } },
    });
    let now = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    Tools {
        functions: vec![function("weather", weather), function("now", now)],
        is_parallel: true,
        ..Tools::default()
    }
}

type Calls = Vec<(String, String)>;

/// A form, an output, its text and its calls.
type Case = (&'static str, &'static str, &'static str, Vec<(&'static str, Value)>);

fn read<'a>(format: &'static dyn ToolFormat, pieces: impl IntoIterator<Item = &'a str>) -> (String, Calls) {
    let mut reader = Reader::new(format, &tools(), false);
    let mut parts = Vec::new();
    for piece in pieces {
        reader.push(piece, &mut parts);
    }
    reader.finish(&mut parts);
    let (mut text, mut calls) = (String::new(), Calls::new());
    for part in parts {
        match part {
            CallPart::Text(piece) => text.push_str(&piece),
            CallPart::Begin(name) => calls.push((name, String::new())),
            CallPart::Arguments(piece) => calls.last_mut().expect("a call has begun").1.push_str(&piece),
        }
    }
    (text, calls)
}

/// The forms that are read from text.
fn marked() -> impl Iterator<Item = &'static dyn ToolFormat> {
    FORMATS.into_iter().filter(|format| !format.has_channels())
}

/// Reads an output whole, by characters, and in two pieces cut at every place.
fn read_all_ways(format: &'static dyn ToolFormat, output: &str) -> (String, Calls) {
    let whole = read(format, [output]);
    let ends: Vec<usize> = output.char_indices().map(|(at, _)| at).chain([output.len()]).collect();
    let characters = ends.windows(2).map(|ends| &output[ends[0]..ends[1]]);
    assert_eq!(read(format, characters), whole, "{format:?} by characters: {output}");
    for at in ends {
        assert_eq!(read(format, [&output[..at], &output[at..]]), whole, "{format:?} at {at}: {output}");
    }
    whole
}

#[test]
fn a_template_tells_its_form() {
    // What is typical of the published ones, in as few words as a form needs.
    let templates = [
        ("harmony", "<|start|>assistant<|channel|>commentary to=functions. <|message|> <|call|>"),
        ("gemma4", "{{ '<|tool_call>call:' + name }}}<tool_call|>"),
        ("mistral_args", "{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"),
        ("mistral", "{{ '[TOOL_CALLS] [' }}"),
        ("minicpm", "<|tool_call_start|>\n```python\n"),
        ("lfm2", "{{ '<|tool_call_start|>[' }}]<|tool_call_end|>"),
        ("lfm2", "List of tools: <|tool_list_start|>["),
        ("minicpm5", "<function name=\"f\"><param name=\"a\"></param></function>"),
        ("qwen_coder", "<tool_call>\n<function=f>\n<parameter=a>\n"),
        ("smollm3", "{% if xml_tools %}<tool_call>"),
        ("phi4", "<|tool|>{{ message['tools'] }}<|/tool|>"),
        ("granite", "write <|tool_call|> and a list"),
        ("pythonic", "[func_name1(a=1)]"),
        ("llama", "<|start_header_id|> {\"name\": n, \"parameters\": p}"),
        ("hermes", "<tool_call>\n{\"name\": n}\n</tool_call>"),
    ];
    for (name, template) in templates {
        assert_eq!(recognised(template).map(|format| format.name()), Some(name), "{template}");
    }
    for other in ["{{ messages }}", "<tool_call>{{ name }}<arg_key>", "<seed:tool_call>"] {
        assert!(recognised(other).is_none(), "{other}");
    }
    let names: Vec<&str> = FORMATS.iter().map(|format| format.name()).collect();
    assert!(names.iter().all(|name| templates.iter().any(|(known, _)| known == name)), "{names:?}");
}

#[test]
fn outputs_are_read_however_they_are_cut() {
    let oslo = || ("weather", json!({ "city": "Oslo" }));
    let full = || {
        (
            "weather",
            json!({ "city": "A \"b\"\n", "days": 2, "metric": true, "tags": ["x", "y"], "place": { "x": 1.5 } }),
        )
    };
    let now = || ("now", json!({}));
    let cases: Vec<Case> = vec![
        (
            "hermes",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
            "",
            vec![oslo()],
        ),
        (
            "hermes",
            "Let me see.\n<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n\nDone.",
            "Let me see.\n\nDone.",
            vec![oslo(), now()],
        ),
        (
            "hermes",
            "<tool_call>{\"type\": \"function\", \"name\": \"now\", \"arguments\": {}, \"id\": \"a\"}",
            "",
            vec![now()],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"</tool_call> }\"}}</tool_call>",
            "",
            vec![("weather", json!({ "city": "</tool_call> }" }))],
        ),
        (
            "qwen_coder",
            "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nA \"b\"\n\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n\
             <parameter=tags>\n[\"x\", \"y\"]\n</parameter>\n<parameter=place>\n{\"x\": 1.5}\n</parameter>\n</function>\n</tool_call>",
            "I look.",
            vec![full()],
        ),
        ("qwen_coder", "<function=weather>\n<parameter=city>Oslo</parameter></function>", "", vec![oslo()]),
        (
            "qwen_coder",
            "<tool_call><function=weather><parameter=city>1</parameter><parameter=days>one</parameter></tool_call> x",
            "x",
            vec![("weather", json!({ "city": "1", "days": "one" }))],
        ),
        (
            "qwen_coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\n</parameter>\n<parameter=tags>\n['x', 'y']\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![("weather", json!({ "city": "", "tags": ["x", "y"] }))],
        ),
        (
            "minicpm5",
            "<function name=\"weather\"><param name=\"city\">Oslo</param></function>",
            "",
            vec![oslo()],
        ),
        (
            "minicpm5",
            "So <function name='weather'><param name='city'><![CDATA[a </param> b]]></param><param name=\"days\">3</param></function>",
            "So",
            vec![("weather", json!({ "city": "a </param> b", "days": 3 }))],
        ),
        ("llama", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}", "", vec![oslo()]),
        (
            "llama",
            " <|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"now\", \"parameters\": {}}",
            "",
            vec![oslo(), now()],
        ),
        ("pythonic", "[weather(city='Oslo'), now()]", "", vec![oslo(), now()]),
        ("pythonic", "<|python_start|>[weather(city=\"Oslo\")]<|python_end|>", "", vec![oslo()]),
        (
            "lfm2",
            "<|tool_call_start|>[weather(city='A \"b\"\\n', days=2, metric=True, tags=[\"x\", 'y',], place={'x': 1.5})]<|tool_call_end|>Looking.",
            "Looking.",
            vec![full()],
        ),
        (
            "lfm2",
            "<|tool_call_start|>[weather(city=\"\"\"a\"b\"\"\", days=+007, metric=None, tags=(1, 2,), place={})]<|tool_call_end|>",
            "",
            vec![(
                "weather",
                json!({ "city": "a\"b", "days": 7, "metric": null, "tags": [1, 2], "place": {} }),
            )],
        ),
        (
            "lfm2",
            "<|tool_call_start|>[weather(city=\"\\ud83d\\ude00\\u00e9\\x41\\U0001F600\\q\\ud800\")]<|tool_call_end|>",
            "",
            vec![("weather", json!({ "city": "\u{1f600}éA\u{1f600}\\q\u{fffd}" }))],
        ),
        (
            "minicpm",
            "<|tool_call_start|>\n```python\nweather(city=\"Oslo\")\nnow()\n```\n<|tool_call_end|>\nGood.",
            "Good.",
            vec![oslo(), now()],
        ),
        (
            "mistral",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]",
            "",
            vec![oslo(), now()],
        ),
        (
            "mistral_args",
            "Yes.[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
            "Yes.",
            vec![oslo(), now()],
        ),
        (
            "mistral_args",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
            "",
            vec![oslo()],
        ),
        (
            "granite",
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"now\", \"arguments\": {}}]",
            "",
            vec![oslo(), now()],
        ),
        (
            "granite",
            "<tool_call> [{\"arguments\": 1}]<|tool_call|>[{\"name\": \"now\"}]",
            "<tool_call> [{\"arguments\": 1}]",
            vec![now()],
        ),
        (
            "phi4",
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]<|/tool_call|>",
            "",
            vec![oslo()],
        ),
        ("phi4", "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]", "", vec![oslo()]),
        ("phi4", "Python has functools.", "Python has functools.", vec![]),
        (
            "gemma4",
            "<|tool_call>call:weather{city:<|\"|>A \"b\"\n<|\"|>,days:2,metric:true,tags:[<|\"|>x<|\"|>,<|\"|>y<|\"|>],place:{x:1.5}}<tool_call|><|tool_call>call:now{}<tool_call|>",
            "",
            vec![full(), now()],
        ),
        ("gemma4", "Sure.\n<|tool_call>call:weather{city:Oslo}<tool_call|>", "Sure.", vec![oslo()]),
        ("smollm3", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "", vec![now()]),
    ];
    for (name, output, text, calls) in cases {
        let (read_text, read_calls) = read_all_ways(named(name), output);
        assert_eq!(read_text, text, "{name}: {output}");
        let values = read_calls.iter().map(|(name, arguments)| {
            let value = serde_json::from_str(arguments);
            (name.as_str(), value.unwrap_or_else(|error| panic!("{error} in {arguments} of {output}")))
        });
        assert_eq!(values.collect::<Vec<(&str, Value)>>(), calls, "{name}: {output}");
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for format in marked() {
        let opens = format.opens();
        let mut outputs = vec![
            String::new(),
            " \n".to_owned(),
            "{\"name\": \"Bob\"} and [1, 2]".to_owned(),
            "[weather]".to_owned(),
            "{\"name\": \"weather\", \"age\": 3}".to_owned(),
        ];
        for open in opens {
            outputs.extend(
                [
                    "",
                    " ",
                    "x",
                    "\n{\"name\": \"other\", \"arguments\": {}}",
                    "[]",
                    "{}",
                    "[other()]",
                    "call:other{}",
                    "<function=other>",
                    "<",
                    "\"",
                ]
                .map(|rest| format!("a {open}{rest}")),
            );
            outputs.push(format!("{open}{open} \u{e9}"));
            outputs.push(open[..open.len() - 1].to_owned());
        }
        for output in outputs {
            assert_eq!(
                read_all_ways(format, &output),
                (output.clone(), Calls::new()),
                "{format:?}: {output:?}"
            );
        }
    }
}

/// What follows a call and is none is text, with every byte.
#[test]
fn text_behind_a_call_is_kept() {
    for format in marked() {
        let arguments = json!({ "city": "x" });
        let call = format.write(&[WrittenCall { name: "weather", arguments: &arguments }]);
        for behind in ["; {\"name\": \"other\"}", ", other()", "<function=other>", "[1]", "}", "```", "Done."]
        {
            let (text, calls) = read_all_ways(format, &format!("{call}{behind}"));
            assert_eq!((&*text, calls.len()), (behind, 1), "{format:?}: {call}{behind}");
        }
    }
}

#[test]
fn a_call_that_is_cut_has_the_arguments_so_far() {
    for format in marked() {
        let arguments = json!({ "city": "Os lo", "days": 12, "tags": ["x"] });
        let output =
            format!("So: {}", format.write(&[WrittenCall { name: "weather", arguments: &arguments }]));
        let (_, whole) = read(format, [&*output]);
        let is_start_only = format.begins_with().is_some();
        for at in 0..output.len() {
            let (text, calls) = read_all_ways(format, &output[..at]);
            match calls.as_slice() {
                [] => assert_eq!(text, output[..at], "{format:?}"),
                [(name, cut)] => {
                    assert_eq!((&*text, &**name), ("So:", "weather"), "{format:?}");
                    // The last piece may be one that more text would have written otherwise.
                    let agreed = cut.bytes().zip(whole[0].1.bytes()).take_while(|(a, b)| a == b).count();
                    assert!(cut.len() <= agreed + 24, "{format:?}: {cut}");
                }
                _ => panic!("{calls:?}"),
            }
        }
        assert_eq!(whole.len(), usize::from(!is_start_only), "{format:?}: {output}");
    }
}

/// Pieces that outputs of all forms consist of.
fn pieces() -> impl Strategy<Value = String> {
    let literal = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "functools",
        "<function=weather>",
        "<function",
        " name=\"weather\">",
        "<parameter=days>",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "<param name=\"tags\">",
        "</param>",
        "<|python_tag|>",
        "<|python_start|>",
        "call:weather",
        "{\"name\": \"weather\", ",
        "\"arguments\": ",
        "\"parameters\": ",
        "{\"city\": \"x\"}",
        "weather(",
        "city=",
        "days:",
        "'",
        "\"",
        "\"\"\"",
        "<|\"|>",
        "\\",
        "\\u",
        "\\ud83d",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        ":",
        "=",
        "\n",
        " ",
        "1",
        "-",
        "True",
        "```",
        "```python",
        "é",
        "weather",
        "now()",
    ]);
    prop::collection::vec(literal, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// No cut changes what is read, and without a call nothing is lost.
    #[test]
    fn any_output_is_read_the_same_however_it_is_cut(output in pieces()) {
        for format in marked() {
            let (text, calls) = read_all_ways(format, &output);
            if calls.is_empty() {
                prop_assert_eq!(&text, &output);
            }
        }
    }

    #[test]
    fn what_a_form_writes_it_reads(
        introduction in "[a-z .]{0,8}",
        city in any::<String>(),
        days in any::<i64>(),
        metric in any::<bool>(),
        tags in prop::collection::vec("[a-zé \\\\\"']{0,6}", 0..3),
        x in any::<i32>(),
        is_two in any::<bool>(),
    ) {
        for format in marked() {
            // A form without escapes has no text with its own marks.
            let city: String = match format.name() {
                "gemma4" | "qwen_coder" | "minicpm5" => city.chars().filter(|c| !"<>|\r\n".contains(*c)).collect(),
                _ => city.clone(),
            };
            let arguments = json!({ "city": city, "days": days, "metric": metric, "tags": tags, "place": { "x": x } });
            let empty = json!({});
            let mut calls = vec![WrittenCall { name: "weather", arguments: &arguments }];
            if is_two {
                calls.push(WrittenCall { name: "now", arguments: &empty });
            }
            let introduction = if format.begins_with().is_some() { "" } else { introduction.as_str() };
            let output = format!("{introduction}{}", format.write(&calls));
            let (text, read) = read(format, [&*output]);
            prop_assert_eq!(text, introduction.trim_end(), "{:?}: {}", format, output);
            let read: Vec<(String, Value)> =
                read.into_iter().map(|(name, arguments)| (name, serde_json::from_str(&arguments).unwrap())).collect();
            let written: Vec<(String, Value)> =
                calls.iter().map(|call| (call.name.to_owned(), call.arguments.clone())).collect();
            prop_assert_eq!(read, written, "{:?}: {}", format, output);
        }
    }
}

#[test]
fn hostile_outputs_are_bounded() {
    const BYTES: usize = 1 << 20;
    for format in marked() {
        let call = |city: &str| {
            let arguments = json!({ "city": city });
            format.write(&[WrittenCall { name: "weather", arguments: &arguments }])
        };
        let open = format.opens()[0];
        let head = call("");
        let head = &head[..head.find("city").expect("its name")];
        let outputs = [
            " ".repeat(BYTES),
            open.repeat(BYTES / open.len()),
            format!("{open}{}", " ".repeat(BYTES)),
            format!("{head}{}", "[".repeat(BYTES)),
            format!("{head}tags=[{}", "{'a':".repeat(BYTES / 5)),
            format!("{head}tags:{}", "[".repeat(BYTES)),
            format!("{head}{}", "x".repeat(BYTES)),
            format!("{open}\n<function=weather>\n<parameter=days>\n{}", "1".repeat(BYTES)),
            format!("{open}\n<function=weather>\n<parameter=tags>\n{}</parameter>", "[".repeat(BYTES)),
            call(&"é".repeat(BYTES / 2)),
        ];
        for output in outputs {
            let mut reader = Reader::new(format, &tools(), false);
            let mut parts = Vec::new();
            // As tokens arrive; what is held is looked at again with each.
            let mut rest = output.as_str();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.ceil_char_boundary(rest.len().min(61)));
                reader.push(piece, &mut parts);
                parts.clear();
                rest = behind;
            }
            reader.finish(&mut parts);
            read(format, [&*output]);
        }
    }
}

#[test]
fn json_beside_calls_has_no_markers() {
    for format in marked() {
        let parts = |pieces: &[&str]| {
            let mut reader = Reader::new(format, &tools(), true);
            let mut parts = Vec::new();
            pieces.iter().for_each(|piece| reader.push(piece, &mut parts));
            reader.finish(&mut parts);
            parts
        };
        let open = format.opens()[0];
        let answer = Value::from(format!("{open}\n")).to_string();
        assert_eq!(parts(&[&answer]), [CallPart::Text(answer.clone())], "{format:?}");
        let arguments = json!({ "city": "x" });
        let call = format.write(&[WrittenCall { name: "weather", arguments: &arguments }]);
        let (first, rest) = call.split_at(3);
        assert_eq!(parts(&[first, rest])[0], CallPart::Begin("weather".to_owned()), "{format:?}: {call}");
    }
}

fn engine() -> Engine {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    Engine::open(path, EngineOptions::default()).unwrap()
}

/// Whether a grammar allows a text as a whole output.
fn allows(grammar: &Grammar, engine: &Engine, text: &str) -> bool {
    let tokenizer = engine.tokenizer();
    let tokens = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
    let mut mask = grammar.mask();
    (0..=tokens.len()).all(|n| {
        let mut logits = vec![0.0_f32; engine.config().vocab_size];
        let next = tokens.get(n).or(tokenizer.eos().first()).expect("an end token");
        mask.process(&tokens[..n], &mut logits).is_ok() && logits[next.index()] == 0.0
    })
}

#[test]
fn grammars_allow_what_their_form_writes() {
    let engine = engine();
    let vocabulary = Vocabulary::of_engine(&engine).unwrap();
    let mut tools = tools();
    // Channels have control tokens, which this vocabulary does not have.
    for format in marked() {
        let compile = |tools: &Tools, form: Form<'_>| {
            let source = grammar(format, tools, engine.tokenizer(), false, form);
            Grammar::lark(&vocabulary, &source)
                .unwrap_or_else(|error| panic!("{format:?}: {error}\n{source}"))
        };
        let schema =
            json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let calls = compile(&tools, Form::Calls);
        let either = compile(&tools, Form::CallsOr { schema: &schema, path: "" });
        let behind = compile(&tools, Form::BehindMarker);
        let values = [
            json!({ "city": "Oslo" }),
            json!({ "city": "a, b)", "days": 3 }),
            json!({ "city": "", "metric": true, "tags": [], "place": { "x": 1 } }),
            json!({ "city": "x", "days": 1, "metric": false, "tags": ["y", "z"], "place": { "x": 0.5 } }),
        ];
        for arguments in &values {
            let output = format.write(&[WrittenCall { name: "weather", arguments }]);
            assert!(allows(&calls, &engine, &output), "{format:?}: {output}");
            assert!(allows(&either, &engine, &output), "{format:?}: {output}");
            let opened = match format.begins_with() {
                Some(_) => &*output,
                None => output.strip_prefix(format.opens()[0]).expect("its marker"),
            };
            assert!(allows(&behind, &engine, opened), "{format:?}: {opened}");
        }
        assert!(allows(&either, &engine, "{\"a\":1}"), "{format:?}");
        let wrong = [
            json!({ "days": 3 }),
            json!({ "city": "x", "days": 0 }),
            json!({ "city": "x", "days": "y" }),
            json!({ "city": "x", "place": { "x": "y" } }),
        ];
        for arguments in &wrong {
            let output = format.write(&[WrittenCall { name: "weather", arguments }]);
            assert!(!allows(&calls, &engine, &output), "{format:?}: {output}");
        }
        let empty = json!({});
        let both = [
            WrittenCall { name: "weather", arguments: &values[0] },
            WrittenCall { name: "now", arguments: &empty },
        ];
        let is_single = format.name() == "llama";
        assert_eq!(allows(&calls, &engine, &format.write(&both)), !is_single, "{format:?}");
        assert!(!allows(&calls, &engine, &format.write(&[WrittenCall { name: "other", arguments: &empty }])));
        tools.is_parallel = false;
        assert!(!allows(&compile(&tools, Form::Calls), &engine, &format.write(&both)), "{format:?}");
        tools.is_parallel = true;
    }
}

#[test]
fn schemas_of_all_kinds_have_a_grammar() {
    let engine = engine();
    let vocabulary = Vocabulary::of_engine(&engine).unwrap();
    let schemas = [
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": { "a": {}, "b": true, "c": { "enum": ["x", 1, null] }, "d": { "const": "y" } } }),
        json!({ "type": "object", "properties": { "a": { "type": ["string", "null"] }, "b": { "anyOf": [{ "type": "integer" }, { "type": "null" }] } }, "required": ["b"] }),
        json!({ "type": "object", "properties": { "a/~": { "$ref": "#/properties/b" }, "b": { "type": "array", "items": { "$ref": "#/$defs/n" } } },
            "$defs": { "n": { "type": "object", "properties": { "n": { "anyOf": [{ "$ref": "#/$defs/n" }, { "type": "null" }] } } } }, "required": ["z"] }),
        json!({ "type": "object", "properties": { "a": { "type": "object" }, "b": { "type": "array" }, "c": { "type": "string", "pattern": "^x+$" } } }),
    ];
    for schema in schemas {
        let tools =
            Tools { functions: vec![function("f", schema.clone())], is_parallel: true, ..Tools::default() };
        for format in marked() {
            let source = grammar(format, &tools, engine.tokenizer(), false, Form::Calls);
            let compiled = Grammar::lark(&vocabulary, &source);
            assert!(compiled.is_ok(), "{format:?}: {schema}: {}\n{source}", compiled.unwrap_err());
        }
    }
}

#[test]
fn markers_that_are_control_tokens_are_named_by_their_ids() {
    let control = |text: &str| text.starts_with('<').then_some(TokenId(7));
    let mut lark = Lark::new(&control);
    let calls = gemma4::Gemma4.calls(&mut lark, &tools(), false);
    let source = lark.finish(&calls);
    assert!(source.contains("<[7]> call") && !source.contains("tool_call"), "{source}");
}

#[test]
fn the_beginning_of_an_answer_is_a_call_when_it_names_a_function() {
    let names = ["weather", "now"];
    let llama = |text: &str| named("llama").begins(text, &names);
    assert_eq!(llama(" {"), Begins::Perhaps);
    assert_eq!(llama("{\"name\": \"wea"), Begins::Perhaps);
    assert_eq!(llama("\n{ \"name\" : \"now\", "), Begins::At("\n{ \"name\" : \"now\"".len()));
    assert_eq!(llama("{\"name\": \"Bob\""), Begins::Never);
    assert_eq!(llama("Hello"), Begins::Never);
    let pythonic = |text: &str| named("pythonic").begins(text, &names);
    assert_eq!(pythonic("[now"), Begins::Perhaps);
    assert_eq!(pythonic("[now("), Begins::At(5));
    assert_eq!((pythonic("[1, 2]"), pythonic("[x]")), (Begins::Never, Begins::Never));
    assert_eq!(named("hermes").begins("{\"name\": \"now\"", &names), Begins::Never);
}

#[test]
fn ids_of_mistral_have_nine_letters_and_digits() {
    assert_eq!(mistral::id("abcDEF123"), None);
    let id = mistral::id("call_1").unwrap();
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    assert_eq!(mistral::id("call_1"), Some(id));
}
