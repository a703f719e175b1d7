//! Templates that grow: each is a typed error within a second and 64 MiB.

use std::time::Duration;

use refrain::internals::tokenizer::{ChatTemplate, SpecialTexts, TemplateError};
use refrain::{ChatOptions, Message, Role};
use rustix::time::{ClockId, clock_gettime};

use crate::{MEMORY, turn};

/// Processor time of this thread, so that other processes on the machine do not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The result of a template for a conversation, within a second and 64 MiB.
#[track_caller]
fn bounded(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    let start = processor_time();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let result = ChatTemplate::new(source.to_owned()).and_then(|template| {
        template.render(messages, &ChatOptions::default(), true, &SpecialTexts::default())
    });
    let used = MEMORY.peak_usage().saturating_sub(before);
    let shown: String = source.chars().take(120).collect();
    assert!(used <= 64 << 20, "{used} bytes: {shown}");
    let elapsed = processor_time() - start;
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}: {shown}");
    result
}

#[test]
fn templates_that_grow_are_stopped() {
    let _turn = turn();
    let messages = [Message::new(Role::User, "hi")];
    let loops = |body: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1, 2], d={{'a': 1}}) %}}{{% for i in range(99999999) %}}{body}{{% endfor %}}"
        )
    };
    let shared = |expression: &str| {
        format!(
            "{{% set ns = namespace(a=[]) %}}{{% for i in range(60) %}}{{% set ns.a = [ns.a, ns.a] %}}{{% endfor %}}{{{{ {expression} }}}}"
        )
    };
    let long = |body: &str| {
        "{% set b = 'x' * 1000000 %}{% set parts = [b[1:] ~ 'y', 'y' ~ b[1:]] * 10000 %}".to_owned()
            + &loops(body)
    };
    let names = |from: usize, n: usize, after: &str| {
        (from..from + n).map(|i| format!("a{i}{after}")).collect::<String>()
    };
    let body = |step: &str| loops(&format!("{{% set ns.x = {step} %}}"));
    let sources = [
        body("ns.x ~ ns.x"),
        body("ns.x + ns.x"),
        body("ns.x * 1000"),
        body("1000 * ns.x"),
        body("ns.x.replace('', ns.x)"),
        body("ns.x.replace('a', 'aaaaaaaa')"),
        body("ns.x | replace('b', ns.x)"),
        body("ns.x.join(['a', 'b', 'c', 'd'])"),
        body("[ns.x, ns.x] | join(ns.x)"),
        body("'{}{}'.format(ns.x, ns.x)"),
        body("ns.x.rjust(ns.x | length * 3)"),
        body("ns.x.center(999999999999)"),
        body("ns.x | indent(1000, true) ~ '\\n' ~ ns.x"),
        body("ns.x | escape ~ '<<'"),
        body("[ns.x, ns.x] | tojson"),
        body("[ns.x, ns.x] | string"),
        body("(ns.x ~ 'ß') | upper ~ ns.x"),
        body("strftime_now(ns.x ~ '%A %B') ~ ns.x"),
        body("ns.x[::-1] ~ ns.x[0:]"),
        body("{'a': ns.x} ~ ns.x"),
        loops("{% set ns.l = ns.l + ns.l %}"),
        loops("{% set ns.l = ns.l * 1000 %}"),
        loops("{% set ns.l = ns.l[:] + (ns.l | list) %}"),
        loops("{% set ns.l = (ns.l ~ '') | list %}"),
        loops("{% set ns.l = [ns.l, ns.l] | sum(start=[]) %}"),
        loops("{% set ns.l = (ns.l | batch(1, ns.l) | list) %}"),
        loops("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        loops("{% set x %}{% for j in range(99999999) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}{% endset %}"),
        loops("{% filter upper %}{% for j in range(99999999) %}yyyyyyyyyyyyyyyy{% endfor %}{% endfilter %}"),
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}".to_owned() + &body("m(ns.x)"),
        "{% macro m(x) %}{{ caller() }}{{ caller() }}{% endmacro %}".to_owned()
            + &loops("{% set ns.x %}{% call m() %}{{ ns.x }}{% endcall %}{% endset %}"),
        "{{ range(99999999999) | list }}".to_owned(),
        "{{ range(9999999) | join(',') }}".to_owned(),
        "{{ range(99999999) | string }}{{ range(99999999) | sum }}".to_owned(),
        "{{ 'x' * 99999999999999 }}".to_owned(),
        "{{ 'x'.rjust(9223372036854775807) }}".to_owned(),
        "{{ [1] * 9223372036854775807 }}".to_owned(),
        "{{ ('ab' * 4000000) | list }}".to_owned(),
        "{{ ('a ' * 4000000).split() }}".to_owned(),
        "{{ ('a\\n' * 4000000).splitlines() }}".to_owned(),
        "{{ [1] | batch(9999999999, 0) }}".to_owned(),
        "{{ [1] | slice(9999999999) }}".to_owned(),
        "{{ messages | tojson(indent=16) }}{{ 9 ** 9999999 }}".to_owned(),
        // Work without growth.
        loops("{% if 'aaaaaaaaaaaaaaaaaaaaaaaab' in 'a' * 100000 %}{% endif %}"),
        format!(
            "{{% set a = 'x' * 1000000 %}}{{% set b = 'x' * 1000000 %}}{}",
            loops("{% if a == b %}{% endif %}")
        ),
        format!("{{% set a = [0] * 100000 %}}{}", loops("{% if 1 in a %}{% endif %}")),
        format!("{{% set a = [0] * 100000 %}}{}", loops("{{ a | length }}{% set b = a | sort %}")),
        format!("{{% set a = range(100000) %}}{}", loops("{% set b = a | unique | list %}")),
        format!("{{% set a = {{{}}} %}}", (0..20_000).map(|i| format!("{i}:1,")).collect::<String>()),
        loops("{% for j in range(99999999) %}{% endfor %}"),
        // Two equal lists of 2^60 items each, in 60 steps.
        shared("ns.a == ns.a"),
        shared("ns.a < ns.a"),
        shared("ns.a in [ns.a]"),
        shared("[ns.a].index(ns.a)"),
        shared("[ns.a, ns.a] | min"),
        shared("[ns.a, ns.a] | sort"),
        shared("[ns.a, ns.a] | unique | list"),
        // Long texts that are compared, searched for or copied, but never made.
        long("{% if b.startswith(parts) %}{% endif %}"),
        long("{% if b.endswith(parts) %}{% endif %}"),
        long("{% if 'a'.find(b) %}{% endif %}"),
        long("{% if 'a'.split(b) %}{% endif %}"),
        long("{% if 'a'.partition(b) %}{% endif %}"),
        long("{% if 'a'.replace(b, '') %}{% endif %}"),
        long("{% if 'a' | indent(b) %}{% endif %}"),
        long("{% if b[1:] in b %}{% endif %}"),
        long("{% if b.count('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy') %}{% endif %}"),
        long("{% if b.count('x') %}{% endif %}"),
        long("{% if b | wordcount %}{% endif %}"),
        long("{% if b is lower %}{% endif %}"),
        long("{% if b[999998] %}{% endif %}"),
        long("{% if [] | tojson(separators=[b, b]) %}{% endif %}"),
        long("{% if {b ~ 'x': 1} | attr(b ~ 'y') %}{% endif %}"),
        long("{% if [1] | map(attribute='.' * 100000) %}{% endif %}"),
        "{% set b = 'é' * 500000 %}".to_owned() + &loops("{% if b | wordcount %}{% endif %}"),
        "{% set b = 'é' * 500000 %}".to_owned() + &loops("{% if b is lower %}{% endif %}"),
        "{% set b = 'é' * 500000 %}".to_owned()
            + &loops("{% if b.find('éèéèéèéèéèéèéèéèéèéèéèéèéèéèéè') %}{% endif %}"),
        // Names in many frames, long names, parameters without arguments, arguments by name.
        (0..29)
            .map(|i| format!("{{% with {} %}}", names(i * 16, 16, "=1,").trim_end_matches(',')))
            .collect::<String>()
            + &loops("{% if u %}{% endif %}")
            + &"{% endwith %}".repeat(29),
        format!("{{% set {0}a = 1 %}}", "n".repeat(80_000))
            + &loops(&format!("{{% if {}b %}}{{% endif %}}", "n".repeat(80_000))),
        format!("{{% macro m({}) %}}{{% endmacro %}}", names(0, 20_000, ",")) + &loops("{{ m() }}"),
        format!("{{% macro m({}) %}}{{% endmacro %}}", names(0, 10_000, ","))
            + &loops(&format!("{{{{ m({}) }}}}", names(0, 10_000, "=1,"))),
        loops(&format!("{{% set x = '{}'.format({}) %}}", "{a9}".repeat(15_000), names(0, 15_000, "=1,"))),
        // Long lists that are begun at each level of a recursion.
        format!(
            "{{% macro m() %}}{{{{ [{{{} 1: m()}}] }}}}{{% endmacro %}}{{{{ m() }}}}",
            "1:1,".repeat(50_000)
        ),
        format!("{{% macro m() %}}{{{{ cycle({} m()) }}}}{{% endmacro %}}{{{{ m() }}}}", "1,".repeat(90_000)),
        format!("{{% macro m({} b=m()) %}}{{% endmacro %}}{{{{ m() }}}}", "a,".repeat(100_000)),
        // The longest accepted source.
        format!("{{{{ [{}] }}}}", "1,".repeat(120_000)) + &body("ns.x ~ ns.x"),
        "{{ x }}".repeat(30_000) + &body("ns.x ~ ns.x"),
    ];
    for source in &sources {
        let error = bounded(source, &messages).map(|text| text.len()).unwrap_err();
        let shown: String = source.chars().take(200).collect();
        let is_bound = matches!(
            error,
            TemplateError::OutOfMemory { .. }
                | TemplateError::OutOfFuel { .. }
                | TemplateError::OutputTooLong { .. }
        );
        let is_value = matches!(error, TemplateError::Render { .. });
        assert!(is_bound || is_value, "{error:?}: {shown}");
        assert!(error.to_string().contains("chat_template"), "{error}");
    }
}

#[test]
fn a_long_conversation_has_the_memory_it_needs() {
    let _turn = turn();
    let text = "A sentence of a long conversation. ".repeat(1000);
    let messages: Vec<Message> = (0..100).map(|_| Message::new(Role::User, text.as_str())).collect();
    let source = "{% for m in messages %}{% set c = m.content.strip().split('</think>')[-1].lstrip('\n') | trim %}\
        {{- '<|im_start|>' + m.role + '\n' + c + '<|im_end|>' + '\n' }}{% endfor %}";
    let template = ChatTemplate::new(source.to_owned()).unwrap();
    let rendered =
        template.render(&messages, &ChatOptions::default(), true, &SpecialTexts::default()).unwrap();
    assert!(rendered.len() > 100 * (text.len() - 10), "{}", rendered.len());
}
