//! Bodies of predictions. Large fields (rows and texts) stay JSON text until the model is known,
//! because their trees of values would need many times the memory.

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use volley_types::{PredictError, Share};

use volley_http_edge::body::content;
use volley_http_edge::compact;
use volley_http_edge::intake::tree_room;

/// Size in bytes below which a field is parsed into a tree.
const LARGE: usize = 4 << 10;

const INPUTS: &str = "inputs";
const DOCUMENTS: &str = "text_docs";
const PARAMETERS: &str = "parameters";

/// The body of a prediction.
#[derive(Debug)]
pub(crate) struct Prediction {
    /// All fields; null for those that are kept as text.
    pub(crate) fields: Map<String, Value>,
    inputs: Option<JsonText>,
    documents: Option<JsonText>,
    /// The field `parameters.inputs`.
    nested: Option<JsonText>,
}

/// Well-formed JSON text of one field.
#[derive(Clone, Debug)]
struct JsonText(Bytes);

/// A value as a tree or as text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Json<'a> {
    Tree(&'a Value),
    Text(&'a str),
}

impl JsonText {
    fn json(&self) -> Json<'_> {
        Json::Text(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl From<Map<String, Value>> for Prediction {
    fn from(fields: Map<String, Value>) -> Self {
        Self {
            fields,
            inputs: None,
            documents: None,
            nested: None,
        }
    }
}

impl Prediction {
    /// Parses a body.
    ///
    /// # Errors
    /// `InvalidInput` naming the fault; `TooLarge` or `Overloaded` if the memory limits do not
    /// permit it.
    pub(super) fn read(bytes: &Bytes, share: &mut Share) -> Result<Self, PredictError> {
        let large = LARGE <= bytes.len();
        let parts = large.then(|| serde_json::from_slice(bytes));
        let Some(Ok(compact::Members(parts))) = parts else {
            share.grow(tree_room(bytes)?)?;
            return content::parse(bytes).map(Self::from);
        };
        let mut read = Self::from(Map::new());
        for (name, value) in parts {
            let kept = match name.as_str() {
                INPUTS => &mut read.inputs,
                DOCUMENTS => &mut read.documents,
                PARAMETERS if is_large(value) => {
                    read.parameters(value, bytes, share)?;
                    continue;
                }
                _ => &mut None,
            };
            let value = field(&name, value, kept, bytes, share)?;
            read.fields.insert(name, value);
        }
        Ok(read)
    }

    fn parameters(
        &mut self,
        value: &RawValue,
        bytes: &Bytes,
        share: &mut Share,
    ) -> Result<(), PredictError> {
        let Ok(compact::Members(parts)) = serde_json::from_str(value.get()) else {
            // The memory of many members is counted as that of a tree.
            let value = field(PARAMETERS, value, &mut None, bytes, share)?;
            if !value.is_object() {
                let message = "field 'parameters' must be an object";
                return Err(PredictError::invalid(message));
            }
            self.fields.insert(PARAMETERS.to_owned(), value);
            return Ok(());
        };
        let mut fields = Map::new();
        for (name, value) in parts {
            let kept = match name.as_str() {
                INPUTS => &mut self.nested,
                _ => &mut None,
            };
            let value = field(&name, value, kept, bytes, share)?;
            fields.insert(name, value);
        }
        self.fields.insert(PARAMETERS.to_owned(), fields.into());
        Ok(())
    }

    /// The field `inputs` of the body or of its parameters.
    ///
    /// # Errors
    /// `InvalidInput` if both have it.
    pub(crate) fn inputs(&self) -> Result<Option<Json<'_>>, PredictError> {
        let parameters = self.fields.get(PARAMETERS).and_then(Value::as_object);
        let nested = parameters.and_then(|all| given(&self.nested, all, INPUTS));
        match (given(&self.inputs, &self.fields, INPUTS), nested) {
            (Some(_), Some(_)) => Err(PredictError::invalid(
                "give either 'inputs' or 'parameters.inputs', not both",
            )),
            (own, nested) => Ok(own.or(nested)),
        }
    }

    /// The field `text_docs`.
    pub(crate) fn documents(&self) -> Option<Json<'_>> {
        given(&self.documents, &self.fields, DOCUMENTS)
    }
}

fn given<'p>(
    kept: &'p Option<JsonText>,
    fields: &'p Map<String, Value>,
    name: &str,
) -> Option<Json<'p>> {
    let kept = kept.as_ref().map(JsonText::json);
    kept.or_else(|| fields.get(name).map(Json::Tree))
}

/// Whether a value is large enough to be kept as text.
fn is_large(value: &RawValue) -> bool {
    LARGE <= value.get().len() && value.get().starts_with(['[', '{'])
}

/// Parses the value of a field. A large value goes into `kept`, and null is returned.
fn field(
    name: &str,
    value: &RawValue,
    kept: &mut Option<JsonText>,
    bytes: &Bytes,
    share: &mut Share,
) -> Result<Value, PredictError> {
    let text = value.get();
    if is_large(value) && matches!(name, INPUTS | DOCUMENTS) {
        share.grow(compact::FACTOR * text.len())?;
        *kept = Some(JsonText(bytes.slice_ref(text.as_bytes())));
        return Ok(Value::Null);
    }
    share.grow(tree_room(text.as_bytes())?)?;
    serde_json::from_str(text).map_err(|error| {
        PredictError::invalid(format!("field '{name}' is not a JSON value: {error}"))
    })
}

#[cfg(test)]
mod tests;
