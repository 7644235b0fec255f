//! Parsing of client messages. Pure.

use std::time::Duration;

use serde_json::{Map, Value};
use volley_types::{Parameters, PredictError};

use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;

/// Maximum length of a request id in bytes.
const MAX_ID_LEN: usize = 64;

/// A message of a client.
#[derive(Debug, PartialEq)]
pub(super) enum ClientMessage {
    /// Runs a request.
    Ask(PredictMessage),
    /// Cancels the request with this id.
    Cancel(String),
}

/// A request to the model of the socket.
#[derive(Debug, PartialEq)]
pub(super) struct PredictMessage {
    /// Id that the client has chosen.
    pub(super) id: String,
    pub(super) rows: Vec<Value>,
    pub(super) parameters: Parameters,
    pub(super) timeout: Option<Duration>,
}

/// The error of a message, with the id of its request if it has one.
#[derive(Debug)]
pub(super) struct MessageError {
    pub(super) id: Option<String>,
    pub(super) error: PredictError,
}

impl ClientMessage {
    /// Parses a message.
    ///
    /// # Errors
    /// `InvalidInput` naming the fault.
    pub(super) fn read(text: &str) -> Result<Self, MessageError> {
        let object = match serde_json::from_str(text) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(wrong(None, "a message must be a JSON object")),
            Err(error) => {
                let message = format!("a message is not valid JSON: {error}");
                return Err(wrong(None, &message));
            }
        };
        let id = object.get("id").and_then(Value::as_str);
        let id = id.filter(|id| is_id(id)).map(str::to_owned);
        Self::of(object).map_err(|error| MessageError { id, error })
    }

    fn of(mut object: Map<String, Value>) -> Result<Self, PredictError> {
        if object.contains_key("cancel") {
            object.only("a cancellation", &["cancel"])?;
            let id = object.required("cancel")?;
            return Ok(Self::Cancel(id.to_owned()));
        }
        object.only("a request", &["id", "rows", "parameters", "timeout_ms"])?;
        let id = object.required("id")?.to_owned();
        if !is_id(&id) {
            let message = format!("field 'id' must have 1 to {MAX_ID_LEN} characters");
            return Err(PredictError::invalid(message));
        }
        let parameters = match object.object("parameters")? {
            Some(given) => parameters::from_json(given)?,
            None => Parameters::default(),
        };
        let timeout = match object.count("timeout_ms")? {
            Some(0) => {
                let message = "field 'timeout_ms' must be more than 0";
                return Err(PredictError::invalid(message));
            }
            timeout => timeout.map(Duration::from_millis),
        };
        match object.remove("rows") {
            Some(Value::Array(rows)) if !rows.is_empty() => Ok(Self::Ask(PredictMessage {
                id,
                rows,
                parameters,
                timeout,
            })),
            _ => Err(PredictError::invalid(
                "field 'rows' must be a list of at least one object",
            )),
        }
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID_LEN
}

fn wrong(id: Option<String>, message: &str) -> MessageError {
    MessageError {
        id,
        error: PredictError::invalid(message),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_asks_or_cancels() {
        let text = r#"{"id":"a","rows":[{"x":1}],"parameters":{"k":2},"timeout_ms":5}"#;
        let Ok(ClientMessage::Ask(ask)) = ClientMessage::read(text) else {
            panic!("{text}");
        };
        assert_eq!((ask.id.as_str(), ask.rows), ("a", vec![json!({ "x": 1 })]));
        assert_eq!(ask.timeout, Some(Duration::from_millis(5)));
        let cancel = ClientMessage::read(r#"{"cancel":"a"}"#).unwrap();
        assert_eq!(cancel, ClientMessage::Cancel("a".to_owned()));
        for (bad, id) in [
            ("", None),
            ("[]", None),
            (r#"{"id":"a"}"#, Some("a")),
            (r#"{"id":"a","rows":[]}"#, Some("a")),
            (r#"{"id":"a","rows":[{}],"timeout_ms":0}"#, Some("a")),
            (r#"{"id":"a","rows":[{}],"other":1}"#, Some("a")),
            (r#"{"id":1,"rows":[{}]}"#, None),
            (r#"{"id":"","rows":[{}]}"#, None),
            (r#"{"cancel":1}"#, None),
        ] {
            assert_eq!(
                ClientMessage::read(bad).unwrap_err().id.as_deref(),
                id,
                "{bad}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_message_or_refused(text in "\\PC{0,60}") {
            if let Err(wrong) = ClientMessage::read(&text) {
                prop_assert_eq!(wrong.error.code.http_status(), 400);
            }
        }
    }
}
