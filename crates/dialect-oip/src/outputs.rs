//! Rows into tensors of the protocol, in JSON or behind it. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, SchemaRef};
use serde_json::{Map, Value, json};
use volley_types::signature::labels;
use volley_types::{ErrorCode, PredictError};

use super::classes::best;
use super::coded::{is_base64, json_of_texts};
use super::known;
use super::raw;
use super::tensors::{EmptyShapes, RawTensor, datatype, described, empty_shape, printable};
use volley_dialect_kit::tensors::append;
use volley_dialect_kit::tensors::columns::{self, different, flat, form};
use volley_shared_memory::{OFFSET, REGION, SIZE, Slice, slice};

/// The most classes of all rows of an output together. Each is a text of its own.
const MAX_CLASSES: usize = 65_536;

/// Which outputs a request asks for, and in what form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedOutputs {
    /// The outputs by name; all of them when empty.
    named: Vec<OutputRequest>,
    /// Whether those that do not say so themselves are binary.
    binary: bool,
    /// The shapes of inputs without rows, which the outputs without rows have too.
    empty: EmptyShapes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OutputRequest {
    name: String,
    binary: Option<bool>,
    /// How many of the best values of each row are told, in place of all.
    classes: Option<usize>,
    /// Whether texts in JSON are base64.
    base64: bool,
    /// Where in shared memory it goes.
    shared: Option<Slice>,
}

/// The form of one output.
#[derive(Clone, Copy, Debug, Default)]
struct FormOf<'w> {
    binary: bool,
    classes: Option<usize>,
    base64: bool,
    shared: Option<&'w Slice>,
}

/// An output that is asked for over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcOutput {
    pub(super) name: String,
    /// How many of the best values of each row, in place of all.
    pub(super) classes: Option<usize>,
    /// Where in shared memory it goes.
    pub(super) shared: Option<Slice>,
}

impl RequestedOutputs {
    /// All outputs as binary data: the answer to a raw request.
    pub(super) fn all_binary() -> Self {
        Self {
            named: Vec::new(),
            binary: true,
            empty: Vec::new(),
        }
    }

    /// These outputs as binary data, or all of them.
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

    /// What a request's `outputs` and `parameters` say.
    ///
    /// # Errors
    /// `InvalidInput` for an output that the model does not have, or one in a form that is not
    /// served.
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

    /// The same, where nothing else than JSON can be told.
    ///
    /// # Errors
    /// `InvalidInput` when binary data is wanted.
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

    /// Whether `output` is wanted, and if so in what form.
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

/// Refuses outputs that are asked for twice.
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

/// A number of classes.
fn count(given: Option<&Value>) -> Result<Option<usize>, PredictError> {
    let wrong =
        || PredictError::invalid("output parameter 'classification' must be a number of classes");
    match given {
        None | Some(Value::Null) => Ok(None),
        Some(given) => match given.as_u64().and_then(|count| usize::try_from(count).ok()) {
            // Triton's clients say 0 where no classes are wanted.
            Some(0) => Ok(None),
            Some(count) => Ok(Some(count)),
            None => Err(wrong()),
        },
    }
}

/// Whether a model has an output of that name.
fn check(name: &str, schema: &SchemaRef) -> Result<(), PredictError> {
    if schema.field_with_name(name).is_ok() {
        return Ok(());
    }
    Err(no_output(name))
}

/// A model has no such output.
pub(super) fn no_output(name: &str) -> PredictError {
    let message = format!("'{}' is not an output of this model", printable(name));
    PredictError::invalid(message)
}

/// The outputs of an answer.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// What the JSON tells of them.
    pub(super) told: Vec<Value>,
    /// The bytes behind the JSON; `None` when no output is binary.
    pub(super) bytes: Option<Vec<u8>>,
    /// What goes to shared memory, and where.
    pub(super) shared: Vec<(Slice, Vec<u8>)>,
}

/// The wanted outputs, in the order of the model's own.
///
/// # Errors
/// `InvalidInput` when rows of different shapes make no tensor; `Unimplemented` for a column that
/// has no such form.
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

/// The wanted outputs, all in binary, in the order of the model's own, and where in shared memory
/// they go.
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

    /// The best `count` values of each row, as texts in a column that `texts` describes, with their
    /// names where they have some.
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
        let Value::Array(values) = self.json()? else {
            return Err(no_form(self.item));
        };
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
