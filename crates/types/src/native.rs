//! The original request of a generation, for an upstream of the same dialect. It keeps all fields
//! in both directions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::PredictError;
use crate::exact;
use crate::params::{ParamValue, Parameters};
use crate::signature::Signature;

/// The parameter that holds a [`Native`] request. Dialects set it; callers may not.
pub const NATIVE: &str = "native_request";

/// Pseudo-format in a signature: the model supports messages with images, in the field `parts` of
/// their details.
pub const PARTS: &str = "parts";

/// Metadata key of a signature's input with the natively supported formats: names of providers,
/// separated by commas.
const FORMATS: &str = "volley.native";

/// A request in the format of one provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Native {
    /// The format: the stable name of a provider.
    pub format: String,
    /// Headers of the request.
    pub headers: BTreeMap<String, String>,
    /// Fields of the request body. They replace the fields that are built from the request's rows.
    pub body: Map<String, Value>,
    /// Description of the part that the request's rows cannot represent. A server of another format
    /// cannot receive such a request.
    pub lost: Option<String>,
    /// Whether the missing part is in the details of the messages, for models that support
    /// [`PARTS`]. This flag is not serialized.
    pub in_parts: bool,
}

impl Native {
    /// Removes the native request from a request's parameters and returns it.
    ///
    /// # Errors
    /// `InvalidInput` if the parameter is not a native request.
    pub fn take(parameters: &mut Parameters) -> Result<Option<Self>, PredictError> {
        let wrong = || PredictError::invalid(format!("parameter '{NATIVE}' is reserved"));
        let Some(given) = parameters.remove(NATIVE) else {
            return Ok(None);
        };
        let ParamValue::Json(json) = given else {
            return Err(wrong());
        };
        let mut given: Map<String, Value> = serde_json::from_str(&json).map_err(|_| wrong())?;
        let mut object = |name: &str| match given.remove(name) {
            Some(Value::Object(object)) => object,
            _ => Map::new(),
        };
        let (headers, mut body) = (object("headers"), object("body"));
        let text = exact::fields(&json).and_then(|mut fields| fields.remove("body"));
        if let Some(text) = text {
            exact::keep_inputs(&mut body, text.get());
        }
        let headers = headers.into_iter().filter_map(|(name, value)| match value {
            Value::String(value) => Some((name, value)),
            _ => None,
        });
        let headers = headers.collect();
        let mut text = |name: &str| match given.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        Ok(Some(Self {
            format: text("format").ok_or_else(wrong)?,
            headers,
            body,
            lost: text("lost"),
            in_parts: false,
        }))
    }

    /// Adds the native request to a request's parameters.
    ///
    /// # Errors
    /// `InvalidInput` if the request would have more than
    /// [`MAX_PARAMETERS`](crate::params::MAX_PARAMETERS) parameters.
    pub fn put(self, parameters: &mut Parameters) -> Result<(), PredictError> {
        let mut value = json!({ "format": self.format, "headers": self.headers });
        value["body"] = Value::Object(self.body);
        if let Some(lost) = self.lost {
            value["lost"] = lost.into();
        }
        parameters.set(NATIVE, ParamValue::Json(exact::write(&value)))
    }
}

impl Signature {
    /// The signature of a model that accepts native requests in these formats.
    #[must_use]
    pub fn taking_native(mut self, formats: &[&str]) -> Self {
        if formats.is_empty() {
            return self;
        }
        let mut metadata = self.input.metadata().clone();
        metadata.insert(FORMATS.to_owned(), formats.join(","));
        let input = self.input.as_ref().clone();
        self.input = input.with_metadata(metadata).into();
        self
    }

    /// Whether the model accepts native requests in the format of this provider.
    #[must_use]
    pub fn takes_native(&self, format: &str) -> bool {
        let formats = self.input.metadata().get(FORMATS);
        formats.is_some_and(|formats| formats.split(',').any(|taken| taken == format))
    }
}

#[cfg(test)]
mod tests;
