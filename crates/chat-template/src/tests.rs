use super::*;

fn rendering() -> Rendering {
    Rendering {
        invites: true,
        ..Rendering::default()
    }
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, PredictError> {
    let messages: Vec<_> = messages
        .iter()
        .map(|(role, content)| ChatMessage::new(*role, *content))
        .collect();
    let template = ChatTemplate::new(source.to_owned(), "<s>".to_owned(), "</s>".to_owned())?;
    template.render(&messages, None, &rendering(), &CancelFlag::default())
}

#[test]
fn tools_and_calls_reach_the_template_as_objects() {
    let source = "{{ tools[0].function.name }}|{% for m in messages %}\
        {% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}\
        {{ m.tool_call_id }}{{ m.content }};{% endfor %}{{ tools | tojson }}";
    let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
    let calls = r#"[{"id":"c","function":{"name":"f","arguments":"{\"city\":\"Rome\"}"}}]"#;
    let said = [
        ChatMessage {
            tool_calls: Some(calls.to_owned()),
            ..ChatMessage::new("assistant", "")
        },
        ChatMessage {
            tool_call_id: Some("c".to_owned()),
            ..ChatMessage::new("tool", "21")
        },
    ];
    let tools = serde_json::json!([{ "function": { "name": "f" } }]);
    assert_eq!(
        template
            .render(&said, Some(&tools), &rendering(), &CancelFlag::default())
            .unwrap(),
        r#"f|Rome;c21;[{"function": {"name": "f"}}]"#
    );
}

#[test]
fn templates_use_what_python_gives_them() {
    let source = "{{ bos_token }}{% for m in messages %}
        {%- if m.role.startswith('us') %}U:{{ m.content.strip() }}
        {%- else %}{{ m.get('name', 'A') }}:{{ m['content'].split('|')[-1] | trim }}{% endif %}{{ eos_token }}
        {%- endfor %}{% if add_generation_prompt %}A:{% endif %}";
    let told = render(
        source,
        &[("user", "  hi \n"), ("assistant", "thought| hello")],
    );
    assert_eq!(told.unwrap(), "<s>U:hi</s>A:hello</s>A:");
    let methods = "{{ 'xaxx'.strip('x') }} {{ 'aB'.upper() }} {{ 'aB'.lower() }} \
                   {{ 'a b'.replace(' ', '-') }} {{ 'ab'.endswith('b') }} \
                   {% for k, v in {'k': 1}.items() %}{{ k }}{{ v }}{% endfor %}";
    assert_eq!(render(methods, &[]).unwrap(), "a AB ab a-b True k1");
}

#[test]
fn a_template_says_itself_why_it_refuses() {
    let source = "{{ raise_exception('roles must alternate') }}";
    let error = render(source, &[("user", "hi")]).unwrap_err();
    assert!(
        error.message.ends_with(": roles must alternate"),
        "{}",
        error.message
    );
    let error = render("{{ 'x'.no_such_method() }}", &[]).unwrap_err();
    assert!(!error.message.contains(':'), "{}", error.message);
    assert!(
        render("{% if %}", &[]).is_err(),
        "a malformed template is refused"
    );
}

#[test]
fn what_a_template_makes_is_bounded_however_it_is_made() {
    let looped = |body: &str| {
        format!(
            "{{% set ns = namespace(s='xxxxxxxx', l=[1, 2]) %}}{{% for i in range(60) %}}{body}\
             {{% endfor %}}"
        )
    };
    let long = "{{ 'x' * n }}".replace('n', &"9".repeat(9));
    for source in [
        looped("{% set ns.s = ns.s ~ ns.s %}"),
        looped("{% set ns.s = ns.s + ns.s %}"),
        looped("{% set ns.s = [ns.s, ns.s] | join %}"),
        looped("{% set ns.s = [ns.s, ns.s] | join(ns.s) %}"),
        looped("{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"),
        looped("{% set ns.s = ns.s | replace('x', 'xxxxxxxx') %}"),
        looped("{% set ns.s = ns.s.replace('x', 'xxxxxxxx') %}"),
        looped("{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}"),
        looped("{% macro m() %}{{ ns.s }}{{ ns.s }}{% endmacro %}{% set ns.s = m() %}"),
        looped("{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}"),
        looped("{% set ns.s = (ns.s ~ '\\n') | indent(999) %}{% set ns.s = ns.s ~ ns.s %}"),
        looped("{% set ns.s = ns.s * 8 %}"),
        looped("{% set ns.s = [ns.s, ns.s] | tojson %}"),
        looped("{% set ns.s = ns.s | list | join(ns.s) %}"),
        looped("{% set ns.l = ns.l + ns.l %}") + "{{ ns.l }}",
        looped("{% set ns.l = ns.l * 1000 %}") + "{{ ns.l | list }}",
        looped("{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
        looped("{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l == [ns.l] }}",
        looped("{% set ns.l = {'a': ns.l, 'b': ns.l} %}") + "{{ ns.l | tojson }}",
        looped("{% set ns.l = ns.l | zip(ns.l) | list %}") + "{{ ns.l }}",
        looped("{% set ns.l = dict(a=ns.l, b=ns.l) %}") + "{{ ns.l }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns == ns }}".to_owned(),
        "{{ [1] | batch(1000000000, 'x') | list }}".to_owned(),
        "{{ 'x' | indent(1000000000, true) }}".to_owned(),
        "{{ '%01000000000d' | format(1) }}".to_owned(),
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         {% endfor %}{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}"
            .to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        long,
    ] {
        let began = std::time::Instant::now();
        let error = render(&source, &[("user", "hi")]).unwrap_err();
        assert_eq!(error.code, volley_types::ErrorCode::InvalidInput, "{source}");
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(60), "{source}: {took:?}");
    }
}

#[test]
fn a_rendering_ends_with_its_request() {
    let source =
        "{% for i in range(90000) %}{% for j in range(40) %}{{ j }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
    let ended = CancelFlag::default();
    drop(ended.on_drop());
    let messages = [ChatMessage::new("user", "hi")];
    let error = template
        .render(&messages, None, &rendering(), &ended)
        .unwrap_err();
    assert!(
        error.message.ends_with("the request has ended"),
        "{}",
        error.message
    );
}

#[test]
fn loops_macros_and_blocks_jump_where_they_should() {
    let source = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}\
        {% for m in messages if m.role != 'system' %}{% if loop.first %}<{% elif m.content in 'abc' %}\
        ={% else %}+{% endif %}{{ twice(m.content[:1]) }}{% if not loop.last %}|{% endif %}\
        {% else %}none{% endfor %}{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}\
        {% if i == 2 %}{% continue %}{% endif %}{% set ns.n = ns.n + i * 2 %}{% endfor %}\
        {{ ns.n }}{{ 'y' if 1 < 2 and 'a' ~ 1 == 'a1' else 'n' }}{% set x = [1] + [2] %}{{ x[1] }}\
        {{ x | map('string') | join(',') }}{{ {'a': [1]} | tojson }}{{ 'x' * 3 }}";
    let messages = [
        ("system", "s"),
        ("user", "hi"),
        ("assistant", "b"),
        ("user", "z"),
    ];
    assert_eq!(
        render(source, &messages).unwrap(),
        "<hh|=bb|+zz8y21,2{\"a\": [1]}xxx"
    );
}

#[test]
fn a_template_that_can_never_be_rendered_is_found_when_it_is_tried() {
    let tried = |source: &str| {
        let template = ChatTemplate::new(source.to_owned(), String::new(), String::new())?;
        template.tried().map(|_| ())
    };
    assert!(tried("{{ messages[0].content }}").is_ok());
    assert!(
        tried("{{ raise_exception('no') }}").is_ok(),
        "it refuses in its own words"
    );
    for source in [
        "{{ messages | no_such_filter }}",
        "{{ no_such_function() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    ] {
        let error = tried(source).unwrap_err();
        assert!(error.message.contains("chat template"), "{}", error.message);
    }
}

#[test]
fn a_last_message_can_be_continued_and_a_template_has_variables() {
    let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}{% if enable_thinking %}<think>{% endif %}";
    let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
    let messages = [
        ChatMessage::new("user", "hi"),
        ChatMessage::new("assistant", "Well, "),
    ];
    let continues = Rendering {
        continues: true,
        ..Rendering::default()
    };
    let render = |rendering: &Rendering| {
        let rendered = template.render(&messages, None, rendering, &CancelFlag::default());
        rendered.unwrap()
    };
    assert_eq!(render(&continues), "[user]hi<end>[assistant]Well,");
    let mut thinks = rendering();
    thinks.variables = std::sync::Arc::new(
        serde_json::json!({ "enable_thinking": true })
            .as_object()
            .unwrap()
            .clone(),
    );
    assert!(render(&thinks).ends_with("[assistant]<think>"));
}
