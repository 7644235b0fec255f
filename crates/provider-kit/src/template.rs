//! Request body templates with `${parameters.name}` placeholders.

use serde_json::Value;
use volley_types::PredictError;

/// Fills a template. A value inside a JSON string is escaped; a value outside is inserted as JSON.
/// `${parameters.name:-default}` has a default.
///
/// # Errors
/// `InvalidInput` naming a missing parameter, for an unclosed placeholder, or if the result is not
/// a JSON object.
pub fn fill(template: &str, lookup: impl Fn(&str) -> Option<Value>) -> Result<Value, PredictError> {
    let mut body = String::with_capacity(template.len());
    let (mut rest, mut place) = (template, JsonCursor::default());
    while let Some((before, after)) = rest.split_once("${parameters.") {
        let (name, after) = after.split_once('}').ok_or_else(|| {
            PredictError::invalid(
                "the connector's request body has a placeholder without a closing brace",
            )
        })?;
        body.push_str(before);
        place.pass(before);
        let (name, default) = match name.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (name, None),
        };
        match (lookup(name), default) {
            (Some(Value::String(text)), _) if place.in_string => {
                let quoted = Value::String(text).to_string();
                body.push_str(&quoted[1..quoted.len() - 1]);
            }
            (Some(value), _) if place.in_string => {
                let quoted = Value::String(value.to_string()).to_string();
                body.push_str(&quoted[1..quoted.len() - 1]);
            }
            (Some(value), _) => body.push_str(&value.to_string()),
            (None, Some(default)) => {
                body.push_str(default);
                place.pass(default);
            }
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
            "the connector's request body is not a JSON object after its parameters are inserted",
        )),
    }
}

/// Whether a template has a placeholder for a parameter.
pub fn has_place(template: &str, name: &str) -> bool {
    let place = format!("${{parameters.{name}");
    let mut found = template.match_indices(&place);
    found.any(|(at, _)| {
        let after = &template[at + place.len()..];
        after.starts_with('}') || after.starts_with(":-")
    })
}

/// Whether a position in JSON is inside a string. Inserted values do not change that.
#[derive(Default)]
struct JsonCursor {
    in_string: bool,
    after_escape: bool,
}

impl JsonCursor {
    fn pass(&mut self, json: &str) {
        for byte in json.bytes() {
            match (self.in_string, self.after_escape, byte) {
                (true, true, _) => self.after_escape = false,
                (true, false, b'\\') => self.after_escape = true,
                (_, _, b'"') => self.in_string = !self.in_string,
                _ => {}
            }
        }
    }
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

    proptest::proptest! {
        #[test]
        fn no_value_gets_out_of_its_place(text in ".{0,40}") {
            let template = r#"{"in": "a ${parameters.x} b", "alone": ${parameters.x}, "end": 1}"#;
            let body = fill(template, |_| Some(Value::String(text.clone()))).unwrap();
            proptest::prop_assert_eq!(
                body,
                json!({ "in": format!("a {text} b"), "alone": text, "end": 1 })
            );
        }

        #[test]
        fn any_template_is_survived(template in r#"(["\\{}:$a]|\$\{parameters\.[a:-]{0,4}\}?){0,12}"#) {
            let _ = fill(&template, |_| Some(json!("\"")));
        }
    }
}
