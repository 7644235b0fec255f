//! Converts rows to tensors of the protocol, in JSON or in binary form after it. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, SchemaRef};
use serde_json::{Map, Value, json};
use volley_types::signature::labels;
use volley_types::{ErrorCode, PredictError};

use super::classes::{self, best};
use super::coded::{is_base64, json_of_texts};
use super::known;
use super::raw;
use super::tensors::{EmptyShapes, RawTensor, datatype, described, empty_shape, printable};
use volley_dialect_kit::tensors::append;
use volley_dialect_kit::tensors::columns::{self, different, flat, form};
use volley_shared_memory::{OFFSET, REGION, SIZE, Slice, slice};

/// Maximum number of classes of an output over all rows. It is limited because each class is a
/// text.
const MAX_CLASSES: usize = 65_536;

/// The requested outputs and their format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedOutputs {
    /// The requested outputs; all of them if empty.
    named: Vec<OutputRequest>,
    /// Whether outputs are binary by default.
    binary: bool,
    /// The shapes of inputs without rows, which the outputs without rows have too.
    empty: EmptyShapes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OutputRequest {
    name: String,
    binary: Option<bool>,
    /// Number of highest values to return for each row instead of all values.
    classes: Option<usize>,
    /// Whether texts in JSON are base64.
    base64: bool,
    /// Destination in shared memory.
    shared: Option<Slice>,
}

/// Format of one output.
#[derive(Clone, Copy, Debug, Default)]
struct FormOf<'w> {
    binary: bool,
    classes: Option<usize>,
    base64: bool,
    shared: Option<&'w Slice>,
}

/// An output that is requested over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcOutput {
    pub(super) name: String,
    /// Number of highest values to return for each row instead of all values.
    pub(super) classes: Option<usize>,
    /// Destination in shared memory.
    pub(super) shared: Option<Slice>,
}

impl RequestedOutputs {
    /// All outputs in binary form, for the response to a raw request.
    pub(super) fn all_binary() -> Self {
        Self {
            named: Vec::new(),
            binary: true,
            empty: Vec::new(),
        }
    }

    /// These outputs in binary form, or all of them if none is given.
    ///
    /// # Errors
    /// `InvalidInput` for an output that the model does not have.
    pub(super) fn binary(
        outputs: Vec<GrpcOutput>,
        schema: &SchemaRef,
    ) -> Result<Self, PredictError> {
        let named = outputs.into_iter().map(|output| {
            check(&output.name, schema)?;
            Ok(OutputRequest {
                name: output.name,
                binary: None,
                classes: output.classes,
                base64: false,
                shared: output.shared,
            })
        });
        let named: Vec<OutputRequest> = named.collect::<Result<_, PredictError>>()?;
        once(named.iter().map(|named| named.name.as_str()))?;
        Ok(Self {
            named,
            binary: true,
            empty: Vec::new(),
        })
    }

    /// Parses `outputs` and `parameters` of a request.
    ///
    /// # Errors
    /// `InvalidInput` for an output that the model does not have, or for an unsupported format.
    pub(super) fn read(
        body: &Map<String, Value>,
        schema: &SchemaRef,
    ) -> Result<Self, PredictError> {
        let wrong =
            || PredictError::invalid("field 'outputs' must be a list of objects with a 'name'");
        let flag = |given: Option<&Value>, name: &str| match given.and_then(|all| all.get(name)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(PredictError::invalid(format!(
                "parameter '{name}' must be true or false"
            ))),
        };
        let binary = flag(body.get("parameters"), "binary_data_output")?.unwrap_or(false);
        let outputs: &[Value] = match body.get("outputs") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(outputs)) => outputs,
            Some(_) => return Err(wrong()),
        };
        let mut named = Vec::with_capacity(outputs.len());
        for output in outputs {
            let name = output
                .get("name")
                .and_then(Value::as_str)
                .ok_or_else(wrong)?;
            check(name, schema)?;
            known::output(output)?;
            let parameters = output.get("parameters");
            let shared = slice(|name| parameters.and_then(|given| given.get(name)));
            named.push(OutputRequest {
                name: name.to_owned(),
                binary: flag(parameters, "binary_data")?,
                classes: count(parameters.and_then(|given| given.get("classification")))?,
                base64: is_base64(parameters),
                shared: shared.map_err(|what| {
                    PredictError::invalid(format!("output '{}': {what}", printable(name)))
                })?,
            });
        }
        once(named.iter().map(|named| named.name.as_str()))?;
        Ok(Self {
            named,
            binary,
            empty: Vec::new(),
        })
    }

    /// The same, for a request whose inputs have no rows of these shapes.
    pub(super) fn of(self, empty: EmptyShapes) -> Self {
        Self { empty, ..self }
    }

    /// Checks that all outputs can be sent in JSON.
    ///
    /// # Errors
    /// `InvalidInput` if binary data or shared memory is requested.
    pub(super) fn in_json(self) -> Result<Self, PredictError> {
        if self.binary || self.named.iter().any(|named| named.binary == Some(true)) {
            let message = "events have no binary tensors; leave 'binary_data' out, or use gRPC";
            return Err(PredictError::invalid(message));
        }
        if self.named.iter().any(|named| named.shared.is_some()) {
            let message = "responses of a stream cannot be written to shared memory; use infer";
            return Err(PredictError::invalid(message));
        }
        Ok(self)
    }

    /// The format of `output`; `None` if it is not requested.
    fn form_of(&self, output: &str) -> Option<FormOf<'_>> {
        if self.named.is_empty() {
            return Some(FormOf {
                binary: self.binary,
                ..FormOf::default()
            });
        }
        let named = self.named.iter().find(|named| named.name == output)?;
        Some(FormOf {
            binary: named.binary.unwrap_or(self.binary),
            classes: named.classes,
            base64: named.base64,
            shared: named.shared.as_ref(),
        })
    }
}

/// Rejects outputs that are requested twice.
///
/// # Errors
/// `InvalidInput` naming the output.
pub(super) fn once<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<(), PredictError> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(PredictError::invalid(format!(
            "output '{}' is named twice; name each output once",
            printable(name)
        ))),
    }
}

/// Parses a number of classes.
fn count(given: Option<&Value>) -> Result<Option<usize>, PredictError> {
    let wrong =
        || PredictError::invalid("output parameter 'classification' must be a number of classes");
    match given {
        None | Some(Value::Null) => Ok(None),
        Some(given) => match given.as_u64().and_then(|count| usize::try_from(count).ok()) {
            // Triton's clients send 0 for no classification.
            Some(0) => Ok(None),
            Some(count) => Ok(Some(count)),
            None => Err(wrong()),
        },
    }
}

/// Checks that a model has an output with this name.
fn check(name: &str, schema: &SchemaRef) -> Result<(), PredictError> {
    if schema.field_with_name(name).is_ok() {
        return Ok(());
    }
    Err(no_output(name))
}

/// The error for an output that the model does not have.
pub(super) fn no_output(name: &str) -> PredictError {
    let message = format!("'{}' is not an output of this model", printable(name));
    PredictError::invalid(message)
}

/// The outputs of a response.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Description of the outputs, and the data of those in JSON.
    pub(super) told: Vec<Value>,
    /// Binary data after the JSON; `None` if no output is binary.
    pub(super) bytes: Option<Vec<u8>>,
    /// Data for shared memory, with its destination.
    pub(super) shared: Vec<(Slice, Vec<u8>)>,
}

/// The requested outputs, in the order of the model's outputs.
///
/// # Errors
/// `InvalidInput` if rows of different shapes cannot form a tensor; `Unimplemented` for a column
/// that cannot be a tensor.
pub(super) fn outputs(
    batches: &[RecordBatch],
    schema: &SchemaRef,
    wanted: &RequestedOutputs,
    batched: bool,
) -> Result<Outputs, PredictError> {
    let mut outputs = Outputs::default();
    for (index, field) in schema.fields().iter().enumerate() {
        let Some(form) = wanted.form_of(field.name()) else {
            continue;
        };
        let columns = batches.iter().map(|batch| batch.column(index));
        let mut tensor = Tensor::read(field, &columns.collect::<Vec<_>>(), batched, &wanted.empty)?;
        let mut datatype = described(field);
        let texts = Field::new(field.name(), DataType::Utf8, false);
        if let Some(count) = form.classes {
            tensor = tensor.classes(count, batched, &labels(field), &texts)?;
            datatype = described(&texts);
        }
        let mut told = json!({
            "name": field.name(),
            "datatype": datatype,
            "shape": tensor.shape,
        });
        if let Some(slice) = form.shared {
            let mut bytes = Vec::new();
            for part in &tensor.parts {
                raw::encode(part, &mut bytes).ok_or_else(|| no_form(field))?;
            }
            told["parameters"] = json!({ REGION: slice.region, SIZE: bytes.len() });
            if slice.offset != 0 {
                told["parameters"][OFFSET] = slice.offset.into();
            }
            outputs.shared.push((slice.clone(), bytes));
        } else if form.binary {
            let bytes = outputs.bytes.get_or_insert_default();
            let before = bytes.len();
            for part in &tensor.parts {
                raw::encode(part, bytes).ok_or_else(|| no_form(field))?;
            }
            told["parameters"] = json!({ "binary_data_size": bytes.len() - before });
        } else if let Some((data, coded)) = json_of_texts(&tensor.parts, form.base64) {
            if coded {
                told["parameters"] = json!({ "content_type": "base64" });
            }
            told["data"] = data.into();
        } else {
            told["data"] = tensor.json()?;
        }
        outputs.told.push(told);
    }
    Ok(outputs)
}

/// The requested outputs in binary form, in the order of the model's outputs, with their
/// destinations in shared memory.
///
/// # Errors
/// As for [`outputs`].
pub(super) fn binary(
    batches: &[RecordBatch],
    schema: &SchemaRef,
    wanted: &RequestedOutputs,
    batched: bool,
) -> Result<Vec<(RawTensor, Option<Slice>)>, PredictError> {
    let mut outputs = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let Some(FormOf {
            classes, shared, ..
        }) = wanted.form_of(field.name())
        else {
            continue;
        };
        let columns = batches.iter().map(|batch| batch.column(index));
        let mut tensor = Tensor::read(field, &columns.collect::<Vec<_>>(), batched, &wanted.empty)?;
        let mut datatype = described(field);
        let texts = Field::new(field.name(), DataType::Utf8, false);
        if let Some(count) = classes {
            tensor = tensor.classes(count, batched, &labels(field), &texts)?;
            datatype = described(&texts);
        }
        let mut bytes = Vec::new();
        for part in &tensor.parts {
            raw::encode(part, &mut bytes).ok_or_else(|| no_form(field))?;
        }
        let datatype = datatype.ok_or_else(|| no_form(field))?;
        let tensor = RawTensor {
            name: field.name().clone(),
            datatype: datatype.to_owned(),
            shape: tensor.shape,
            data: bytes.into(),
        };
        outputs.push((tensor, shared.cloned()));
    }
    Ok(outputs)
}

struct Tensor<'f> {
    item: &'f Field,
    shape: Vec<usize>,
    parts: Vec<ArrayRef>,
}

impl<'f> Tensor<'f> {
    fn read(
        field: &'f Field,
        columns: &[&ArrayRef],
        batched: bool,
        empty: &EmptyShapes,
    ) -> Result<Self, PredictError> {
        let (item, form) = form(field).ok_or_else(|| no_form(field))?;
        let mut row_shape: Option<Vec<usize>> = None;
        let mut parts = Vec::with_capacity(columns.len());
        for column in columns {
            let columns::FlatColumn {
                values,
                row_shape: found,
            } = flat(field, column)?;
            if let Some(found) = found
                && *row_shape.get_or_insert_with(|| found.clone()) != found
            {
                return Err(different(field));
            }
            parts.push(values);
        }
        let rows = columns.iter().map(|column| column.len()).sum();
        let row_shape = row_shape.unwrap_or_else(|| empty_shape(field, empty));
        debug_assert_eq!(row_shape.len(), form.rank());
        let alone = !batched && rows == 1;
        let shape = std::iter::once(rows)
            .chain(row_shape)
            .skip(usize::from(alone));
        Ok(Self {
            item,
            shape: shape.collect(),
            parts,
        })
    }

    /// The `count` highest values of each row, as texts in a column that `texts` describes. A value
    /// has its label if the output has labels.
    fn classes(
        self,
        count: usize,
        batched: bool,
        labels: &[String],
        texts: &'f Field,
    ) -> Result<Self, PredictError> {
        if datatype(self.item).is_none_or(|name| matches!(name, "BYTES" | "BOOL")) {
            let message = "only numeric outputs have classes; leave 'classification' out";
            return Err(PredictError::invalid(message));
        }
        let mut values = Vec::with_capacity(self.shape.iter().product());
        for part in &self.parts {
            classes::append(self.item, part, &mut values).ok_or_else(|| no_form(self.item))?;
        }
        let rows = if batched {
            self.shape.first().copied().unwrap_or(0)
        } else {
            1
        };
        let each = values.len().checked_div(rows).unwrap_or(0);
        if MAX_CLASSES < rows.saturating_mul(count.min(each)) {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "output parameter 'classification' requests more than {MAX_CLASSES} classes \
                     in one response; request fewer, or send fewer rows"
                ),
            ));
        }
        let rows_of = values.chunks(each.max(1));
        let best: Vec<String> = rows_of.flat_map(|row| best(row, count, labels)).collect();
        let best: ArrayRef = Arc::new(StringArray::from(best));
        let shape = if batched {
            vec![rows, count.min(each)]
        } else {
            vec![count.min(each)]
        };
        Ok(Self {
            item: texts,
            shape,
            parts: vec![best],
        })
    }

    fn json(&self) -> Result<Value, PredictError> {
        datatype(self.item).ok_or_else(|| no_form(self.item))?;
        let mut data = Vec::with_capacity(self.shape.iter().product());
        for part in &self.parts {
            append(self.item, part, &mut data)?;
        }
        Ok(Value::Array(data))
    }
}

fn no_form(field: &Field) -> PredictError {
    let message = format!(
        "output '{}' of type {} cannot be encoded in this protocol; use Arrow Flight",
        field.name(),
        field.data_type()
    );
    PredictError::new(ErrorCode::Unimplemented, message)
}
