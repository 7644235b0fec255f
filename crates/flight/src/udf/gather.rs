//! Conversion of a model's response to one column with one value for each row.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray, UInt32Array};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_select::take::take;
use serde_json::{Map, Value, json};
use volley_types::signature::{EMBEDDING, SCORE, labels};
use volley_types::{ErrorCode, GenerationRow, Parameters, PredictError, Signature, Task};

use super::types::{convert, engine_type, items};

/// Maximum size of the response to one piece of a batch in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Selects the value of a response row for an engine.
#[derive(Clone, Debug)]
pub(crate) enum AnswerValue {
    /// The text of a generation.
    Text,
    /// One column.
    Column(&'static str),
    /// The best of the labels.
    Label,
    /// The entities, as a JSON array.
    Entities,
    /// The terms with their weights, as a JSON object.
    Terms,
    /// The output column, or all of them as a struct.
    Outputs(SchemaRef),
    /// One of several output columns.
    Output(FieldRef),
    /// One value of an output column.
    Class(FieldRef, usize),
}

/// Options that select one of a tensor model's outputs, and one of its values by name.
const OUTPUT: &str = "output";
const CLASS: &str = "class";

impl AnswerValue {
    /// The value of a model with this signature. Removes `output` and `class`, which select a value
    /// of a tensor model, from `options`.
    ///
    /// # Errors
    /// `InvalidInput` if the model does not have the selected output or class.
    pub(crate) fn of(
        signature: &Signature,
        options: &mut Parameters,
    ) -> Result<Self, PredictError> {
        Ok(match signature.task {
            Task::Generate => Self::Text,
            Task::Embed => Self::Column(EMBEDDING),
            Task::Rerank => Self::Column(SCORE),
            Task::Classify => Self::Label,
            Task::ClassifyTokens => Self::Entities,
            Task::EncodeSparse => Self::Terms,
            Task::Tensors => Self::of_tensors(&signature.output, options)?,
            Task::Events => {
                return Err(PredictError::new(
                    ErrorCode::Unimplemented,
                    "this model streams events, which a function cannot return; call it with the \
                     header 'volley-call: rows'",
                ));
            }
        })
    }

    fn of_tensors(outputs: &SchemaRef, options: &mut Parameters) -> Result<Self, PredictError> {
        let mut option = |name| {
            let value = options.text(name);
            options.remove(name);
            value
        };
        let (output, class) = (option(OUTPUT), option(CLASS));
        let Some(output) = output else {
            return match class {
                None => Ok(Self::Outputs(outputs.clone())),
                Some(_) => Err(PredictError::invalid(
                    "the option 'class' of a function needs 'output', the name of the column with \
                     the classes",
                )),
            };
        };
        let field = outputs
            .fields()
            .iter()
            .find(|field| *field.name() == output);
        let field = field.ok_or_else(|| {
            let names = outputs
                .fields()
                .iter()
                .map(|field| format!("'{}'", field.name()));
            PredictError::invalid(format!(
                "the option 'output' of a function must be one of {}",
                names.collect::<Vec<_>>().join(", ")
            ))
        })?;
        let Some(class) = class else {
            return Ok(Self::Output(field.clone()));
        };
        let classes = labels(field);
        let place = classes.iter().position(|name| *name == class);
        let place = place.ok_or_else(|| {
            PredictError::invalid(match classes.is_empty() {
                true => format!("the output '{output}' has no classes by name"),
                false => format!(
                    "the option 'class' of a function must be one of {}",
                    classes.join(", ")
                ),
            })
        })?;
        Ok(Self::Class(field.clone(), place))
    }

    /// The type of the value; `None` if engines have no such type.
    pub(crate) fn engine_type(&self, signature: &Signature) -> Option<DataType> {
        match self {
            Self::Text | Self::Label | Self::Entities | Self::Terms => Some(DataType::Utf8),
            Self::Column(name) => engine_type(signature.output.field_with_name(name).ok()?),
            Self::Output(field) => engine_type(field),
            Self::Class(field, _) => match field.data_type() {
                DataType::FixedSizeList(item, _) => engine_type(item),
                _ => None,
            },
            Self::Outputs(schema) => match schema.fields().as_ref() {
                [] => None,
                [one] => engine_type(one),
                several => {
                    let all = DataType::Struct(several.into());
                    engine_type(&Field::new("", all, true))
                }
            },
        }
    }
}

/// Collects the batches of a response.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    answer: &'a AnswerValue,
    rows: usize,
    bytes: usize,
    texts: Vec<String>,
    batches: Vec<RecordBatch>,
    complete: bool,
}

impl<'a> Gather<'a> {
    /// Creates a collector for the response to `rows` rows.
    pub(crate) fn new(answer: &'a AnswerValue, rows: usize) -> Self {
        let texts = match answer {
            AnswerValue::Text => vec![String::new(); rows],
            _ => Vec::new(),
        };
        Self {
            answer,
            rows,
            bytes: 0,
            texts,
            batches: Vec::new(),
            complete: false,
        }
    }

    /// Adds the next batch.
    ///
    /// # Errors
    /// `TooLarge` past 64 MiB; the error of a row that failed.
    pub(crate) fn add(&mut self, batch: RecordBatch) -> Result<(), PredictError> {
        match self.answer {
            AnswerValue::Text => {
                for row in GenerationRow::rows(&batch)? {
                    self.add_text(&row)?;
                }
            }
            _ => {
                self.bytes += batch.get_array_memory_size();
                self.batches.push(batch);
            }
        }
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                "the result is over 64 MiB; call the function on fewer rows at a time",
            ));
        }
        Ok(())
    }

    fn add_text(&mut self, row: &GenerationRow<'_>) -> Result<(), PredictError> {
        self.complete |= row.last();
        if let Some(error) = row.failure() {
            return Err(error);
        }
        let item = usize::try_from(row.item()).ok();
        let text = item.and_then(|item| self.texts.get_mut(item));
        if let (Some(text), Some(more), 0) = (text, row.text(), row.choice()) {
            self.bytes += more.len();
            text.push_str(more);
        }
        Ok(())
    }

    /// Returns the values with the type `kind`.
    ///
    /// # Errors
    /// `UpstreamIncomplete` if a generation did not end, `Internal` if the response does not have
    /// one row for each input row.
    pub(crate) fn finish(self, kind: &DataType) -> Result<ArrayRef, PredictError> {
        if matches!(self.answer, AnswerValue::Text) {
            if !self.complete {
                return Err(PredictError::new(
                    ErrorCode::UpstreamIncomplete,
                    "the answer ended before its last row",
                ));
            }
            return Ok(Arc::new(StringArray::from(self.texts)));
        }
        let schema = self.batches.first().map(RecordBatch::schema);
        let rows = arrow_select::concat::concat_batches(
            &schema.unwrap_or_else(|| Arc::new(Schema::empty())),
            &self.batches,
        )
        .map_err(broken)?;
        if rows.num_rows() != self.rows {
            return Err(broken(format!(
                "{} rows for {}",
                rows.num_rows(),
                self.rows
            )));
        }
        let values = values(self.answer, &rows)?;
        convert(&values, kind).map_err(broken)
    }
}

fn values(answer: &AnswerValue, rows: &RecordBatch) -> Result<ArrayRef, PredictError> {
    let column = |name: &str| {
        let column = rows.column_by_name(name).cloned();
        column.ok_or_else(|| broken(format!("no column '{name}'")))
    };
    let texts = |value: &dyn Fn(usize) -> Option<String>| -> ArrayRef {
        Arc::new((0..rows.num_rows()).map(value).collect::<StringArray>())
    };
    Ok(match answer {
        AnswerValue::Text => return Err(broken("a generation does not return such rows")),
        AnswerValue::Column(name) => column(name)?,
        AnswerValue::Label => {
            let labels = column("labels")?;
            texts(&|row| {
                let labels = items(&labels, row)?;
                let labels = labels.as_string_opt::<i32>()?;
                (!labels.is_empty()).then(|| labels.value(0).to_owned())
            })
        }
        AnswerValue::Entities => {
            let entities = column("entities")?;
            texts(&|row| Some(entities_json(items(&entities, row)?.as_struct_opt()?).to_string()))
        }
        AnswerValue::Terms => {
            let (terms, weights) = (column("terms")?, column("weights")?);
            texts(&|row| {
                let (terms, weights) = (items(&terms, row)?, items(&weights, row)?);
                let terms = terms.as_string_opt::<i32>()?.iter().flatten();
                let weights = weights.as_primitive_opt::<Float32Type>()?.iter();
                let pairs = terms
                    .zip(weights)
                    .map(|(term, weight)| (term.to_owned(), json!(weight)));
                Some(Value::Object(pairs.collect::<Map<_, _>>()).to_string())
            })
        }
        AnswerValue::Output(field) => column(field.name())?,
        AnswerValue::Class(field, place) => {
            let lists = column(field.name())?;
            let none = || broken("an output of classes is not a list");
            let lists = lists.as_fixed_size_list_opt().ok_or_else(none)?;
            let size = u32::try_from(lists.value_length()).map_err(broken)?;
            let place = u32::try_from(*place).map_err(broken)?;
            let places = (0..).map(|row: u32| row * size + place).take(lists.len());
            let places = UInt32Array::from_iter_values(places);
            take(lists.values(), &places, None).map_err(broken)?
        }
        AnswerValue::Outputs(schema) => match rows.columns() {
            [one] => one.clone(),
            several => {
                let fields = schema.fields().clone();
                let all = StructArray::try_new(fields, several.to_vec(), None);
                Arc::new(all.map_err(broken)?)
            }
        },
    })
}

fn entities_json(entities: &StructArray) -> Value {
    let text = |name: &str, row: usize| -> Value {
        let column = entities.column_by_name(name);
        let column = column.and_then(|column| column.as_string_opt::<i32>());
        column.map_or(Value::Null, |column| json!(column.value(row)))
    };
    let number = |name: &str, row: usize| -> Value {
        let column = entities.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<UInt32Type>());
        column.map_or(Value::Null, |column| json!(column.value(row)))
    };
    let scores = entities.column_by_name("score");
    let scores = scores.and_then(|column| column.as_primitive_opt::<Float32Type>());
    let entity = |row: usize| {
        json!({
            "label": text("label", row),
            "score": scores.map(|scores| scores.value(row)),
            "text": text("text", row),
            "start": number("start", row),
            "end": number("end", row),
        })
    };
    (0..entities.len()).map(entity).collect()
}

fn broken(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PredictError {
    PredictError::internal("the model did not return one value for each row", cause)
}
