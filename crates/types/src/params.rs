//! Typed request parameters.
//!
//! A dialect forwards the values of its JSON, and a backend reads them as the types that it needs.
//! The casts are Arrow's, so `"0.7"`, `0.7` and a Flight client's `float32` all read as the same
//! temperature.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;

use crate::error::PredictError;

/// Maximum number of parameters of one request.
pub const MAX_PARAMETERS: usize = 128;

/// If true, a generation model only counts the tokens of its prompts. It generates no text; the
/// usage of the response has the count.
pub const COUNT_TOKENS: &str = "count_tokens";

/// If true, each text of the request's rows is a JSON array of token ids, which bypasses the
/// tokenizer.
pub const TOKEN_INPUTS: &str = "token_inputs";

/// If true, a generation model only tokenizes its prompts: one row for each prompt, with its
/// `token_ids`. With `return_token_strs`, `token_logprobs` has the token texts.
pub const TOKENIZE: &str = "tokenize";

/// If true, a generation model only converts its prompts, JSON arrays of token ids, to text: one
/// row for each prompt.
pub const DETOKENIZE: &str = "detokenize";

/// If true, an embedding model returns the vectors of all tokens of a text instead of one vector.
/// The `embedding` of a row has `tokens` concatenated vectors.
pub const TOKEN_VECTORS: &str = "token_vectors";

/// If true, a remote model that embeds or reranks also returns the other fields of its server's
/// answers, and null for an unknown number of tokens: see
/// [`Signature::answer`](crate::Signature::answer). Only for models with
/// [`ROW_PARAMETERS`].
pub const ROW_DETAILS: &str = "row_details";

/// Pseudo-format in a signature: the model embeds or reranks at a provider. It translates, forwards
/// or rejects every parameter, and supports [`ROW_DETAILS`].
pub const ROW_PARAMETERS: &str = "row_parameters";

/// If true, each answer starts with the text of its prompt and, with `logprobs`, the log
/// probability of each prompt token.
pub const ECHO: &str = "echo";

/// One parameter: a scalar, or JSON (arrays and objects) stored as text.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Text(String),
    /// A JSON array or object, as text.
    Json(String),
}

impl ParamValue {
    /// An array with this value as its only element.
    fn array(&self) -> ArrayRef {
        match self {
            Self::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
            Self::Int(value) => Arc::new(Int64Array::from(vec![*value])),
            Self::Float(value) => Arc::new(Float64Array::from(vec![*value])),
            Self::Text(value) | Self::Json(value) => {
                Arc::new(StringArray::from(vec![value.trim()]))
            }
        }
    }
}

/// The parameters of one request, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(BTreeMap<String, ParamValue>);

impl Parameters {
    /// Sets one parameter, replacing an earlier value.
    ///
    /// # Errors
    /// `InvalidInput` if there would be more than [`MAX_PARAMETERS`].
    pub fn set(&mut self, name: impl Into<String>, value: ParamValue) -> Result<(), PredictError> {
        let name = name.into();
        if self.0.len() >= MAX_PARAMETERS && !self.0.contains_key(&name) {
            return Err(PredictError::invalid(format!(
                "a request may carry at most {MAX_PARAMETERS} parameters"
            )));
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// Removes and returns one parameter.
    pub fn remove(&mut self, name: &str) -> Option<ParamValue> {
        self.0.remove(name)
    }

    /// The raw value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ParamValue> {
        self.0.get(name)
    }

    /// All parameters, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ParamValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `defaults` for missing parameters.
    #[must_use]
    pub fn or_defaults(mut self, defaults: &Self) -> Self {
        for (name, value) in &defaults.0 {
            self.0.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Casts the parameter to an array of one non-null value.
    fn cast(
        &self,
        name: &str,
        to: &DataType,
        wanted: &str,
    ) -> Result<Option<ArrayRef>, PredictError> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        let wrong = || PredictError::invalid(format!("parameter '{name}' must be {wanted}"));
        // Casting 0.7 to an integer would truncate it silently; this returns an error instead.
        if let (ParamValue::Float(number), true) = (value, to.is_integer())
            && number.fract() != 0.0
        {
            return Err(wrong());
        }
        // Report values that do not fit as an error, not as a null.
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let cast = cast_with_options(&value.array(), to, &options).map_err(|_| wrong())?;
        if cast.is_null(0) {
            Err(wrong())
        } else {
            Ok(Some(cast))
        }
    }

    /// The parameter as a finite number; `None` if it is not set.
    ///
    /// # Errors
    /// `InvalidInput`, naming the parameter, if its value is not a finite number.
    pub fn float(&self, name: &str) -> Result<Option<f64>, PredictError> {
        let Some(cast) = self.cast(name, &DataType::Float64, "a number")? else {
            return Ok(None);
        };
        let value = cast.as_primitive::<Float64Type>().value(0);
        if value.is_finite() {
            Ok(Some(value))
        } else {
            Err(PredictError::invalid(format!(
                "parameter '{name}' must be a finite number"
            )))
        }
    }

    /// The parameter as a non-negative integer; `None` if it is not set.
    ///
    /// # Errors
    /// `InvalidInput`, naming the parameter, if its value is not such a number.
    pub fn unsigned(&self, name: &str) -> Result<Option<u64>, PredictError> {
        let wanted = "a whole number that is not negative";
        let cast = self.cast(name, &DataType::UInt64, wanted)?;
        Ok(cast.map(|cast| cast.as_primitive::<UInt64Type>().value(0)))
    }

    /// The parameter as a boolean; `None` if it is not set.
    ///
    /// # Errors
    /// `InvalidInput`, naming the parameter, if its value is not a boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, PredictError> {
        let cast = self.cast(name, &DataType::Boolean, "true or false")?;
        Ok(cast.map(|cast| cast.as_boolean().value(0)))
    }

    /// The parameter as text; `None` if it is not set. Numbers and JSON are rendered.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            ParamValue::Text(value) | ParamValue::Json(value) => Some(value.clone()),
            ParamValue::Bool(value) => Some(value.to_string()),
            ParamValue::Int(value) => Some(value.to_string()),
            ParamValue::Float(value) => Some(value.to_string()),
        }
    }

    /// The parameter as a list of strings, given as a JSON array of strings or as one string. Empty
    /// if it is not set.
    ///
    /// # Errors
    /// `InvalidInput`, naming the parameter, if its value is neither.
    pub fn strings(&self, name: &str) -> Result<Vec<String>, PredictError> {
        let wrong = || {
            PredictError::invalid(format!(
                "parameter '{name}' must be a string or an array of strings"
            ))
        };
        match self.0.get(name) {
            None => Ok(Vec::new()),
            Some(ParamValue::Json(json)) => serde_json::from_str(json).map_err(|_| wrong()),
            // Some dialects convert every value to text, so an array may arrive as text.
            Some(ParamValue::Text(text)) if text.trim_start().starts_with('[') => {
                Ok(serde_json::from_str(text).unwrap_or_else(|_| vec![text.clone()]))
            }
            Some(ParamValue::Text(text)) => Ok(vec![text.clone()]),
            Some(_) => Err(wrong()),
        }
    }
}

impl FromIterator<(String, ParamValue)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, ParamValue)>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
