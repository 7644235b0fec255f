//! The answers of a remote model's server besides the values of rows: usage, and the fields of its
//! own format. Pure.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use serde_json::{Map, Value};
use volley_types::params::{ROW_DETAILS, ROW_PARAMETERS};
use volley_types::signature::UPSTREAM;
use volley_types::{ParamValue, PredictError, PredictRequest, Signature};

use crate::vectors::count;

/// Whether a model translates, forwards or rejects every parameter. Others run here, or on a worker
/// of an earlier version.
#[must_use]
pub fn forwards(signature: &Signature) -> bool {
    signature.takes_native(ROW_PARAMETERS)
}

/// Requests the details, if the model has them.
///
/// # Errors
/// `InvalidInput` if the request has too many parameters.
pub fn demand(signature: &Signature, request: &mut PredictRequest) -> Result<(), PredictError> {
    if forwards(signature) {
        let wanted = ParamValue::Bool(true);
        request.parameters.set(ROW_DETAILS, wanted)?;
    }
    Ok(())
}

/// The details of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowDetails {
    /// Tokens of all rows; `None` if they are unknown.
    pub tokens: Option<u64>,
    format: Option<String>,
    fields: Map<String, Value>,
}

impl RowDetails {
    /// Reads the details. The counts of several calls are added.
    pub fn read(batches: &[RecordBatch]) -> Self {
        let mut read = Self {
            tokens: batches.iter().map(count).sum(),
            ..Self::default()
        };
        for batch in batches {
            let column = batch.column_by_name(UPSTREAM);
            let texts = column.and_then(|column| column.as_string_opt::<i32>());
            for text in texts.into_iter().flatten().flatten() {
                read.add(serde_json::from_str(text).unwrap_or_default());
            }
        }
        read
    }

    fn add(&mut self, mut call: Value) {
        let format = call["format"].as_str().map(str::to_owned);
        let Value::Object(fields) = call["fields"].take() else {
            return;
        };
        match &self.format {
            None => (self.format, self.fields) = (format, fields),
            Some(known) if format.as_ref() == Some(known) => merge(&mut self.fields, fields, false),
            // Servers of different formats have no common fields.
            Some(_) => (self.format, self.fields) = (Some(String::new()), Map::new()),
        }
    }

    /// The fields of a server of this dialect; none for other servers.
    #[must_use]
    pub fn fields(&self, dialect: &str) -> Option<&Map<String, Value>> {
        (self.format.as_deref() == Some(dialect)).then_some(&self.fields)
    }
}

/// Adds the counts of another call. Other values stay those of the first call.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>, counts: bool) {
    for (name, value) in from {
        let counts = counts || name.ends_with("_count") || name.ends_with("_duration");
        match (into.get_mut(&name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from, true),
            (Some(sum @ Value::Number(_)), Value::Number(more)) if counts => {
                *sum = match (sum.as_u64(), more.as_u64()) {
                    (Some(sum), Some(more)) => sum.saturating_add(more).into(),
                    _ => (sum.as_f64().unwrap_or(0.0) + more.as_f64().unwrap_or(0.0)).into(),
                };
            }
            (Some(_), _) => {}
            (None, value) => _ = into.insert(name, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, StringArray, UInt32Array};
    use serde_json::json;

    use super::*;

    fn batch(tokens: Option<u32>, details: Option<&Value>) -> RecordBatch {
        let details = StringArray::from(vec![details.map(Value::to_string)]);
        let columns: [(&str, ArrayRef, bool); 2] = [
            ("tokens", Arc::new(UInt32Array::from(vec![tokens])), true),
            (UPSTREAM, Arc::new(details), true),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn calls_are_added_up_and_an_unknown_count_is_no_zero() {
        let call = |units: u32| {
            let meta = json!({ "billed_units": { "search_units": units } });
            json!({ "format": "cohere", "fields": { "created": 7, "meta": meta } })
        };
        let read = RowDetails::read(&[
            batch(Some(2), Some(&call(1))),
            batch(Some(3), Some(&call(2))),
        ]);
        assert_eq!(read.tokens, Some(5));
        let fields = read.fields("cohere").unwrap();
        assert_eq!(fields["meta"]["billed_units"]["search_units"], 3);
        assert_eq!(fields["created"], 7, "only counts are added");
        assert_eq!(read.fields("openai"), None);
        let unknown = RowDetails::read(&[batch(Some(2), None), batch(None, None)]);
        assert_eq!((unknown.tokens, unknown.fields("cohere")), (None, None));
    }
}
