//! Signatures: the input and output schemas of models.

mod cast;
pub mod events;
mod route;

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

pub(crate) use self::cast::Casts;
pub use self::cast::cast_column;
pub use self::route::{route_of, with_route};
use crate::chat::message_fields;
use crate::chunk;
use crate::error::PredictError;
use crate::params::{DETOKENIZE, Parameters, ROW_DETAILS, ROW_PARAMETERS, TOKENIZE};

/// Task of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text in, text out, token by token.
    Generate,
    /// Tensors in, tensors out: one output row for each input row, in order.
    Tensors,
    /// Columns in, a stream of [events] of columns out. Each request is one call of the model, and
    /// its rows are never merged with those of other requests.
    Events,
    /// Text in, a vector out, for each row.
    Embed,
    /// A query and a text in, a relevance score out, for each row.
    Rerank,
    /// Text in, labels with scores out, for each row.
    Classify,
    /// Text in, its named spans out, for each row.
    ClassifyTokens,
    /// Text in, terms with weights out, for each row.
    EncodeSparse,
}

impl Task {
    const ALL: [Self; 8] = [
        Self::Generate,
        Self::Tensors,
        Self::Events,
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
            Self::Events => "events",
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Classify => "classify",
            Self::ClassifyTokens => "classify_tokens",
            Self::EncodeSparse => "encode_sparse",
        }
    }

    /// Parses a stable name; `None` if it is unknown.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.as_str() == name)
    }
}

/// The schemas of a model's request and response rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The task.
    pub task: Task,
    /// Request columns.
    pub input: SchemaRef,
    /// Response columns.
    pub output: SchemaRef,
}

/// Name of the plain-text column of a generation request.
pub const PROMPT: &str = "prompt";
/// Name of the chat column of a generation request.
pub const MESSAGES: &str = "messages";

/// Name of the text column of requests other than generations.
pub const TEXT: &str = "text";
/// Name of the column with the kind of a text to embed: `query` or `passage`. Models without this
/// distinction ignore it.
pub const INPUT_TYPE: &str = "input_type";
/// Name of the second text column of a model that classifies pairs.
pub const TEXT_PAIR: &str = "text_pair";
/// Name of the query column of a reranking request.
pub const QUERY: &str = "query";
/// Name of the vector column of an embedding response.
pub const EMBEDDING: &str = "embedding";
/// Name of the score column of a reranking response.
pub const SCORE: &str = "score";
/// Name of the column with the token count of a row.
pub const TOKENS: &str = "tokens";
/// Name of the column with the other fields of a server's answer, as JSON. Only the first row of each
/// call has a value.
pub const UPSTREAM: &str = "upstream";
/// Metadata key of an embedding column: length of the vectors.
pub const DIMENSIONS: &str = "volley.dimensions";

/// Metadata key of a text column: maximum number of tokens that a model reads and writes.
pub const CONTEXT: &str = "volley.context";

/// Metadata key of an output column: the names of its values in order, a JSON list of texts.
/// Responses do not have it.
pub const LABELS: &str = "volley.labels";

/// Adds the names of the values to `field`.
#[must_use]
pub fn with_labels(field: Field, labels: &[String]) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(LABELS.to_owned(), serde_json::json!(labels).to_string());
    field.with_metadata(metadata)
}

/// The names of the values of `field`; empty if missing or malformed.
#[must_use]
pub fn labels(field: &Field) -> Vec<String> {
    let labels = field.metadata().get(LABELS);
    let labels = labels.and_then(|labels| serde_json::from_str(labels).ok());
    labels.unwrap_or_default()
}

/// Metadata key of an input column whose texts may be arbitrary bytes, encoded with
/// [`octets`](crate::octets).
pub const OCTETS: &str = "volley.octets";

/// Marks the texts of `field` as arbitrary bytes.
#[must_use]
pub fn with_octets(field: Field) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(OCTETS.to_owned(), "true".to_owned());
    field.with_metadata(metadata)
}

/// Whether the texts of `field` may be arbitrary bytes.
#[must_use]
pub fn takes_octets(field: &Field) -> bool {
    field.metadata().contains_key(OCTETS)
}

/// Metadata key of a signature's input schema: the model's [`ModelMetadata`] as JSON.
pub const SERVED: &str = "volley.served";

/// Request parameter that selects one of the [`ModelMetadata`] versions of a model.
pub const SERVED_VERSION: &str = "volley.version";

/// Metadata for callers from the model's own files, in addition to its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelMetadata {
    /// The versions that one replica serves, by the names in its files. The last one is the
    /// default. Empty if the files name no versions.
    pub versions: Vec<String>,
    /// Configuration of the model as an object in Triton's format.
    pub config: Option<serde_json::Value>,
}

impl ModelMetadata {
    /// Reads the metadata of `signature`.
    #[must_use]
    pub fn of(signature: &Signature) -> Self {
        let text = signature.input.metadata().get(SERVED);
        let told = text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let Some(mut told) = told else {
            return Self::default();
        };
        let versions = told.get("versions").and_then(serde_json::Value::as_array);
        let versions = versions.into_iter().flatten();
        Self {
            versions: versions
                .filter_map(|version| version.as_str().map(str::to_owned))
                .collect(),
            config: told.get_mut("config").map(serde_json::Value::take),
        }
    }

    /// Adds this metadata to `signature`.
    #[must_use]
    pub fn on(&self, mut signature: Signature) -> Signature {
        if *self == Self::default() {
            return signature;
        }
        let mut told = serde_json::json!({ "versions": self.versions });
        if let Some(config) = &self.config {
            told["config"] = config.clone();
        }
        let mut metadata = signature.input.metadata().clone();
        metadata.insert(SERVED.to_owned(), told.to_string());
        let input = signature.input.as_ref().clone().with_metadata(metadata);
        signature.input = Arc::new(input);
        signature
    }
}

/// Extension name of a bfloat16 field. Arrow has no such type. The 16 bits are stored as `UInt16`,
/// and the field (for a tensor, the field of the items) has this extension name.
pub const BFLOAT16: &str = "volley.bfloat16";

/// Whether the numbers of `field` are bfloat16.
#[must_use]
pub fn is_bfloat16(field: &Field) -> bool {
    let extension = field.metadata().get("ARROW:extension:name");
    *field.data_type() == DataType::UInt16 && extension.is_some_and(|name| name == BFLOAT16)
}

impl Signature {
    /// The signature of every generation model: `prompt` or `messages` in, chunks out. Exactly one
    /// of the two columns must have a value in each row.
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

    /// Adds a maximum number of tokens.
    #[must_use]
    pub fn within(mut self, context: usize) -> Self {
        let fields = self.input.fields().iter().map(|field| {
            let field = field.as_ref().clone();
            if field.name() != PROMPT && field.name() != TEXT {
                return field;
            }
            let mut metadata = field.metadata().clone();
            metadata.insert(CONTEXT.to_owned(), context.to_string());
            field.with_metadata(metadata)
        });
        self.input = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        self
    }

    /// Maximum number of tokens that the model reads and writes, if declared.
    #[must_use]
    pub fn context(&self) -> Option<usize> {
        let fields = self.input.fields().iter();
        let mut told = fields.filter_map(|field| field.metadata().get(CONTEXT));
        told.next()?.parse().ok()
    }

    /// The signature of an embedding model. Input: `text`, optionally `input_type`. Output:
    /// `tokens` and `embedding`, a vector of the model's `dimensions` or of the request parameter
    /// with that name.
    #[must_use]
    pub fn embed(dimensions: usize) -> Self {
        let metadata = [(DIMENSIONS.to_owned(), dimensions.to_string())];
        let embedding = list(EMBEDDING, DataType::Float32).with_metadata(metadata.into());
        let input = vec![text(TEXT), text(INPUT_TYPE).with_nullable(true)];
        Self::rows(Task::Embed, input, vec![embedding, tokens()])
    }

    /// The signature of a reranking model. Input: `query` and `text`. Output: `score` (higher is
    /// more relevant) and `tokens`.
    #[must_use]
    pub fn rerank() -> Self {
        let score = Field::new(SCORE, DataType::Float32, false);
        let input = vec![text(QUERY), text(TEXT)];
        Self::rows(Task::Rerank, input, vec![score, tokens()])
    }

    /// The signature of a text classifier. Input: `text`, optionally `text_pair`. Output: `labels`
    /// and `scores`, the highest first, and `tokens`.
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

    /// The signature of a token classifier. Input: `text`. Output: `entities` and `tokens`. An
    /// entity has a `label`, a `score`, the `text`, and its `start` and `end` in characters.
    #[must_use]
    pub fn classify_tokens() -> Self {
        let entity = DataType::Struct(entity_fields());
        let output = vec![list("entities", entity), tokens()];
        Self::rows(Task::ClassifyTokens, vec![text(TEXT)], output)
    }

    /// The signature of a sparse encoder. Input: `text`. Output: `terms` and `weights`, the highest
    /// first, and `tokens`.
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

    /// The response columns for a request with these parameters. A text encoder that tokenizes or
    /// detokenizes returns the columns of a generation. With [`ROW_DETAILS`], a model that supports
    /// it adds the column [`UPSTREAM`], and its [`TOKENS`] may be null.
    #[must_use]
    pub fn answer(&self, parameters: &Parameters) -> SchemaRef {
        let asked = |name| matches!(parameters.boolean(name), Ok(Some(true)));
        let encodes = !matches!(self.task, Task::Generate | Task::Tensors | Task::Events);
        if encodes && (asked(TOKENIZE) || asked(DETOKENIZE)) {
            return chunk::generation_schema();
        }
        if !encodes || !asked(ROW_DETAILS) || !self.takes_native(ROW_PARAMETERS) {
            return self.output.clone();
        }
        let columns = self.output.fields().iter().map(|field| {
            let may_lack = field.is_nullable() || field.name() == TOKENS;
            field.as_ref().clone().with_nullable(may_lack)
        });
        let upstream = Field::new(UPSTREAM, DataType::Utf8, true);
        let columns = columns.chain([upstream]).collect::<Vec<_>>();
        Arc::new(Schema::new(columns))
    }

    /// Whether one model can replace the other: same task, and columns with the same names, types
    /// and sizes. All generations are compatible, because nodes of earlier versions lack the last
    /// columns.
    #[must_use]
    pub fn stands_for(&self, other: &Self) -> bool {
        self.task == other.task
            && (self.task == Task::Generate
                || same_columns(&self.input, &other.input)
                    && same_columns(&self.output, &other.output))
    }

    /// Checks a request's schema against this signature by column name. Every column must be
    /// declared, with the declared type. Every declared column that is not nullable must be
    /// present. The order of columns does not matter. `LargeUtf8` is accepted for `Utf8`.
    ///
    /// # Errors
    /// `InvalidInput` with the column, its type and the expected type.
    pub fn check_input(&self, schema: &Schema) -> Result<(), PredictError> {
        self.check_columns(schema, |declared, given| {
            same_type(declared.data_type(), given)
        })
    }

    fn check_columns(
        &self,
        schema: &Schema,
        takes: impl Fn(&Field, &DataType) -> bool,
    ) -> Result<(), PredictError> {
        for field in schema.fields() {
            let Ok(declared) = self.input.field_with_name(field.name()) else {
                return Err(PredictError::invalid(format!(
                    "input column '{}' is not an input of this model; its inputs are {}",
                    printable(field.name()),
                    names(&self.input)
                )));
            };
            if !takes(declared, field.data_type()) {
                return Err(other_type(declared, field.data_type()));
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

fn other_type(declared: &Field, given: &DataType) -> PredictError {
    PredictError::invalid(format!(
        "input column '{}' has type {given}, the model takes {}",
        declared.name(),
        declared.data_type()
    ))
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

/// Compares types without field names inside lists and without nullability, which clients in other
/// languages choose differently. Nullable fields of a struct may be missing.
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
