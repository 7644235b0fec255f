//! Parameters that ask for the default behavior. They are left out where a server would reject an
//! unknown name. Pure.

use serde_json::{Value, json};

/// Whether a parameter with that value has no effect.
pub fn is_neutral(name: &str, value: &Value) -> bool {
    let number = value.as_f64();
    match name {
        // Usage is always requested; the dialect decides whether the caller receives it.
        "stream_options" => true,
        "n" | "best_of" | "repetition_penalty" | "repeat_penalty" | "length_penalty" => {
            number == Some(1.0)
        }
        "presence_penalty" | "frequency_penalty" | "min_p" | "top_logprobs" | "min_tokens" => {
            number == Some(0.0)
        }
        // All tokens.
        "top_k" => number == Some(-1.0) || number == Some(0.0),
        "logprobs" | "store" | "echo" | "ignore_eos" => *value == Value::Bool(false),
        "parallel_tool_calls" => *value == Value::Bool(true),
        "logit_bias" | "metadata" => value.as_object().is_some_and(serde_json::Map::is_empty),
        "stop" | "stop_sequences" | "tools" => value.as_array().is_some_and(Vec::is_empty),
        "response_format" => value["type"] == "text",
        "modalities" => *value == json!(["text"]),
        "service_tier" => value == "auto",
        "user" | "suffix" => value == "",
        // Servers without the parameter find cached prefixes by content.
        "prompt_cache_key" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_nothing_is_neutral() {
        for (name, nothing, something) in [
            ("n", json!(1), json!(2)),
            ("presence_penalty", json!(0), json!(0.5)),
            ("repetition_penalty", json!(1.0), json!(1.1)),
            ("top_k", json!(-1), json!(4)),
            ("logprobs", json!(false), json!(true)),
            ("parallel_tool_calls", json!(true), json!(false)),
            ("logit_bias", json!({}), json!({ "1": 2 })),
            ("stop", json!([]), json!(["a"])),
            (
                "response_format",
                json!({ "type": "text" }),
                json!({ "type": "json_object" }),
            ),
            ("service_tier", json!("auto"), json!("flex")),
            ("store", json!(false), json!(true)),
        ] {
            assert!(is_neutral(name, &nothing), "{name}");
            assert!(!is_neutral(name, &something), "{name}");
        }
        assert!(!is_neutral("temperature", &json!(1)));
    }
}
