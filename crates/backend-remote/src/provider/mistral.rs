//! Mistral's chat completions: OpenAI's, less some fields and with tool calls of its own making.

use serde_json::{Map, Value};
use volley_backend::items::Item;

use super::calls::in_order;
use super::tidy::{rename, tidy};
use super::{Format, openai};

pub(super) const FORMAT: Format = Format {
    body: |model, item, fields| Ok(body(model, item, fields)),
    read: |data, calls| openai::read(data).and_then(|step| in_order(step, calls)),
    read_whole: |body, calls| openai::read_whole(body).and_then(|step| in_order(step, calls)),
    ..openai::FORMAT
};

fn body(model: &str, item: &Item, mut body: Map<String, Value>) -> Value {
    tidy(&mut body);
    let names = [
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("seed", "random_seed"),
    ];
    rename(&mut body, &names);
    if let Some(choice) = body.get_mut("tool_choice").filter(|c| **c == "required") {
        *choice = "any".into();
    }
    openai::talk(model, item, &mut body);
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Calls, Step};
    use super::*;

    #[test]
    fn the_body_has_only_what_the_server_knows() {
        let fields = json!({
            "seed": 3, "max_completion_tokens": 9, "user": "u", "stream_options": {},
            "tool_choice": "required", "safe_prompt": true,
        });
        let fields = fields.as_object().cloned().unwrap();
        let body = body("small", &Item::Prompt("hi".to_owned()), fields);
        let expected = json!({
            "model": "small", "messages": [{ "role": "user", "content": "hi" }],
            "random_seed": 3, "max_tokens": 9, "tool_choice": "any", "safe_prompt": true,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn calls_are_numbered_and_their_arguments_are_text() {
        let mut calls = Calls::new(7);
        let data = r#"{"choices":[{"delta":{"tool_calls":[
            {"id":"null","function":{"name":"f","arguments":{"a":1}}},
            {"id":"abcdefghi","function":{"name":"g","arguments":"{"}}]},"finish_reason":null}]}"#;
        let Step::Delta(delta) = (FORMAT.read)(data, &mut calls).unwrap() else {
            panic!()
        };
        let begun: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(begun[0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(begun[0]["id"], "call_0000000000000007_0");
        assert_eq!(
            (&begun[1]["index"], &begun[1]["id"]),
            (&json!(1), &json!("abcdefghi"))
        );
        let data = r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"}"}}]}}]}"#;
        let Step::Delta(delta) = (FORMAT.read)(data, &mut calls).unwrap() else {
            panic!()
        };
        let more: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(
            more,
            json!([{ "function": { "arguments": "}" }, "index": 1 }])
        );
    }
}
