//! Chat templates with the constructs that published ones use, and everything that can go wrong in one.

use refrain::internals::tokenizer::{
    ChatTemplate, SpecialTexts, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL, TemplateError,
};
use refrain::{Message, Role};

fn conversation() -> Vec<Message> {
    vec![
        Message::new(Role::System, "Be brief. "),
        Message::new(Role::User, " When is it?\n"),
        Message::new(Role::Assistant, "<think>\nhm\n</think>\n\nAt ten."),
        Message::new(Role::User, "Where?"),
    ]
}

fn special() -> SpecialTexts {
    SpecialTexts { bos: "<s>".to_owned(), eos: "</s>".to_owned() }
}

#[track_caller]
fn render(source: &str, messages: &[Message], prompt: bool) -> Result<String, TemplateError> {
    ChatTemplate::new(source.to_owned()).unwrap().render(messages, prompt, &special())
}

/// In the manner of Llama 3.2: variables that may be defined, the date, namespaces, `trim`, a system message taken off.
const LLAMA_STYLE: &str = r#"{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2000" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message goes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "[system]\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\n" }}
{%- endif %}
{{- "Today: " + date_string + "\n" }}
{{- system_message }}
{{- "[end]" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '[' + message['role'] + ']\n'+ message['content'] | trim + '[end]' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\n' }}
{%- endif %}
"#;

#[test]
fn llama_style() {
    let text = render(LLAMA_STYLE, &conversation(), true).unwrap();
    let expected = "<s>[system]\nToday: 26 Jul 2024\nBe brief.[end][user]\nWhen is it?[end]\
        [assistant]\n<think>\nhm\n</think>\n\nAt ten.[end][user]\nWhere?[end][assistant]\n";
    assert_eq!(text, expected);
    let text = render(LLAMA_STYLE, &conversation()[1..2], false).unwrap();
    assert_eq!(text, "<s>[system]\nToday: 26 Jul 2024\n[end][user]\nWhen is it?[end]");
}

/// In the manner of Qwen2.5: `if tools`, `tojson`, a default system message, `loop.first`, `loop.last`.
const QWEN2_STYLE: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nDefault.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

#[test]
fn qwen2_style() {
    let text = render(QWEN2_STYLE, &conversation()[1..2], true).unwrap();
    let expected = "<|im_start|>system\nDefault.<|im_end|>\n<|im_start|>user\n When is it?\n<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, expected);
    let text = render(QWEN2_STYLE, &conversation()[..2], false).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n When is it?\n<|im_end|>\n"
    );
}

/// In the manner of Qwen3: a reversed walk with a namespace, Python's string methods, thoughts cut from older answers.
const QWEN3_STYLE: &str = r#"{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|' + message.role + '|>\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|' + message.role + '|>\n' + content }}
        {%- endif %}
    {%- else %}
        {{- '<|' + message.role + '|>\n' + content }}
    {%- endif %}
    {{- '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"#;

#[test]
fn qwen3_style() {
    let text = render(QWEN3_STYLE, &conversation(), true).unwrap();
    let expected = "<|system|>\nBe brief. <|end|>\n<|user|>\n When is it?\n<|end|>\n<|assistant|>\nAt ten.<|end|>\n\
        <|user|>\nWhere?<|end|>\n<|assistant|>\n";
    assert_eq!(text, expected);
    let text = render(QWEN3_STYLE, &conversation()[..3], false).unwrap();
    assert!(text.ends_with("<|assistant|>\n<think>\nhm\n</think>\n\nAt ten.<|end|>\n"), "{text}");
}

#[test]
fn blocks_are_trimmed_as_hugging_face_does() {
    let source =
        "{% for m in messages %}\n  {% if loop.first %}\nfirst\n  {% endif %}\n{{ m.role }}\n{% endfor %}\n";
    assert_eq!(render(source, &conversation()[..2], true).unwrap(), "first\nsystem\nuser\n");
}

#[test]
fn python_methods_loop_controls_and_json() {
    let messages = conversation();
    assert_eq!(render("{{ messages[0].content.strip().upper() }}", &messages, true).unwrap(), "BE BRIEF.");
    let source =
        "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}{{ m.role }};{% endfor %}";
    assert_eq!(render(source, &messages, true).unwrap(), "system;user;");
    let source = r#"{{ {"b": [1, 2.5, none], "a": "<é>"} | tojson }}"#;
    let text = render(source, &messages, true).unwrap();
    assert!(text.contains("\"b\": [1, 2.5, null]") && text.contains("\"a\": \"<é>\""), "{text}");
    let text = render("{{ [1] | tojson(indent=2) }}", &messages, true).unwrap();
    assert_eq!(text, "[\n  1\n]");
    assert_eq!(render("{{ '<b>' }}", &messages, true).unwrap(), "<b>");
    assert_eq!(
        render("{{ strftime_now('%Y-%m-%d %A %B %H%%%q') }}", &messages, true).unwrap(),
        "2024-07-26 Friday July 00%%q"
    );
}

#[track_caller]
fn assert_variant(error: &TemplateError, variant: &str, message_has: &[&str]) {
    let (debug, message) = (format!("{error:?}"), error.to_string());
    assert!(debug.starts_with(variant), "expected {variant}, got {debug}");
    assert!(!message.contains('\n') && message.starts_with("chat_template"), "{message}");
    for part in message_has {
        assert!(message.contains(part), "{message:?} does not have {part:?}");
    }
}

#[test]
fn templates_that_do_not_compile() {
    let refused = |source: String| ChatTemplate::new(source).unwrap_err();
    assert_variant(&refused("a\nb\n{% for %}".to_owned()), "Syntax", &["line 3"]);
    assert_variant(&refused("{{ x | nothing_like_it( }}".to_owned()), "Syntax", &["line 1"]);
    assert_variant(&refused("{{".repeat(1000)), "Syntax", &[]);
    assert_variant(
        &refused(format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000))),
        "Syntax",
        &[],
    );
    assert_variant(&refused("x".repeat(TEMPLATE_BYTES_MAX + 1)), "TooLong", &["1048577", "1048576"]);
}

#[test]
fn templates_that_fail_while_they_run() {
    let failed = |source: &str| render(source, &conversation(), true).unwrap_err();
    assert_variant(&failed("\n{{ messages[9].content }}"), "Render", &["line 2"]);
    assert_variant(&failed("{{ 1 / 0 }}"), "Render", &["line 1"]);
    assert_variant(&failed("{{ nothing() }}"), "Render", &["nothing"]);
    assert_variant(&failed("{% include 'passwords' %}"), "Render", &[]);
    assert_variant(&failed("{{ messages[0].content.nothing() }}"), "Render", &[]);
    assert_variant(
        &failed(
            "{% if messages[0].role == 'system' %}\n{{ raise_exception('no system messages') }}{% endif %}",
        ),
        "Raised",
        &["line 2", "no system messages"],
    );
    let nested =
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}done";
    assert_eq!(render(nested, &conversation(), true).unwrap(), "done");
    let inner = "{% for j in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let nested = nested.replace("{% set ns.x = [ns.x] %}", inner);
    assert_variant(&failed(&nested), "OutOfFuel", &[]);
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_variant(&failed(endless), "OutOfFuel", &[&TEMPLATE_FUEL.to_string()]);
    let flood = "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}";
    assert_variant(&failed(flood), "OutputTooLong", &["8388608"]);
    let deep = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert_variant(&failed(deep), "Render", &[]);
}
