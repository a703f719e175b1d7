use super::*;

fn render_with(source: &str, variables: Vec<(&str, Value)>) -> std::result::Result<String, Error> {
    let template = parse(source).map_err(|e| *e)?;
    let bounds = Bounds { fuel: 1_000_000, bytes: 1 << 24, output: 1 << 20 };
    render(&template, variables, &|format| format!("<{format}>"), &bounds).map_err(|e| *e)
}

#[track_caller]
fn is(source: &str, expected: &str) {
    let json = serde_json::json!({"a": [1, 2, 3, 4], "d": {"x": 1, "y": "two"}, "s": "Hello World", "items": [
        {"name": "b", "n": 2}, {"name": "a", "n": 1}, {"name": "C", "n": 1}]});
    let variables = json.as_object().unwrap().iter();
    let variables =
        variables.map(|(name, value)| (name.as_str(), Value::from_json(value).unwrap())).collect();
    assert_eq!(render_with(source, variables).as_deref(), Ok(expected), "{source}");
}

/// The output of Jinja 3.1. `tools/tokenizer-goldens` checks these cases against it.
#[test]
fn expressions() {
    for (source, expected) in [
        ("{{ 1 + 2 * 3 - 4 / 2 }}", "5.0"),
        (
            "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 7 % -2 }} {{ 2 ** 10 }}",
            "3 -4 1 2 -4 -1 1024",
        ),
        ("{{ 1e16 }} {{ 1.5e-5 }} {{ 100.0 }} {{ 1 == 1.0 }} {{ true + 1 }}", "1e+16 1.5e-05 100.0 True 2"),
        ("{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"),
        ("{{ ['a', 1, none, 'it\\'s'] }} {{ {'k': [1.5]} }}", "['a', 1, None, \"it's\"] {'k': [1.5]}"),
        (
            "{{ a[1:3] }} {{ a[::-1] }} {{ a[-1] }} {{ s[:5] }} {{ s[::-2] }} {{ a[5:] }}",
            "[2, 3] [4, 3, 2, 1] 4 Hello drWolH []",
        ),
        (
            "{{ 1 < 2 < 3 }} {{ 3 > 2 == 2 }} {{ 2 in a }} {{ 'x' not in d }} {{ 'ell' in s }}",
            "True True True False True",
        ),
        (
            "{{ not a }} {{ a and 'yes' }} {{ '' or 'no' }} {{ 'p' if a else 'q' }}{{ 'z' if not a }}",
            "False yes no p",
        ),
        (
            "{{ d.x }} {{ d['y'] }} {{ d.none }} {{ d.get('z', 3) }} {{ d.items() | list }}",
            "1 two  3 [['x', 1], ['y', 'two']]",
        ),
        (
            "{{ -1 | abs }} {{ 3.7 | int }} {{ '12' | int + 1 }} {{ 2.5 | round }} {{ 'x' | default('y') }}{{ u | default('y') }}",
            "1 3 13 2.0 xy",
        ),
        (
            "{{ s.upper() }} {{ s | lower }} {{ s | title }} {{ s.split() }} {{ s.replace('l', 'L', 1) }}",
            "HELLO WORLD hello world Hello World ['Hello', 'World'] HeLlo World",
        ),
        (
            "{{ items | map(attribute='name') | join(',') }} {{ items | sort(attribute='name') | map(attribute='name') | list }}",
            "b,a,C ['a', 'b', 'C']",
        ),
        (
            "{{ none | map('upper') | list }} {{ none | selectattr('n') | list }} {{ u | rejectattr('n', 'equalto', 1) | list | length }} {{ 0 | select | list }}",
            "[] [] 0 []",
        ),
        (
            "{{ items | selectattr('n', 'equalto', 1) | map(attribute='name') | join }} {{ a | select('odd') | list }}",
            "aC [1, 3]",
        ),
        ("{{ items | rejectattr('n', '==', 1) | list | length }}", "1"),
        (
            "{{ 5 is odd }} {{ u is defined }} {{ d is mapping }} {{ s is string and a is sequence }} {{ none is none }}",
            "True False True True True",
        ),
        (
            "{{ {'b': 1, 'a': [true, none]} | tojson }} {{ [1] | tojson(indent=2) }}",
            "{\"b\": 1, \"a\": [true, null]} [\n  1\n]",
        ),
        (
            "{{ [1, 'é', \"q\\\"\"] | tojson(separators=(',', ':'), ensure_ascii=true) }}",
            "[1,\"\\u00e9\",\"q\\\"\"]",
        ),
        (
            "{{ range(3) | list }} {{ range(1, 10, 4) | list }} {{ 4 in range(0, 9, 2) }} {{ range(3, 0, -1) | list }}",
            "[0, 1, 2] [1, 5, 9] True [3, 2, 1]",
        ),
        ("{{ '%' }}{{ '\\x41\\u00e9\\d' }}{{ 'a' 'b' }}", "%Aé\\dab"),
        (
            "{{ dict(a=1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'k=v'.partition('=') | list }} {{ ' x '.strip() }}",
            "{'a': 1} ['a,b', 'c'] ['k', '=', 'v'] x",
        ),
        (
            "{{ 'doc_id of (an) x-ray\\tISN\\'T' | title }} {{ 'doc_id isn\\'t'.title() }}",
            "Doc_id Of (An) X-Ray\tIsn't Doc_Id Isn'T",
        ),
        // What `+` joins to a safe text is escaped.
        (
            "{{ '<'|safe + '<' }} {{ '&' + '&'|safe }} {{ ('<'|safe).upper() + '<' }} {{ '<'|e + '\"' }} {{ '<'|safe|trim + '<' }}",
            "<&lt; &amp;& <&lt; &lt;&#34; <&lt;",
        ),
        (
            "{{ '<'|safe|string is escaped }} {{ '<'|safe == '<' }} {{ '<' in 'a<'|safe }} {{ '<'|safe ~ '<' }}",
            "True True True <<",
        ),
        (
            "{{ {'a': '<'|safe} | tojson }} {{ '<'|safe|replace('<', '[') + '<' }} {{ ('<'|safe)[0] is string }}",
            "{\"a\": \"<\"} [< True",
        ),
        // A namespace in a list keeps changing.
        (
            "{% set ns = namespace(x=1) %}{% set l = [ns] + [{'x': 2}] %}{% set ns.x = 3 %}{{ l | map(attribute='x') | list }}",
            "[3, 2]",
        ),
        // Filters and tests that do not exist are errors where they are reached.
        ("{% if u %}{{ a | no_filter }}{{ 1 is no_test }}{% endif %}{{ a | no_filter if u else 'x' }}", "x"),
        (
            "{{ strftime_now('%Y') }} {{ '{} {0} {k}'.format(1, k=2) }} {{ [3, 1, 2] | max }} {{ [] | first }}",
            "<%Y> 1 1 2 3 ",
        ),
    ] {
        is(source, expected);
    }
}

#[test]
fn statements() {
    for (source, expected) in [
        (
            "{% for i in a %}{{ loop.index }}{{ loop.last }}{% if i == 2 %}{% break %}{% endif %},{% endfor %}",
            "1False,2False",
        ),
        ("{% for i in a if i > 2 %}{{ i }}/{{ loop.length }};{% else %}none{% endfor %}", "3/2;4/2;"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}", "x=1 y=two "),
        ("{% for i in a %}{{ loop.previtem }}<{{ loop.nextitem }} {% endfor %}", "<2 1<3 2<4 3< "),
        ("{% set x = 1 %}{% for i in a %}{% set x = i %}{% endfor %}{{ x }}", "1"),
        (
            "{% set ns = namespace(n=0) %}{% for i in a %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "10",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set p, q = 1, 2 %}{{ p + q }}", "a13"),
        (
            "{% macro m(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ m(1) }}{{ m(1, y=2) }}{{ m(*[3, 4]) }}",
            "[1d][12][34]",
        ),
        (
            "{% macro w() %}<{{ caller('c') }}>{% endmacro %}{% set o = 'o' %}{% call(x) w() %}{{ x }}{{ o }}{% endcall %}",
            "<co>",
        ),
        ("{% filter upper %}abc{% endfilter %}{% with z = 3 %}{{ z }}{% endwith %}{{ z }}", "ABC3"),
        ("{% if a %}\n  {% if d %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),
        ("a {%- if a -%} b {%- endif %} c\n", "ab c"),
        ("{# c #}\nx{% raw %}{{ y }}{% endraw %}{{ {'a': {'b': 1}} }}", "x{{ y }}{'a': {'b': 1}}"),
        ("{% if u %}1{% elif a %}2{% else %}3{% endif %}", "2"),
        (
            "{% for i in range(2) %}{% for j in range(2) %}{{ loop.depth }}{% continue %}x{% endfor %}{% endfor %}",
            "2222",
        ),
        ("{% generation %}{{ s }}{% endgeneration %}", "Hello World"),
    ] {
        is(source, expected);
    }
}

#[test]
fn errors_name_their_line() {
    for (source, line, has) in [
        ("\n\n{% if %}", 3, "expected an expression"),
        ("{{ 1 +\n }}", 2, "expected an expression, found `}}`"),
        ("a\n{{ u.x }}", 2, "`u` is undefined"),
        ("{{ 'a'\n + 1 }}", 2, "`+` of a string and a number"),
        ("{{ s.append(1) }}", 1, "a string has no method `append`"),
        ("{{ a.append(1) }}", 1, "a list has no method `append`"),
        ("{% macro m() %}{% endmacro %}\n{{ m(1) }}", 2, "takes 0 arguments, 1 given"),
        ("{{ s | replace('a') }}", 1, "needs the argument `new`"),
        ("{{ 9223372036854775807 + 1 }}", 1, "out of range"),
        ("{{ a | tojson(index=3) }}", 1, "takes no argument `index`"),
        ("{% for a, b in [[1]] %}{% endfor %}", 1, "2 names for 1 values"),
        ("{% for i in 3 %}{% endfor %}", 1, "a number has no items"),
        ("{% set s.x = 1 %}", 1, "`s` is no namespace"),
        ("{% if 1 %}\nx", 2, "`{% endif %}`, found the end"),
        ("{% set ns = namespace() %}\n{% set ns.x = [{'y': ns}] %}", 2, "a namespace cannot be stored"),
        ("{{ 1 }}\n{{ [s | shout] }}", 2, "unknown filter `shout`"),
        ("{% if s is loud %}\n{{ s | shout }}{% endif %}", 1, "unknown test `loud`"),
        ("{% if s %}\n{{ s | shout }}{% endif %}", 2, "unknown filter `shout`"),
        ("{{ 1 if s else s | shout }}\n{{ s | shout }}", 2, "unknown filter `shout`"),
    ] {
        let error = render_with(source, vec![("s", Value::text("s")), ("a", Value::list(vec![]).unwrap())])
            .unwrap_err();
        let (ErrorKind::Syntax(reason) | ErrorKind::Value(reason)) = &error.kind else {
            panic!("{source}: {error:?}")
        };
        assert!(error.line == line && reason.contains(has), "{source}: {error:?}");
    }
}

#[test]
fn numbers_are_ordered_exactly() {
    for (source, expected) in [
        // 2^53 + 1 is no float.
        (
            "{{ [9007199254740993, 9007199254740992.0, 9007199254740992] | sort }}",
            "[9007199254740992.0, 9007199254740992, 9007199254740993]",
        ),
        (
            "{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}",
            "False True",
        ),
        (
            "{{ 9223372036854775807 < 1e19 }} {{ 1 < 1.5 }} {{ -1 > -1.5 }} {{ -1e19 < -9 }}",
            "True True True True",
        ),
        ("{{ [3, 1.5, true, 2, 0] | sort(reverse=true) }}", "[3, 2, 1.5, True, 0]"),
        ("{{ items | sort(attribute='n', reverse=true) | map(attribute='name') | join }}", "baC"),
        ("{{ range(40) | reverse | sort == range(40) | list }}", "True"),
        (
            "{{ {'b': 1, 'a': 2} | dictsort }} {{ items | groupby('n') | map('first') | list }}",
            "[['a', 2], ['b', 1]] [1, 2]",
        ),
    ] {
        is(source, expected);
    }
}

/// The order of the standard library's sort may not fail: it panics where later comparisons contradict earlier ones.
#[test]
fn sorting_stops_at_values_without_order() {
    for filter in ["sort", "map('list') | sort", "sort(reverse=true)"] {
        let source = format!(
            "{{% set ns = namespace(l=[]) %}}{{% for i in range(200) %}}{{% set ns.l = ns.l + [[(i * 7919) % 211, none][i % 97 // 96]] \
             %}}{{% endfor %}}{{{{ ns.l | {filter} }}}}"
        );
        let error = render_with(&source, Vec::new()).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Value(_)), "{source}: {error:?}");
    }
}

#[test]
fn ranges_end_at_the_largest_integer() {
    const MAX: &str = "9223372036854775807";
    for access in ["[0:1]", "[-1]", "[::-1]", " | first", " | length"] {
        let source = format!("{{{{ range(-{MAX}, {MAX}){access} }}}}");
        let error = render_with(&source, Vec::new()).unwrap_err();
        assert!(matches!(&error.kind, ErrorKind::Value(reason) if reason.contains("range")), "{error:?}");
    }
    is(
        &format!("{{{{ range({MAX})[-1:] | list }}}} {{{{ range({MAX})[::-1][1] }}}}"),
        "[9223372036854775806] 9223372036854775805",
    );
    is(
        &format!("{{{{ range(-{MAX}, {MAX}, 3)[-1] }}}} {{{{ range(-{MAX}, {MAX}, 3)[-1:] | list }}}}"),
        "9223372036854775805 [9223372036854775805]",
    );
    is(&format!("{{{{ range(-{MAX}, {MAX}, {MAX}) | list }}}}"), "[-9223372036854775807, 0]");
}

#[test]
fn a_format_uses_a_name_twice() {
    is("{{ '{k}{k}{0}'.format(1, k=2) }}", "221");
}
