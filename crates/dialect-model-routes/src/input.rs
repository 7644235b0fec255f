//! Conversion of named inputs and parameters to the rows and parameters of a request. Pure.

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use http::Uri;
use serde_json::{Map, Value};
use volley_dialect_kit::chat;
use volley_dialect_kit::tensors::RequestRows;
use volley_http_edge::axum::extract::Query;
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{PredictError, Signature, Task};

/// Splits `fields` into the row of the inputs, and the parameters.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(crate) fn rows(
    mut fields: Map<String, Value>,
    signature: &Signature,
) -> Result<(RecordBatch, Map<String, Value>), PredictError> {
    if signature.task == Task::Generate {
        let row = match (fields.remove(PROMPT), fields.remove(MESSAGES)) {
            (Some(Value::String(prompt)), None) => chat::prompts(&[prompt])?,
            (None, Some(Value::Array(messages))) => {
                let messages: Option<Vec<_>> = messages.iter().map(chat::openai_message).collect();
                chat::conversation(&messages.ok_or_else(no_prompt)?)?
            }
            _ => return Err(no_prompt()),
        };
        return Ok((row, fields));
    }
    let (mut inputs, mut parameters) = (Map::new(), Map::new());
    for (name, value) in fields {
        match signature.input.field_with_name(&name) {
            Ok(_) => inputs.insert(name, value),
            Err(_) => parameters.insert(name, value),
        };
    }
    for field in signature.input.fields() {
        if !field.is_nullable() && !inputs.contains_key(field.name()) {
            let message = format!("the model needs the input '{}'", field.name());
            return Err(PredictError::invalid(message));
        }
    }
    let mut row = RequestRows::new(&signature.input);
    row.tree(&Value::Object(inputs))?;
    Ok((row.finish()?, parameters))
}

fn no_prompt() -> PredictError {
    PredictError::invalid(
        "give either 'prompt' (a string) or 'messages' (a list of objects with 'role' and \
         'content')",
    )
}

/// Reads the fields of a URI's query. A value of an input of texts is a text. Any other value is parsed
/// as JSON, or used as a text if it is not JSON.
///
/// # Errors
/// `InvalidInput` for a malformed query, or a name that occurs twice.
pub(crate) fn of_query(
    uri: &Uri,
    signature: &Signature,
) -> Result<Map<String, Value>, PredictError> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let Query(pairs) = query.map_err(|error| {
        PredictError::invalid("the request's query is malformed").with_source(error)
    })?;
    let mut fields = Map::new();
    for (name, text) in pairs {
        let input = signature.input.field_with_name(&name);
        let is_text = input.is_ok_and(|field| *field.data_type() == DataType::Utf8);
        let value = match is_text {
            true => Value::String(text),
            false => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        };
        if fields.insert(name.clone(), value).is_some() {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            let message = format!("the query has '{name}' more than once");
            return Err(PredictError::invalid(message));
        }
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, Schema};
    use serde_json::json;

    use super::*;

    fn signature() -> Signature {
        let input = Arc::new(Schema::new(vec![
            Field::new("text", DataType::Utf8, false),
            Field::new("count", DataType::Int64, true),
        ]));
        Signature::events(input.clone(), &Schema::empty()).unwrap()
    }

    #[test]
    fn a_query_has_texts_numbers_and_parameters() {
        let uri = Uri::from_static("/?text=7+%C3%A4&count=3&limit=2&style=plain");
        let fields = of_query(&uri, &signature()).unwrap();
        let expected = json!({ "text": "7 ä", "count": 3, "limit": 2, "style": "plain" });
        assert_eq!(Value::Object(fields.clone()), expected);
        let (rows, parameters) = rows(fields, &signature()).unwrap();
        assert_eq!((rows.num_rows(), rows.num_columns()), (1, 2));
        assert_eq!(
            Value::Object(parameters),
            json!({ "limit": 2, "style": "plain" })
        );
    }

    #[test]
    fn missing_and_repeated_names_are_rejected_by_name() {
        let error = of_query(&Uri::from_static("/?text=a&text=b"), &signature()).unwrap_err();
        assert!(error.message.contains("'text' more than once"), "{error}");
        let error = rows(Map::new(), &signature()).unwrap_err();
        assert!(error.message.contains("needs the input 'text'"), "{error}");
        let error = rows(Map::new(), &Signature::generation()).unwrap_err();
        assert!(error.message.contains("'prompt'"), "{error}");
    }
}
