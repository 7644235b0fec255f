//! Models as functions: arguments, result, and conversion to the model's rows.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, RecordBatchOptions, StringArray,
    UInt32Array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, FieldRef, Fields, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use volley_types::signature::{PROMPT, cast_column};
use volley_types::{ErrorCode, ModelRef, ParamValue, Parameters, PredictError, Signature, Task};

use super::gather::AnswerValue;
use super::types::{argument_name, argument_type, convert, engine_field, fits};

/// Built-in functions that Databend expects from every server.
const ECHO: &str = "builtin_echo";
const HEALTHY: &str = "builtin_healthy";

/// Metadata key of an argument: the name of the model's column.
const COLUMN: &str = "volley.column";

/// Maximum number of rows in one call of the model; larger batches are split.
const ROWS_AT_ONCE: usize = 1024;
/// The same for generations.
const GENERATIONS_AT_ONCE: usize = 64;

/// A model, or one of the functions that are built in, as a function of its arguments.
#[derive(Debug)]
pub(crate) struct Function {
    /// The arguments, all nullable.
    pub(crate) args: SchemaRef,
    /// The result column, which is null if an argument is null.
    pub(crate) result: SchemaRef,
    /// Maximum number of rows in one call of the model.
    pub(crate) rows_at_once: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Echo,
    Healthy,
    Model(Model),
}

#[derive(Debug)]
struct Model {
    /// The model's columns that the arguments fill, in their order.
    columns: Vec<FieldRef>,
    /// Text columns that are the same in every row.
    constants: Vec<(FieldRef, String)>,
    answer: AnswerValue,
}

/// Model request for a batch of arguments.
#[derive(Debug)]
pub(crate) struct FunctionCall {
    /// The rows without nulls, in the model's columns; `None` where there are none.
    pub(crate) input: Option<RecordBatch>,
    /// Index of the response row for each row of the batch; `None` for the identity.
    places: Option<UInt32Array>,
}

/// Whether a function of this name is built in.
pub(crate) fn is_builtin(name: &str) -> bool {
    matches!(name, ECHO | HEALTHY)
}

/// The model and the options of a function's name: `model`, or `model?name=value&…`. A value is
/// parsed as JSON, or used as text if it is not JSON.
///
/// # Errors
/// `InvalidInput` for a malformed name.
pub(crate) fn parse_name(name: &str) -> Result<(ModelRef, Parameters), PredictError> {
    let (model, options) = name.split_once('?').unwrap_or((name, ""));
    let mut parameters = Parameters::default();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                PredictError::invalid(
                    "the options of a function must have the form name=value, joined by '&'",
                )
            })?;
        parameters.set(name, value_of(value))?;
    }
    Ok((model.parse()?, parameters))
}

fn value_of(text: &str) -> ParamValue {
    let text = || text.to_owned();
    match serde_json::from_str::<serde_json::Value>(&text()) {
        Ok(serde_json::Value::Bool(value)) => ParamValue::Bool(value),
        Ok(serde_json::Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(value), _) => ParamValue::Int(value),
            (None, Some(value)) => ParamValue::Float(value),
            (None, None) => ParamValue::Text(text()),
        },
        Ok(serde_json::Value::Array(_) | serde_json::Value::Object(_)) => ParamValue::Json(text()),
        Ok(serde_json::Value::String(value)) => ParamValue::Text(value),
        Ok(serde_json::Value::Null) | Err(_) => ParamValue::Text(text()),
    }
}

impl Function {
    /// The function that is built in under this name.
    pub(crate) fn builtin(name: &str) -> Option<Self> {
        let (args, result, kind) = match name {
            ECHO => (vec![DataType::Utf8], DataType::Utf8, Kind::Echo),
            HEALTHY => (Vec::new(), DataType::Int32, Kind::Healthy),
            _ => return None,
        };
        let args = args.into_iter().enumerate();
        let args = args.map(|(index, kind)| engine_field(&argument_name(index), kind));
        Some(Self {
            args: Arc::new(Schema::new(args.collect::<Fields>())),
            result: schema_of(name, result),
            rows_at_once: ROWS_AT_ONCE,
            kind,
        })
    }

    /// `model` as a function. Options with the name of a text column are removed from `options` and
    /// become constants; the others are parameters of the call.
    ///
    /// # Errors
    /// `Unimplemented` where a column is of a type that engines do not have.
    pub(crate) fn of_model(
        model: &ModelRef,
        signature: &Signature,
        options: &mut Parameters,
    ) -> Result<Self, PredictError> {
        let columns: Vec<FieldRef> = match signature.task {
            Task::Generate => vec![column(signature, PROMPT)?],
            Task::Tensors | Task::Events => signature.input.fields().to_vec(),
            Task::Embed
            | Task::Rerank
            | Task::Classify
            | Task::ClassifyTokens
            | Task::EncodeSparse => {
                let required = signature.input.fields().iter();
                required
                    .filter(|field| !field.is_nullable())
                    .cloned()
                    .collect()
            }
        };
        let args = columns.iter().enumerate().map(|(index, column)| {
            let field = engine_field(&argument_name(index), argument_type(column)?);
            let named = [(COLUMN.to_owned(), column.name().clone())];
            Some(field.as_ref().clone().with_metadata(named.into()))
        });
        let args: Option<Vec<_>> = args.collect();
        let answer = AnswerValue::of(signature, options)?;
        let (Some(args), Some(result)) = (args, answer.engine_type(signature)) else {
            return Err(PredictError::new(
                ErrorCode::Unimplemented,
                "this model has columns of types that SQL engines do not have; call it with the \
                 header 'volley-call: rows'",
            ));
        };
        Ok(Self {
            args: Arc::new(Schema::new(args)),
            result: schema_of(model.name.as_str(), result),
            rows_at_once: match signature.task {
                Task::Generate => GENERATIONS_AT_ONCE,
                _ => ROWS_AT_ONCE,
            },
            kind: Kind::Model(Model {
                constants: constants(signature, &columns, options),
                columns,
                answer,
            }),
        })
    }

    /// Conversion of the response to the result; `None` for built-in functions.
    pub(crate) fn answer(&self) -> Option<&AnswerValue> {
        match &self.kind {
            Kind::Model(model) => Some(&model.answer),
            Kind::Echo | Kind::Healthy => None,
        }
    }

    /// The type of the result.
    pub(crate) fn result_type(&self) -> &DataType {
        self.result.field(0).data_type()
    }

    /// Checks the columns of a call, by position.
    ///
    /// # Errors
    /// `InvalidInput` with the arguments of the function.
    pub(crate) fn check(&self, given: &Schema) -> Result<(), PredictError> {
        let wanted = self.args.fields();
        let matches = given.fields().len() == wanted.len()
            && given
                .fields()
                .iter()
                .zip(wanted)
                .all(|(given, wanted)| fits(given.data_type(), wanted.data_type()));
        if matches {
            return Ok(());
        }
        let types = |fields: &Fields| {
            let types: Vec<_> = fields.iter().map(|f| f.data_type().to_string()).collect();
            types.join(", ")
        };
        Err(PredictError::invalid(format!(
            "the function '{}' has the arguments ({}), but it was called with ({}); a call in \
             rows mode needs the model's columns: {}",
            self.result.field(0).name(),
            types(wanted),
            types(given.fields()),
            self.columns(),
        )))
    }

    fn columns(&self) -> String {
        let names = self.args.fields().iter();
        let names: Vec<_> = names
            .filter_map(|field| field.metadata().get(COLUMN))
            .map(|name| format!("'{name}'"))
            .collect();
        names.join(", ")
    }

    /// The result of a built-in function; `None` for a model.
    ///
    /// # Errors
    /// `InvalidInput` for a value that does not fit.
    pub(crate) fn built_in_result(
        &self,
        args: &RecordBatch,
    ) -> Result<Option<RecordBatch>, PredictError> {
        let column: ArrayRef = match &self.kind {
            Kind::Model(_) => return Ok(None),
            Kind::Echo => convert(args.column(0), self.result_type())?,
            Kind::Healthy => Arc::new(Int32Array::from(vec![1; args.num_rows()])),
        };
        self.batch(column).map(Some)
    }

    /// The model request for `args`, whose columns passed [`Self::check`].
    ///
    /// # Errors
    /// `InvalidInput` for a value that does not fit the model's type.
    pub(crate) fn ask(&self, args: &RecordBatch) -> Result<FunctionCall, PredictError> {
        let Kind::Model(model) = &self.kind else {
            return Ok(FunctionCall {
                input: None,
                places: None,
            });
        };
        let (args, places) = without_nulls(args)?;
        let rows = args.num_rows();
        if rows == 0 {
            return Ok(FunctionCall {
                input: None,
                places,
            });
        }
        let mut fields = model.columns.clone();
        let mut columns = Vec::with_capacity(fields.len());
        for (field, (kind, column)) in model
            .columns
            .iter()
            .zip(fields.iter_mut().zip(args.columns()))
        {
            let column = cast_column(column, field)?;
            // Large texts are texts, and keep their own type.
            *kind = Arc::new(
                field
                    .as_ref()
                    .clone()
                    .with_data_type(column.data_type().clone()),
            );
            columns.push(column);
        }
        for (field, value) in &model.constants {
            let same = StringArray::from_iter_values(std::iter::repeat_n(value, rows));
            fields.push(field.clone());
            columns.push(Arc::new(same));
        }
        let input =
            RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|error| {
                PredictError::invalid("the arguments contain nulls").with_source(error)
            })?;
        Ok(FunctionCall {
            input: Some(input),
            places,
        })
    }

    /// The result for each row of a batch, from the values of the rows without nulls.
    ///
    /// # Errors
    /// `Internal` if the number of values differs.
    pub(crate) fn result(
        &self,
        values: &ArrayRef,
        asked: &FunctionCall,
    ) -> Result<RecordBatch, PredictError> {
        let column = match &asked.places {
            None => values.clone(),
            Some(places) => take(values, places, None).map_err(|error| {
                PredictError::internal("the answer could not be put in order", error)
            })?,
        };
        self.batch(column)
    }

    fn batch(&self, column: ArrayRef) -> Result<RecordBatch, PredictError> {
        let options = RecordBatchOptions::new().with_row_count(Some(column.len()));
        RecordBatch::try_new_with_options(self.result.clone(), vec![column], &options).map_err(
            |error| PredictError::internal("the result does not have the function's type", error),
        )
    }
}

fn schema_of(name: &str, result: DataType) -> SchemaRef {
    Arc::new(Schema::new(vec![engine_field(name, result)]))
}

fn column(signature: &Signature, name: &str) -> Result<FieldRef, PredictError> {
    let field = signature.input.field_with_name(name);
    field.map(|field| Arc::new(field.clone())).map_err(|error| {
        PredictError::internal("the model does not have the columns of its task", error)
    })
}

/// Removes options that set text columns without an argument.
fn constants(
    signature: &Signature,
    columns: &[FieldRef],
    options: &mut Parameters,
) -> Vec<(FieldRef, String)> {
    let fields = signature.input.fields().iter();
    fields
        .filter(|field| *field.data_type() == DataType::Utf8 && !columns.contains(field))
        .filter_map(|field| {
            let value = options.text(field.name())?;
            options.remove(field.name());
            Some((field.clone(), value))
        })
        .collect()
}

/// The rows of `args` without nulls, and the index of each row among them.
fn without_nulls(args: &RecordBatch) -> Result<(RecordBatch, Option<UInt32Array>), PredictError> {
    let nulls = args.columns().iter().fold(None, |nulls, column| {
        NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref())
    });
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else {
        return Ok((args.clone(), None));
    };
    let mut next = 0;
    let places = nulls.iter().map(|valid| {
        valid.then(|| {
            next += 1;
            next - 1
        })
    });
    let places: UInt32Array = places.collect();
    let kept = BooleanArray::new(nulls.into_inner(), None);
    let rows = filter_record_batch(args, &kept)
        .map_err(|error| PredictError::internal("nulls could not be left out", error))?;
    Ok((rows, Some(places)))
}

#[cfg(test)]
mod tests;
