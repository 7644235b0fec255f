//! Converts tensors of the protocol to rows. Pure.
//!
//! The first dimension of a tensor is the number of rows. A tensor with one dimension less is a
//! single row, so that a model without batches can be called without that dimension.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use serde_json::Value;
use volley_types::signature::{DIMENSIONS, is_bfloat16, takes_octets};
use volley_types::{PredictError, octets};

use super::casts;
use super::coded::bytes_of_texts;
use super::nested;
use super::raw;
use volley_dialect_kit::tensors::columns::{self, TensorLayout, form};
use volley_dialect_kit::tensors::{fixed_shape, flat_values};
use volley_shared_memory::REGION;

/// The rows of a request, and whether their tensors had a dimension for the rows.
#[derive(Debug)]
pub(super) struct TensorRows {
    pub(super) batch: RecordBatch,
    pub(super) batched: bool,
    /// The shapes of the rows of inputs that have none.
    pub(super) empty: EmptyShapes,
}

/// The shapes that rows of inputs without rows would have, by the name of the input.
pub(super) type EmptyShapes = Vec<(String, Vec<usize>)>;

/// Builds rows from the `inputs` of a request and the binary data after its JSON.
///
/// # Errors
/// `InvalidInput` naming the input.
pub(super) fn rows(
    inputs: &[Value],
    mut raw: Bytes,
    schema: &SchemaRef,
) -> Result<TensorRows, PredictError> {
    let mut columns = Columns::new(schema);
    for input in inputs {
        let name = input.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| PredictError::invalid("an input has no 'name'"))?;
        columns.add(name, |field| {
            let bytes = bytes_of(input, &mut raw)?;
            Tensor::read(input, field, bytes)
        })?;
    }
    all_read(&raw)?;
    columns.rows()
}

/// Checks that all binary data after a request's JSON has been consumed.
///
/// # Errors
/// `InvalidInput` if bytes remain.
pub(super) fn all_read(raw: &Bytes) -> Result<(), PredictError> {
    match raw.len() {
        0 => Ok(()),
        more => Err(PredictError::invalid(format!(
            "the request has {more} bytes after its declared tensors"
        ))),
    }
}

/// A tensor in binary form.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<usize>,
    pub(super) data: Bytes,
}

/// Builds rows from tensors that are all in binary form.
///
/// # Errors
/// `InvalidInput` naming the input.
pub(super) fn binary_rows(
    inputs: Vec<RawTensor>,
    schema: &SchemaRef,
) -> Result<TensorRows, PredictError> {
    let mut columns = Columns::new(schema);
    for input in inputs {
        let (datatype, shape) = (Some(input.datatype.as_str()), input.shape);
        columns.add(&input.name, |field| {
            Tensor::of(field, datatype, shape, |item, size| {
                let any_bytes = takes_octets(field);
                Ok(Data::Raw(raw::decode(item, size, input.data, any_bytes)?))
            })
        })?;
    }
    columns.rows()
}

/// Collects the columns of a request.
struct Columns<'s> {
    schema: &'s SchemaRef,
    given: Vec<Option<(ArrayRef, usize)>>,
    batched: Option<bool>,
    empty: EmptyShapes,
}

impl<'s> Columns<'s> {
    fn new(schema: &'s SchemaRef) -> Self {
        Self {
            schema,
            given: vec![None; schema.fields().len()],
            batched: None,
            empty: Vec::new(),
        }
    }

    fn add<'v>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Field) -> Result<Tensor<'v>, String>,
    ) -> Result<(), PredictError> {
        let Some((index, field)) = self.schema.fields().find(name) else {
            return Err(unknown(name, self.schema));
        };
        if self.given[index].is_some() {
            let message = format!("input '{}' is given twice", printable(name));
            return Err(PredictError::invalid(message));
        }
        let wrong =
            |what: String| PredictError::invalid(format!("input '{}': {what}", printable(name)));
        let tensor = read(field).map_err(wrong)?;
        self.batched = Some(self.batched.unwrap_or(true) && tensor.batched);
        if tensor.rows == 0 {
            let shape = tensor.row_shape.clone();
            self.empty.push((field.name().clone(), shape));
        }
        self.given[index] = Some((tensor.column(field, name)?, tensor.rows));
        Ok(())
    }

    fn rows(self) -> Result<TensorRows, PredictError> {
        Ok(TensorRows {
            batch: together(self.given, self.schema)?,
            batched: self.batched.unwrap_or(false),
            empty: self.empty,
        })
    }
}

/// Builds rows from a raw request, which has only the bytes of one tensor. If the rows of the model
/// have a fixed size, the length of the data determines their number. A text is one row.
///
/// # Errors
/// `InvalidInput` if the model needs more than one tensor, or if the bytes do not match its shape.
pub(super) fn raw_rows(bytes: Bytes, schema: &SchemaRef) -> Result<TensorRows, PredictError> {
    let mut needed = schema.fields().iter().enumerate();
    let mut needed = needed.by_ref().filter(|(_, field)| !field.is_nullable());
    let (Some((index, field)), None) = (needed.next(), needed.next()) else {
        return Err(PredictError::invalid(
            "a raw request (a header length of 0) needs a model with one input; send the inputs \
             in JSON",
        ));
    };
    let wrong = |what: String| PredictError::invalid(format!("input '{}': {what}", field.name()));
    let none = || wrong("needs a shape; send the shape in JSON with the raw bytes".to_owned());
    let (item, _) = form(field).ok_or_else(none)?;
    let (rows, row_shape, values) = match raw::width(item.data_type()) {
        None => {
            let one = raw_shape(field, 1).filter(|(rows, shape)| rows * elements(shape) == 1);
            let (rows, shape) = one.ok_or_else(none)?;
            let text = match std::str::from_utf8(&bytes) {
                Err(_) if !takes_octets(field) => {
                    return Err(wrong("is not UTF-8; this model takes text".to_owned()));
                }
                _ => Value::from(octets::to_text(&bytes)),
            };
            let values = flat_values(field.name(), item, &[&text], 1)?;
            (rows, shape, values)
        }
        Some(width) => {
            let (rows, row_shape) = raw_shape(field, bytes.len() / width).ok_or_else(none)?;
            let count = rows * elements(&row_shape);
            let values = raw::decode(item, count, bytes, false).map_err(wrong)?;
            (rows, row_shape, values)
        }
    };
    if rows == 0 {
        return Err(wrong("has no data; send its shape in JSON".to_owned()));
    }
    let mut given: Vec<Option<(ArrayRef, usize)>> = vec![None; schema.fields().len()];
    given[index] = Some((columns::column(field, values, rows, &row_shape)?, rows));
    let batch = together(given, schema)?;
    Ok(TensorRows {
        batch,
        batched: true,
        empty: Vec::new(),
    })
}

/// The number of rows and the shape of a row for `count` values, if at most one dimension is open.
fn raw_shape(field: &Field, count: usize) -> Option<(usize, Vec<usize>)> {
    let dims = known_shape(field);
    let known: usize = dims.iter().flatten().product();
    let open = count.checked_div(known)?;
    match dims.iter().filter(|dim| dim.is_none()).count() {
        0 => Some((open, dims.into_iter().flatten().collect())),
        1 => Some((1, dims.into_iter().map(|dim| dim.unwrap_or(open)).collect())),
        _ => None,
    }
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn together(
    given: Vec<Option<(ArrayRef, usize)>>,
    schema: &SchemaRef,
) -> Result<RecordBatch, PredictError> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    let mut first: Option<(&str, usize)> = None;
    for (field, given) in schema.fields().iter().zip(given) {
        let name = field.name();
        let Some((column, rows)) = given else {
            if field.is_nullable() {
                continue;
            }
            return Err(PredictError::invalid(format!("input '{name}' is missing")));
        };
        let (other, expected) = *first.get_or_insert((name, rows));
        if rows != expected {
            return Err(PredictError::invalid(format!(
                "input '{name}' has {rows} rows and input '{other}' has {expected}; all inputs \
                 need the same number"
            )));
        }
        fields.push(field.clone());
        columns.push(column);
    }
    // A model without inputs is called with one row.
    let rows = first.map_or(1, |(_, rows)| rows);
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(Schema::new(fields));
    RecordBatch::try_new_with_options(schema, columns, &options).map_err(|error| {
        PredictError::invalid("the inputs do not fit the model").with_source(error)
    })
}

fn unknown(name: &str, schema: &Schema) -> PredictError {
    let known = schema.fields().iter().map(|field| field.name().as_str());
    let known: Vec<_> = known.collect();
    PredictError::invalid(format!(
        "'{}' is not an input of this model; its inputs are {}",
        printable(name),
        known.join(", ")
    ))
}

/// Splits the declared number of bytes of an input from the front of `raw`; `None` if it declares
/// none.
pub(super) fn bytes_of(input: &Value, raw: &mut Bytes) -> Result<Option<Bytes>, String> {
    let parameters = input.get("parameters");
    if parameters.is_some_and(|given| given.get(REGION).is_some()) {
        return Err("shared memory is not supported on this route; use infer".to_owned());
    }
    let Some(size) = parameters.and_then(|given| given.get("binary_data_size")) else {
        return Ok(None);
    };
    let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
    let size = size.ok_or("'binary_data_size' must be a number of bytes")?;
    if raw.len() < size {
        return Err(format!(
            "declares {size} bytes of binary data, but {} are left; check the header \
             'Inference-Header-Content-Length'",
            raw.len()
        ));
    }
    Ok(Some(raw.split_to(size)))
}

/// Maximum number of rows without elements. It is limited because such rows use memory without any
/// data.
const MAX_EMPTY_ROWS: usize = 4096;

/// A tensor whose shape has been checked.
struct Tensor<'v> {
    rows: usize,
    row_shape: Vec<usize>,
    batched: bool,
    data: Data<'v>,
    /// How the values are read where they are of another type than the model's.
    source: Option<Field>,
}

enum Data<'v> {
    Json(Vec<&'v Value>),
    Raw(ArrayRef),
}

impl<'v> Tensor<'v> {
    fn read(input: &'v Value, field: &Field, bytes: Option<Bytes>) -> Result<Self, String> {
        let datatype = input.get("datatype").and_then(Value::as_str);
        let shape = shape(input).ok_or("'shape' must be a list of sizes")?;
        let told = shape.clone();
        Self::of(field, datatype, shape, |item, size| {
            match (bytes, input.get("data")) {
                (Some(_), Some(_)) => Err("has 'data' and binary data; give one".to_owned()),
                (Some(bytes), None) => {
                    let any_bytes = takes_octets(field);
                    Ok(Data::Raw(raw::decode(item, size, bytes, any_bytes)?))
                }
                (None, Some(data)) => {
                    let flat = nested::elements(data, &told)?;
                    Ok(match bytes_of_texts(input, field, item, &flat)? {
                        Some(raw) => Data::Raw(raw),
                        None => Data::Json(flat),
                    })
                }
                (None, None) => Err("has neither 'data' nor a 'binary_data_size'".to_owned()),
            }
        })
    }

    /// Checks the shape, then reads the elements with `read`, which receives their type and number.
    fn of(
        field: &Field,
        given: Option<&str>,
        shape: Vec<usize>,
        read: impl FnOnce(&Field, usize) -> Result<Data<'v>, String>,
    ) -> Result<Self, String> {
        let no_form = || "its type is not supported by this protocol".to_owned();
        let (item, form) = form(field).ok_or_else(no_form)?;
        let wanted = datatype(item).ok_or_else(no_form)?;
        let source = match given.filter(|given| !given.is_empty()) {
            Some(given) if given == wanted => None,
            Some(given) => Some(casts::source(given, item).ok_or_else(|| {
                let given = printable(given);
                format!("has datatype {given}, the model takes {wanted}")
            })?),
            None => return Err("has no 'datatype'".to_owned()),
        };
        let mut dims = shape.iter();
        let size = dims.try_fold(1_usize, |size, dim| size.checked_mul(*dim));
        let size = size.ok_or("its shape is too large")?;
        let data = read(source.as_ref().unwrap_or(item), size)?;
        let rank = form.rank();
        // Some clients send a column of numbers as a table with one column.
        let column = rank == 0 && shape.len() == 2 && shape[1] == 1;
        // Several numbers for rows of one number each are as many rows.
        let scalars = shape.len() == 1 && shape[0] != 1 && known_shape(field) == [Some(1)];
        let batched = shape.len() == rank + 1 || column || scalars;
        if !batched && shape.len() != rank {
            return Err(format!(
                "has {} dimensions, the model takes {} with the one of the rows",
                shape.len(),
                rank + 1
            ));
        }
        let (rows, row_shape) = match shape.split_first() {
            Some((count, _)) if column => (*count, Vec::new()),
            Some((count, rest)) if batched => (*count, rest.to_vec()),
            _ => (1, shape),
        };
        if MAX_EMPTY_ROWS < rows && size == 0 {
            return Err(format!("has {rows} rows without elements"));
        }
        Ok(Self {
            rows,
            row_shape,
            batched,
            data,
            source,
        })
    }

    fn column(&self, field: &Field, name: &str) -> Result<ArrayRef, PredictError> {
        let item = form(field).map_or(field, |(item, _)| item);
        let each = self.row_shape.iter().product();
        let read = self.source.as_ref().unwrap_or(item);
        let values = match &self.data {
            Data::Json(values) => flat_values(name, read, values, each)?,
            Data::Raw(values) => values.clone(),
        };
        let values = match &self.source {
            Some(_) => casts::cast(&printable(name), &values, item)?,
            None => values,
        };
        columns::column(field, values, self.rows, &self.row_shape)
    }
}

/// The shape of a row of the output `field` where there is none to tell it. Where it is open, that
/// of the input of the same name, otherwise that of all inputs with as many dimensions, otherwise
/// 0.
pub(super) fn empty_shape(field: &Field, inputs: &EmptyShapes) -> Vec<usize> {
    let mut dims = known_shape(field);
    let dimensions = field.metadata().get(DIMENSIONS);
    if let ([dim @ None], Some(told)) = (dims.as_mut_slice(), dimensions) {
        *dim = told.parse().ok();
    }
    let alike: Vec<_> = inputs
        .iter()
        .filter(|(_, shape)| shape.len() == dims.len())
        .collect();
    let named = alike.iter().find(|(name, _)| name == field.name());
    let open = |index: usize| {
        if let Some((_, shape)) = named {
            return shape[index];
        }
        let mut sizes = alike.iter().map(|(_, shape)| shape[index]);
        let first = sizes.next().unwrap_or(0);
        if sizes.all(|size| size == first) {
            first
        } else {
            0
        }
    };
    let dims = dims.into_iter().enumerate();
    dims.map(|(index, dim)| dim.unwrap_or_else(|| open(index)))
        .collect()
}

/// The protocol's datatype of a column; `None` if it cannot be a tensor.
pub(super) fn described(field: &Field) -> Option<&'static str> {
    datatype(form(field)?.0)
}

/// The shape of a column in the metadata of a model, with -1 for open dimensions.
pub(super) fn declared_shape(field: &Field) -> Vec<i64> {
    let dims = known_shape(field).into_iter();
    let dims = dims.map(|dim| dim.and_then(|dim| i64::try_from(dim).ok()).unwrap_or(-1));
    std::iter::once(-1).chain(dims).collect()
}

/// The dimensions of one row; `None` for open ones.
fn known_shape(field: &Field) -> Vec<Option<usize>> {
    match (form(field), field.data_type()) {
        (_, DataType::FixedSizeList(_, size)) => {
            fixed_shape(field, *size).into_iter().map(Some).collect()
        }
        (Some((_, TensorLayout::Variable(rank))), _) => {
            let metadata = field.metadata().get("ARROW:extension:metadata");
            let told = metadata.and_then(|text| serde_json::from_str::<Value>(text).ok());
            let dims = told
                .as_ref()
                .and_then(|told| told.get("uniform_shape")?.as_array());
            let dim = |dim: &Value| usize::try_from(dim.as_u64()?).ok();
            let dims = dims.map(|dims| dims.iter().map(dim).collect::<Vec<_>>());
            dims.filter(|dims| dims.len() == rank)
                .unwrap_or_else(|| vec![None; rank])
        }
        (form, _) => vec![None; form.map_or(0, |(_, form)| form.rank())],
    }
}

/// The protocol's datatype of a single value.
pub(super) fn datatype(item: &Field) -> Option<&'static str> {
    Some(match item.data_type() {
        DataType::UInt16 if is_bfloat16(item) => "BF16",
        DataType::Boolean => "BOOL",
        DataType::Int8 => "INT8",
        DataType::Int16 => "INT16",
        DataType::Int32 => "INT32",
        DataType::Int64 => "INT64",
        DataType::UInt8 => "UINT8",
        DataType::UInt16 => "UINT16",
        DataType::UInt32 => "UINT32",
        DataType::UInt64 => "UINT64",
        DataType::Float16 => "FP16",
        DataType::Float32 => "FP32",
        DataType::Float64 => "FP64",
        DataType::Utf8 | DataType::LargeUtf8 => "BYTES",
        _ => return None,
    })
}

fn shape(input: &Value) -> Option<Vec<usize>> {
    let dims = input.get("shape")?.as_array()?.iter();
    dims.map(|dim| usize::try_from(dim.as_u64()?).ok())
        .collect()
}

/// Removes characters from a name of the caller that are not suitable for a message.
pub(super) fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}
