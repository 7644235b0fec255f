//! The rows of one call.

use serde_json::Value;
use volley_types::PredictError;

/// Rows of one call. They have the same query and the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowGroup {
    /// The query, for reranking.
    pub query: Option<String>,
    /// The kind of the texts, from the column `input_type`.
    pub kind: Option<String>,
    /// The texts, in the order of their rows.
    pub texts: Vec<String>,
    /// Whether each text is a JSON array of token ids.
    pub is_tokens: bool,
    /// Whether the other fields of the answer are requested.
    pub details: bool,
}

impl RowGroup {
    /// The inputs of a request: texts, or lists of token ids.
    ///
    /// # Errors
    /// `InvalidInput` if a row is not a list of token ids.
    pub fn inputs(&self) -> Result<Value, PredictError> {
        if !self.is_tokens {
            return Ok(Value::from(self.texts.as_slice()));
        }
        let lists = self.texts.iter().map(|text| {
            let ids: Vec<u32> = serde_json::from_str(text).map_err(|_| {
                PredictError::invalid(
                    "parameter 'token_inputs' is true, and a text is not a JSON array of token ids",
                )
            })?;
            Ok(Value::from(ids))
        });
        lists.collect()
    }
}
