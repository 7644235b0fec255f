//! `generate` for tensor models in Triton's format, in which inputs and outputs are fields of one
//! flat object. Pure.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value, json};
use volley_types::PredictError;

use super::ResolvedModel;
use super::describe::{self, TensorForm};
use super::outputs::{self, RequestedOutputs};
use super::tensors::printable;
use super::text_parameters;
use volley_dialect_kit::sse::Events;

/// Converts a flat body to a body of `infer`. `streams` is whether the response is a stream.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn tensors(
    mut body: Map<String, Value>,
    found: &ResolvedModel,
    streams: bool,
) -> Result<Map<String, Value>, PredictError> {
    let forms = describe::inputs(&found.signature);
    let nested = match body.remove("parameters") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(nested)) => nested,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'parameters' must be an object",
            ));
        }
    };
    let id = body.remove("id");
    let (mut inputs, mut parameters) = (Vec::new(), Map::new());
    for (name, value) in body.into_iter().chain(nested) {
        let told = match forms.iter().find(|form| form.name == name) {
            Some(form) => {
                inputs.push(tensor(form, value)?);
                inputs.iter().filter(|input| input["name"] == *name).count()
            }
            None => 1 + usize::from(parameters.insert(name.clone(), value).is_some()),
        };
        if 1 < told {
            let name = printable(&name);
            let message = format!("'{name}' is given twice: in 'parameters' and as a field");
            return Err(PredictError::invalid(message));
        }
    }
    text_parameters::take_stream(&mut parameters, streams)?;
    let of_infer = ["inputs", "outputs"];
    if let Some(name) = of_infer
        .iter()
        .find(|name| parameters.get(**name).is_some_and(|value| !value.is_null()))
    {
        let message = format!("field '{name}' is not supported here; leave it out, or use infer");
        return Err(PredictError::invalid(message));
    }
    let given = |form: &&TensorForm| inputs.iter().any(|input| input["name"] == *form.name);
    if let Some(missing) = forms.iter().find(|form| !form.optional && !given(form)) {
        let message = format!("input '{}' is missing", missing.name);
        return Err(PredictError::invalid(message));
    }
    let mut whole = Map::new();
    whole.insert("inputs".to_owned(), inputs.into());
    whole.insert("parameters".to_owned(), parameters.into());
    whole.extend(id.map(|id| ("id".to_owned(), id)));
    Ok(whole)
}

/// Converts a value, or a flat list of values, to a tensor of the model's declared shape.
fn tensor(form: &TensorForm, value: Value) -> Result<Value, PredictError> {
    let data = match value {
        Value::Array(data) => data,
        single => vec![single],
    };
    if data
        .iter()
        .any(|value| value.is_array() || value.is_object())
    {
        return Err(PredictError::invalid(format!(
            "input '{}' must be one value or a flat list of them",
            form.name
        )));
    }
    let shape = spread(&form.shape, data.len()).ok_or_else(|| {
        PredictError::invalid(format!(
            "input '{}' has {} values, which do not fill a tensor of the shape {:?}",
            form.name,
            data.len(),
            form.shape
        ))
    })?;
    Ok(json!({ "name": form.name, "datatype": form.datatype, "shape": shape, "data": data }))
}

/// A shape for `count` values that matches the declared one. The innermost open dimension takes the
/// remaining size; all other open dimensions are 1.
fn spread(declared: &[i64], count: usize) -> Option<Vec<usize>> {
    let mut left = count;
    for dim in declared.iter().filter(|dim| 0 <= **dim) {
        let dim = usize::try_from(*dim).ok()?;
        if dim == 0 || !left.is_multiple_of(dim) {
            return (count == 0).then(|| vec![0; declared.len()]);
        }
        left /= dim;
    }
    let mut shape: Vec<usize> = Vec::with_capacity(declared.len());
    for dim in declared.iter().rev() {
        shape.push(match usize::try_from(*dim) {
            Ok(dim) => dim,
            Err(_) => std::mem::replace(&mut left, 1),
        });
    }
    shape.reverse();
    (left == 1).then_some(shape)
}

/// Format of a response.
#[derive(Clone, Debug)]
pub(super) struct FlatAnswer {
    pub(super) model: String,
    pub(super) version: String,
    pub(super) id: Option<String>,
    pub(super) schema: SchemaRef,
    pub(super) batched: bool,
}

impl FlatAnswer {
    /// Formats the outputs of some rows as a flat object, with its fields ordered by name.
    ///
    /// # Errors
    /// As [`outputs::outputs`].
    pub(super) fn object(&self, batches: &[RecordBatch]) -> Result<Value, PredictError> {
        let outputs = outputs::outputs(
            batches,
            &self.schema,
            &RequestedOutputs::default(),
            self.batched,
        )?;
        let mut fields: BTreeMap<String, Value> = BTreeMap::new();
        for mut output in outputs.told {
            let name = output["name"].as_str().unwrap_or_default().to_owned();
            let mut data = output["data"].take();
            if let Value::Array(values) = &mut data
                && let [value] = values.as_mut_slice()
            {
                data = value.take();
            }
            fields.insert(name, data);
        }
        fields.insert("model_name".to_owned(), self.model.clone().into());
        fields.insert("model_version".to_owned(), self.version.clone().into());
        let id = self.id.as_deref().filter(|id| !id.is_empty());
        fields.extend(id.map(|id| ("id".to_owned(), id.into())));
        Ok(Value::Object(fields.into_iter().collect()))
    }
}

/// Writes an event for each batch of a response.
pub(super) struct FlatEvents {
    pub(super) answer: FlatAnswer,
    /// Whether a batch without rows is no event: a stream of events may have none.
    pub(super) skips_empty: bool,
}

impl Events for FlatEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        if self.skips_empty && batch.num_rows() == 0 {
            return Ok(());
        }
        let told = self.answer.object(std::slice::from_ref(batch))?;
        out.put_slice(format!("data: {told}\n\n").as_bytes());
        Ok(())
    }

    fn finished(&self) -> bool {
        false
    }

    fn may_just_end(&self) -> bool {
        true
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        let told = json!({ "error": error.message });
        out.put_slice(format!("data: {told}\n\n").as_bytes());
    }
}

#[cfg(test)]
mod tests;
