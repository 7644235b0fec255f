//! Fields of an upstream's complete response that rows cannot represent, for callers of the same
//! dialect. Pure.

use serde_json::Value;
use volley_types::Details;

/// The complete response of a server with this format, if known.
pub fn of<'a>(details: &'a Details, format: &str) -> Option<&'a Value> {
    let answer = details.answer.as_ref()?;
    (details.format.as_deref() == Some(format)).then_some(answer)
}

/// The tool calls of a message. Their id, type and arguments are normalized, which the server's
/// list is not, so that it never replaces them.
const CALLS: &str = "tool_calls";

/// Adds the fields of `given` that `own` lacks. Fields of both stay unchanged. If lists differ in
/// length or in the types of their items, the server's list replaces the other; tool calls are
/// always merged by their index.
pub fn supplement(own: &mut Value, given: &Value) {
    match (own, given) {
        (Value::Object(own), Value::Object(given)) => {
            let calls = own.contains_key(CALLS);
            for (name, given) in given {
                match own.get_mut(name) {
                    Some(Value::Array(own)) if name == CALLS => {
                        let pairs = own.iter_mut().zip(given.as_array().into_iter().flatten());
                        pairs.for_each(|(one, other)| supplement(one, other));
                    }
                    // The predecessor of tool calls: its call is one of them already.
                    None if name == "function_call" && calls => {}
                    Some(Value::Null) | None => _ = own.insert(name.clone(), given.clone()),
                    Some(own) => supplement(own, given),
                }
            }
        }
        (own @ Value::Array(_), Value::Array(given)) => {
            let Value::Array(list) = &mut *own else {
                return;
            };
            let alike = list.len() == given.len()
                && list.iter().zip(given).all(|(one, other)| {
                    one.is_object() == other.is_object() && one.get("type") == other.get("type")
                });
            match alike {
                true => {
                    let pairs = list.iter_mut().zip(given);
                    pairs.for_each(|(one, other)| supplement(one, other));
                }
                false => *list = given.clone(),
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_lacking_is_added_and_what_is_said_stays() {
        let mut own = json!({
            "id": "ours", "stop": null, "usage": { "in": 1 }, "same": [{ "type": "a", "x": 1 }],
            "other": [{ "type": "a" }], "fewer": [], "numbers": [1, 2],
        });
        let given = json!({
            "id": "theirs", "stop": "END", "usage": { "in": 2, "out": 3 }, "new": [1],
            "same": [{ "type": "a", "x": 2, "y": 3 }], "other": [{ "type": "b" }],
            "fewer": [{ "type": "a" }], "numbers": [3, 4],
        });
        supplement(&mut own, &given);
        let expected = json!({
            "id": "ours", "stop": "END", "usage": { "in": 1, "out": 3 }, "new": [1],
            "same": [{ "type": "a", "x": 1, "y": 3 }], "other": [{ "type": "b" }],
            "fewer": [{ "type": "a" }], "numbers": [1, 2],
        });
        assert_eq!(own, expected);
    }

    #[test]
    fn tool_calls_keep_their_normalized_fields() {
        let call = json!({ "id": "c", "type": "function",
                           "function": { "name": "g", "arguments": "{}" } });
        let own = json!({ "tool_calls": [call] });
        for given in [
            json!({ "tool_calls": [{ "id": "b", "function": { "name": "g", "arguments": "" } }] }),
            json!({ "tool_calls": [{ "function": { "name": "g", "arguments": { "a": 1 } } }] }),
            json!({ "tool_calls": [] }),
            json!({ "tool_calls": null }),
            json!({ "function_call": { "name": "g", "arguments": { "a": 1 } } }),
        ] {
            let mut told = own.clone();
            supplement(&mut told, &given);
            assert_eq!(told, own, "{given}");
        }
        let mut told = own.clone();
        supplement(
            &mut told,
            &json!({ "tool_calls": [{ "note": 1 }, { "note": 2 }] }),
        );
        assert_eq!(told["tool_calls"][0]["note"], 1);
        assert_eq!(told["tool_calls"].as_array().map(Vec::len), Some(1));
        let mut plain = json!({});
        supplement(&mut plain, &json!({ "function_call": null }));
        assert_eq!(plain, json!({ "function_call": null }));
    }

    #[test]
    fn an_answer_of_another_format_is_none() {
        let details = Details {
            format: Some("openai".to_owned()),
            answer: Some(json!({})),
            ..Details::default()
        };
        assert!(of(&details, "openai").is_some() && of(&details, "cohere").is_none());
        assert!(of(&Details::default(), "openai").is_none());
    }
}
