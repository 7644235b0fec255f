use proptest::prelude::*;
use serde_json::json;

use super::*;

fn named(name: &str) -> &'static Provider {
    volley_providers::named(name).unwrap()
}

fn adopted(provider: &Provider, template: &str, parameters: Value) -> Value {
    let mut parameters = parameters.as_object().unwrap().clone();
    adopt(provider, template, &mut parameters);
    parameters.into()
}

#[test]
fn what_a_template_fixes_is_sent() {
    let template = r#"{"model": "${parameters.model}", "messages": ${parameters.messages},
        "temperature": 0.2, "response_format": {"type": "json_object"},
        "max_tokens": ${parameters.max_tokens_to_sample}, "seed": ${parameters.seed:-7},
        "user": "team-${parameters.user}", "top_p": ${parameters.top_p}}"#;
    let given = json!({ "model": "m", "max_tokens_to_sample": 9, "temperature": 1 });
    assert_eq!(
        adopted(named("openai"), template, given.clone()),
        json!({
            "model": "m", "temperature": 1, "response_format": { "type": "json_object" },
            "max_tokens": 9, "seed": 7,
        })
    );
    assert_eq!(adopted(named("gemini"), template, given.clone()), given);
    assert_eq!(adopted(named("openai"), "{ no json", given.clone()), given);
}

#[test]
fn texts_keep_what_looks_like_a_quote() {
    let template = r#"{"a": "x \" ${parameters.b} \\", "c": ${parameters.d}}"#;
    let read: Value = serde_json::from_str(&quoted(template)).unwrap();
    assert_eq!(read["a"], "x \" ${parameters.b} \\");
    assert_eq!(read["c"], "${parameters.d}");
}

proptest! {
    #[test]
    fn no_template_is_too_odd(template in r#"[\\"${}a-c:,é. \[\]-]{0,40}(\$\{parameters\.[a-c}]{0,3})?[\\"}é]{0,4}"#) {
        adopted(named("openai"), &template, json!({ "a": 1 }));
    }
}
