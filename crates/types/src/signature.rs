//! What a model takes and gives.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use crate::chat::message_fields;
use crate::chunk;
use crate::error::PredictError;

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text in, text out, token by token.
    Generate,
    /// Tensors in, tensors out: one output row for each input row, in order.
    Tensors,
    /// Text in, a vector out, for each row.
    Embed,
    /// A query and a text in, how well they fit out, for each row.
    Rerank,
    /// Text in, labels with scores out, for each row.
    Classify,
    /// Text in, its named spans out, for each row.
    ClassifyTokens,
    /// Text in, terms with weights out, for each row.
    EncodeSparse,
}

impl Task {
    const ALL: [Self; 7] = [
        Self::Generate,
        Self::Tensors,
        Self::Embed,
        Self::Rerank,
        Self::Classify,
        Self::ClassifyTokens,
        Self::EncodeSparse,
    ];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Tensors => "tensors",
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Classify => "classify",
            Self::ClassifyTokens => "classify_tokens",
            Self::EncodeSparse => "encode_sparse",
        }
    }

    /// The task of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.as_str() == name)
    }
}

/// The schemas of a model's request and response rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What the model does.
    pub task: Task,
    /// Request columns.
    pub input: SchemaRef,
    /// Response columns.
    pub output: SchemaRef,
}

/// The name of the plain-text column of a generation request.
pub const PROMPT: &str = "prompt";
/// The name of the chat column of a generation request.
pub const MESSAGES: &str = "messages";

/// The name of the text column of every other request than a generation's.
pub const TEXT: &str = "text";
/// The name of the column that says what a text to embed is: `query` or `passage`. A model
/// that makes no difference takes no notice.
pub const INPUT_TYPE: &str = "input_type";
/// The name of the second text, where a model classifies pairs.
pub const TEXT_PAIR: &str = "text_pair";
/// The name of the query column of a reranking request.
pub const QUERY: &str = "query";
/// The name of the vector column of an embedding's response.
pub const EMBEDDING: &str = "embedding";
/// The name of the score column of a reranking's response.
pub const SCORE: &str = "score";
/// The name of the column that counts the tokens that a row had.
pub const TOKENS: &str = "tokens";
/// The key in an embedding column's metadata that says how long the vectors are.
pub const DIMENSIONS: &str = "volley.dimensions";

/// The key in an output column's metadata that holds the names of its values, the first value's
/// first: a list of texts in JSON. Answers do not have it.
pub const LABELS: &str = "volley.labels";

/// `field` with the names of its values.
#[must_use]
pub fn with_labels(field: Field, labels: &[String]) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(LABELS.to_owned(), serde_json::json!(labels).to_string());
    field.with_metadata(metadata)
}

/// The names of the values of `field`; none where it has none that can be read.
#[must_use]
pub fn labels(field: &Field) -> Vec<String> {
    let labels = field.metadata().get(LABELS);
    let labels = labels.and_then(|labels| serde_json::from_str(labels).ok());
    labels.unwrap_or_default()
}

/// The extension name of a bfloat16. Arrow has no such type: its 16 bits stand as `UInt16`, with
/// this on the field that holds them (inside a tensor, the field of the items).
pub const BFLOAT16: &str = "volley.bfloat16";

/// Whether the numbers of `field` are bfloat16.
#[must_use]
pub fn is_bfloat16(field: &Field) -> bool {
    let extension = field.metadata().get("ARROW:extension:name");
    *field.data_type() == DataType::UInt16 && extension.is_some_and(|name| name == BFLOAT16)
}

impl Signature {
    /// The signature of every generation model: `prompt` or `messages` in, chunks out. Exactly
    /// one of the two columns must have a value in each row.
    #[must_use]
    pub fn generation() -> Self {
        let message = Field::new("item", DataType::Struct(message_fields()), false);
        let input = Schema::new(vec![
            Field::new(PROMPT, DataType::Utf8, true),
            Field::new(MESSAGES, DataType::List(Arc::new(message)), true),
        ]);
        Self {
            task: Task::Generate,
            input: Arc::new(input),
            output: chunk::generation_schema(),
        }
    }

    /// The signature of an embedding model: `text` and perhaps `input_type` in; `embedding` (as
    /// long as the model's `dimensions`, or as a request's parameter of that name) and `tokens`
    /// out.
    #[must_use]
    pub fn embed(dimensions: usize) -> Self {
        let metadata = [(DIMENSIONS.to_owned(), dimensions.to_string())];
        let embedding = list(EMBEDDING, DataType::Float32).with_metadata(metadata.into());
        let input = vec![text(TEXT), text(INPUT_TYPE).with_nullable(true)];
        Self::rows(Task::Embed, input, vec![embedding, tokens()])
    }

    /// The signature of a reranking model: `query` and `text` in; `score` (higher fits better)
    /// and `tokens` out.
    #[must_use]
    pub fn rerank() -> Self {
        let score = Field::new(SCORE, DataType::Float32, false);
        let input = vec![text(QUERY), text(TEXT)];
        Self::rows(Task::Rerank, input, vec![score, tokens()])
    }

    /// The signature of a text classifier: `text` and perhaps `text_pair` in; `labels` and
    /// `scores`, the best first, and `tokens` out.
    #[must_use]
    pub fn classify() -> Self {
        let input = vec![text(TEXT), text(TEXT_PAIR).with_nullable(true)];
        let output = vec![
            list("labels", DataType::Utf8),
            list("scores", DataType::Float32),
            tokens(),
        ];
        Self::rows(Task::Classify, input, output)
    }

    /// The signature of a token classifier: `text` in; `entities` and `tokens` out. An entity is
    /// a `label`, its `score`, the `text` and where it is: `start` and `end`, in characters.
    #[must_use]
    pub fn classify_tokens() -> Self {
        let entity = DataType::Struct(entity_fields());
        let output = vec![list("entities", entity), tokens()];
        Self::rows(Task::ClassifyTokens, vec![text(TEXT)], output)
    }

    /// The signature of a sparse encoder: `text` in; `terms` and `weights`, the heaviest first,
    /// and `tokens` out.
    #[must_use]
    pub fn encode_sparse() -> Self {
        let output = vec![
            list("terms", DataType::Utf8),
            list("weights", DataType::Float32),
            tokens(),
        ];
        Self::rows(Task::EncodeSparse, vec![text(TEXT)], output)
    }

    fn rows(task: Task, input: Vec<Field>, output: Vec<Field>) -> Self {
        Self {
            task,
            input: Arc::new(Schema::new(input)),
            output: Arc::new(Schema::new(output)),
        }
    }

    /// Whether callers of one may be answered by the other: the same task, and columns of the same
    /// names, types and sizes on both sides.
    #[must_use]
    pub fn stands_for(&self, other: &Self) -> bool {
        self.task == other.task
            && same_columns(&self.input, &other.input)
            && same_columns(&self.output, &other.output)
    }

    /// Checks a request's schema against this signature by column name: every column must be
    /// declared, with the declared type, and every declared column that is not nullable must be
    /// there. The order of columns is free. `LargeUtf8` stands for `Utf8`.
    ///
    /// # Errors
    /// `InvalidInput` naming the column, what it is and what it should be.
    pub fn check_input(&self, schema: &Schema) -> Result<(), PredictError> {
        for field in schema.fields() {
            let Ok(declared) = self.input.field_with_name(field.name()) else {
                return Err(PredictError::invalid(format!(
                    "input column '{}' is not an input of this model; its inputs are {}",
                    printable(field.name()),
                    names(&self.input)
                )));
            };
            if !same_type(declared.data_type(), field.data_type()) {
                return Err(PredictError::invalid(format!(
                    "input column '{}' has type {}, the model takes {}",
                    field.name(),
                    field.data_type(),
                    declared.data_type()
                )));
            }
        }
        for declared in self
            .input
            .fields()
            .iter()
            .filter(|field| !field.is_nullable())
        {
            if schema.field_with_name(declared.name()).is_err() {
                return Err(PredictError::invalid(format!(
                    "input column '{}' ({}) is missing",
                    declared.name(),
                    declared.data_type()
                )));
            }
        }
        Ok(())
    }
}

/// The fields of one entity of a token classifier.
#[must_use]
pub fn entity_fields() -> Fields {
    Fields::from(vec![
        Field::new("label", DataType::Utf8, false),
        Field::new("score", DataType::Float32, false),
        Field::new("text", DataType::Utf8, false),
        Field::new("start", DataType::UInt32, false),
        Field::new("end", DataType::UInt32, false),
    ])
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, false)
}

fn tokens() -> Field {
    Field::new(TOKENS, DataType::UInt32, false)
}

fn list(name: &str, item: DataType) -> Field {
    let item = Arc::new(Field::new("item", item, false));
    Field::new(name, DataType::List(item), false)
}

fn same_columns(a: &Schema, b: &Schema) -> bool {
    let same = |(a, b): (&Arc<Field>, &Arc<Field>)| {
        a.name() == b.name()
            && same_type(a.data_type(), b.data_type())
            && a.metadata().get(DIMENSIONS) == b.metadata().get(DIMENSIONS)
    };
    a.fields().len() == b.fields().len() && a.fields().iter().zip(b.fields()).all(same)
}

fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn names(schema: &Schema) -> String {
    schema
        .fields()
        .iter()
        .map(|f| format!("'{}'", f.name()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Same type, not looking at field names inside lists nor at nullability, which clients in
/// other languages choose differently. Of a struct, fields that may be null may be left out.
fn same_type(a: &DataType, b: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeUtf8, List, Struct, Utf8};
    match (a, b) {
        (Utf8 | LargeUtf8, Utf8 | LargeUtf8) => true,
        (List(a), List(b)) => same_type(a.data_type(), b.data_type()),
        (FixedSizeList(a, n), FixedSizeList(b, m)) => {
            n == m && same_type(a.data_type(), b.data_type())
        }
        (Struct(declared), Struct(given)) => {
            let known = |field: &Field| {
                let declared = declared.find(field.name());
                declared
                    .is_some_and(|(_, declared)| same_type(declared.data_type(), field.data_type()))
            };
            let there = |field: &Field| field.is_nullable() || given.find(field.name()).is_some();
            given.iter().all(|field| known(field)) && declared.iter().all(|field| there(field))
        }
        _ => a == b,
    }
}
