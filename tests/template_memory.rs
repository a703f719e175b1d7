//! Templates that grow: each is a typed error within a second and 64 MiB.

use std::time::Duration;

use peak_alloc::PeakAlloc;
use refrain::internals::tokenizer::{ChatTemplate, SpecialTexts, TemplateError};
use refrain::{ChatOptions, Message, Role};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Processor time of this thread, so that other processes on the machine do not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The result of a template for a conversation, within a second and 64 MiB.
#[track_caller]
fn bounded(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
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
    let messages = [Message::new(Role::User, "hi")];
    let loops = |body: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1, 2], d={{'a': 1}}) %}}{{% for i in range(99999999) %}}{body}{{% endfor %}}"
        )
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
    let text = "A sentence of a long conversation. ".repeat(1000);
    let messages: Vec<Message> = (0..100).map(|_| Message::new(Role::User, text.as_str())).collect();
    let source = "{% for m in messages %}{% set c = m.content.strip().split('</think>')[-1].lstrip('\n') | trim %}\
        {{- '<|im_start|>' + m.role + '\n' + c + '<|im_end|>' + '\n' }}{% endfor %}";
    let template = ChatTemplate::new(source.to_owned()).unwrap();
    let rendered =
        template.render(&messages, &ChatOptions::default(), true, &SpecialTexts::default()).unwrap();
    assert!(rendered.len() > 100 * (text.len() - 10), "{}", rendered.len());
}
