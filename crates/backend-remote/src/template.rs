//! Request body templates: `${parameters.name}` stands for a parameter.

use serde_json::Value;
use volley_types::PredictError;

/// Fills a template. A parameter inside a JSON string is escaped for it; one that stands alone
/// becomes the JSON that it is (text in quotes). `${parameters.name:-default}` has a default.
///
/// # Errors
/// `InvalidInput` naming a parameter that is missing, or when the result is no JSON object.
pub(crate) fn fill(
    template: &str,
    lookup: impl Fn(&str) -> Option<Value>,
) -> Result<Value, PredictError> {
    let mut body = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${parameters.") {
        let (name, after) = after.split_once('}').ok_or_else(|| {
            PredictError::invalid("the connector's request body has a placeholder without an end")
        })?;
        body.push_str(before);
        let (name, default) = match name.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (name, None),
        };
        match (lookup(name), default) {
            (Some(Value::String(text)), _) if in_string(&body) => {
                let quoted = Value::String(text).to_string();
                body.push_str(&quoted[1..quoted.len() - 1]);
            }
            (Some(value), _) if in_string(&body) => {
                let quoted = Value::String(value.to_string()).to_string();
                body.push_str(&quoted[1..quoted.len() - 1]);
            }
            (Some(value), _) => body.push_str(&value.to_string()),
            (None, Some(default)) => body.push_str(default),
            (None, None) => {
                return Err(PredictError::invalid(format!(
                    "parameter '{name}' is missing; the connector's request body needs it"
                )));
            }
        }
        rest = after;
    }
    body.push_str(rest);
    match serde_json::from_str(&body) {
        Ok(body @ Value::Object(_)) => Ok(body),
        Ok(_) | Err(_) => Err(PredictError::invalid(
            "the connector's request body is no JSON object once its parameters are filled in",
        )),
    }
}

/// Whether what follows `json` is inside a string.
fn in_string(json: &str) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for byte in json.bytes() {
        match (inside, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (_, _, b'"') => inside = !inside,
            _ => {}
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lookup(name: &str) -> Option<Value> {
        match name {
            "prompt" => Some(json!("say \"hi\"\n")),
            "n" => Some(json!(3)),
            "stop" => Some(json!(["a", "b"])),
            _ => None,
        }
    }

    #[test]
    fn parameters_keep_their_type_and_cannot_break_out() {
        let template = r#"{"text": "Q: ${parameters.prompt}!", "n": ${parameters.n}, "stop": ${parameters.stop}, "t": ${parameters.t:-0.5}}"#;
        let body = fill(template, lookup).unwrap();
        assert_eq!(
            body,
            json!({ "text": "Q: say \"hi\"\n!", "n": 3, "stop": ["a", "b"], "t": 0.5 })
        );
        assert_eq!(
            fill("{\"p\": ${parameters.prompt}}", lookup).unwrap()["p"],
            "say \"hi\"\n"
        );
        assert_eq!(
            fill("{\"s\": \"n=${parameters.n}\"}", lookup).unwrap()["s"],
            "n=3"
        );
    }

    #[test]
    fn what_is_missing_is_named_and_what_is_no_json_refused() {
        assert!(
            fill("{\"a\": ${parameters.who}}", lookup)
                .unwrap_err()
                .message
                .contains("'who'")
        );
        for bad in ["{\"a\": ${parameters.n", "[1]", "{\"a\": }"] {
            assert!(fill(bad, lookup).is_err());
        }
    }
}
