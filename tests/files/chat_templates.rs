//! Chat templates with the constructs of published ones, and every kind of error.

use refrain::internals::tokenizer::{
    ChatTemplate, SpecialTexts, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL, TemplateError,
};
use refrain::{ChatDate, ChatOptions, ErrorKind, Message, Role};
use serde_json::json;

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
    let mut options = ChatOptions::default();
    options.date = Some(date());
    render_with(source, messages, &options, prompt)
}

#[track_caller]
fn render_with(
    source: &str,
    messages: &[Message],
    options: &ChatOptions,
    prompt: bool,
) -> Result<String, TemplateError> {
    ChatTemplate::new(source.to_owned()).unwrap().render(messages, options, prompt, &special())
}

fn date() -> ChatDate {
    ChatDate::from_ymd(2024, 7, 26).unwrap()
}

/// In the style of Llama 3.2: variables that may be undefined, the date, namespaces, `trim`, a system message that is
/// removed.
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

/// In the style of Qwen2.5: `if tools`, `tojson`, a default system message, `loop.first`, `loop.last`.
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

/// In the style of Qwen3: a reversed loop with a namespace, Python's string methods, reasoning cut from older answers.
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
    assert_eq!(text, r#"{"b": [1, 2.5, null], "a": "<é>"}"#);
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
    assert_variant(&refused("x".repeat(TEMPLATE_BYTES_MAX + 1)), "TooLong", &["262145", "262144"]);
    assert_variant(
        &refused("a\n{{ x | shout }}".to_owned()),
        "Syntax",
        &["line 2", "unknown filter `shout`"],
    );
    assert_variant(&refused("{{ x is loud }}".to_owned()), "Syntax", &["unknown test `loud`"]);
    assert_variant(
        &refused("{% include 'passwords' %}".to_owned()),
        "Syntax",
        &["`include` is not supported"],
    );
    assert_variant(
        &refused("{% if x %}\n\n{% endfor %}".to_owned()),
        "Syntax",
        &["line 3", "unknown tag `endfor`"],
    );
    assert_variant(&refused("{{ 'a }}".to_owned()), "Syntax", &["a string without an end"]);
    assert_variant(&refused("{% break %}".to_owned()), "Syntax", &["outside a loop"]);
}

#[test]
fn templates_that_fail_while_they_run() {
    let failed = |source: &str| render(source, &conversation(), true).unwrap_err();
    assert_variant(&failed("\n{{ messages[9].content }}"), "Render", &["line 2"]);
    assert_variant(&failed("{{ 1 / 0 }}"), "Render", &["line 1"]);
    assert_variant(&failed("{{ nothing() }}"), "Render", &["nothing"]);
    assert_variant(&failed("{{ nothing.at.all }}"), "Render", &["`nothing` is undefined"]);
    assert_variant(&failed("\n{{ 'a' + nothing }}"), "Render", &["line 2", "`nothing` is undefined"]);
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
    assert_variant(&failed(nested), "Render", &["values are nested deeper than 64"]);
    assert_variant(
        &failed("{% set ns = namespace() %}{% set ns.me = ns %}"),
        "Render",
        &["a namespace cannot be stored"],
    );
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_variant(&failed(endless), "OutOfFuel", &[&TEMPLATE_FUEL.to_string()]);
    let flood = "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}";
    assert_variant(&failed(flood), "OutputTooLong", &["8388608"]);
    let deep = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert_variant(&failed(deep), "Render", &["nested deeper"]);
}

/// A thread with the stack size of tests.
fn on_a_small_stack(run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, run).unwrap().join().unwrap();
    });
}

#[test]
fn deep_nesting_is_refused_on_a_small_stack() {
    on_a_small_stack(|| {
        let refused = |source: String| {
            assert_variant(&ChatTemplate::new(source).unwrap_err(), "Syntax", &["nested deeper"])
        };
        let n = 100_000;
        refused(format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)));
        refused(format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n)));
        refused(format!("{{{{ {}1{} }}}}", "{1:".repeat(60_000), "}".repeat(60_000)));
        refused(format!("{{{{ {}1 }}}}", "-".repeat(n)));
        refused(format!("{{{{ {}1 }}}}", "not ".repeat(60_000)));
        refused(format!("{{{{ x{} }}}}", ".a".repeat(n)));
        refused(format!("{{{{ x{} }}}}", "|e".repeat(n)));
        refused(format!("{{{{ 1{} }}}}", "+1".repeat(n)));
        refused(format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(20_000)));
        refused("{%if 1%}".repeat(30_000));
        refused("{%for x in y%}".repeat(18_000));
        refused("{%macro m()%}".repeat(18_000));
        refused("{%set x%}".repeat(28_000));
        // The greatest accepted depth of every kind at once, with a macro that calls itself there.
        let parens = format!("{}x{}", "(".repeat(40), ")".repeat(40));
        let chain = format!("{parens}{}", " ~ x".repeat(90));
        let blocks = 28;
        let source = format!(
            "{{% set x = 'a' %}}{{% macro m() %}}{}{{{{ {chain} ~ m() }}}}{}{{% endmacro %}}{{{{ m() }}}}",
            "{% if 1 %}".repeat(blocks),
            "{% endif %}".repeat(blocks)
        );
        assert_variant(&render(&source, &conversation(), true).unwrap_err(), "Render", &["nested deeper"]);
    });
}

// Options

#[test]
fn thinking_tools_documents_and_variables_reach_the_template() {
    let source = "{{ enable_thinking is defined }} {{ tools }} {{ documents }}{% if enable_thinking is false %} no{% endif %}";
    assert_eq!(render(source, &[], true).unwrap(), "False None None");
    let tool =
        json!({"type": "function", "function": {"name": "clock", "description": "é", "arguments": {}}});
    let mut options = ChatOptions::default();
    options.enable_thinking = Some(false);
    options.tools = vec![tool];
    options.documents = vec![json!({"title": "T", "text": "x"})];
    options.set_variable("style", json!(["short", 1, 2.5, null, true])).unwrap();
    let source = "{{ tools[0] | tojson }} {{ documents[0].title }} {{ style }} {{ enable_thinking }}";
    assert_eq!(
        render_with(source, &[], &options, true).unwrap(),
        "{\"type\": \"function\", \"function\": {\"name\": \"clock\", \"description\": \"é\", \"arguments\": {}}} T \
         ['short', 1, 2.5, None, True] False",
        "keys keep their order"
    );
    for name in ["messages", "tools", "bos_token", "add_generation_prompt", "strftime_now", "enable_thinking"]
    {
        let error = ChatOptions::default().set_variable(name, json!(1)).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidArgument, Some(name)));
        assert!(error.to_string().contains("reserved"));
    }
}

#[test]
fn the_date_is_the_clocks_unless_it_is_set() {
    let source = "{{ strftime_now('%Y-%m-%d') }} {{ date_string }}";
    assert_eq!(render(source, &[], true).unwrap(), "2024-07-26 26 Jul 2024");
    let today = || render_with("{{ strftime_now('%F') }}", &[], &ChatOptions::default(), true).unwrap();
    let (before, clock) =
        (today(), std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap());
    let mut expected = ChatOptions::default();
    expected.date = Some(ChatDate::from_unix(clock.as_secs() as i64));
    let expected = render_with("{{ strftime_now('%F') }}", &[], &expected, true).unwrap();
    assert!(expected == before || expected == today(), "{expected}, {before}");
    let mut own = ChatOptions::default();
    own.set_variable("date_string", json!("today")).unwrap();
    assert_eq!(render_with("{{ date_string }}", &[], &own, true).unwrap(), "today");
}

#[test]
fn roles_and_fields_of_messages_reach_the_template() {
    let call = json!({"type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}});
    let [mut answer, mut result] = [Message::new(Role::Assistant, ""), Message::new(Role::Tool, "ten")];
    (answer.reasoning_content, answer.tool_calls) = (Some("hm".to_owned()), vec![call]);
    (result.tool_call_id, result.name) = (Some("c1".to_owned()), Some("clock".to_owned()));
    let messages = [Message::new(Role::Developer, "d"), answer, result];
    let source = "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|{{ m.tool_call_id }}|{{ m.name }}|\
        {%- for call in m.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}]{% endfor %}";
    let rest = "[assistant||hm|||clock({\"zone\": \"UTC\"})][tool|ten||c1|clock|]";
    // A template without the word `developer` receives system messages.
    assert_eq!(render(source, &messages, true).unwrap(), format!("[system|d||||]{rest}"));
    let knows = format!("{source}{{# developer #}}");
    assert_eq!(render(&knows, &messages, true).unwrap(), format!("[developer|d||||]{rest}"));
    // The older name of the reasoning.
    let thinking = "{% for m in messages %}{{ m.thinking if 'thinking' in m else '-' }}{% endfor %}";
    assert_eq!(render(thinking, &messages, true).unwrap(), "-hm-");
    assert_eq!(
        render("{{ 'name' in messages[0] }} {{ messages[0].name is defined }}", &messages, true).unwrap(),
        "False False"
    );
    // Phi-4-mini reads the tools of a system message.
    let mut system = Message::new(Role::System, "d");
    system.tools = Some("[{}]".to_owned());
    let tools = "{% for m in messages %}{{ m['tools'] if 'tools' in m else '-' }}{% endfor %}";
    assert_eq!(render(tools, &[system, Message::new(Role::User, "a")], true).unwrap(), "[{}]-");
}

#[test]
fn generation_blocks_are_written_like_any_text() {
    let source = "{% for m in messages %}\n{% if m.role == 'assistant' %}\n{% generation %}{{ m.content }}!{% endgeneration %}\n\
        {% else %}\n{{ m.content }}\n{% endif %}\n{% endfor %}";
    let messages = [Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")];
    assert_eq!(render(source, &messages, true).unwrap(), "a\nb!");
}
