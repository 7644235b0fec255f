//! Response rows and the stream that carries them.
//!
//! A chunk is one row, and all its data is in columns. A transport may therefore merge and split
//! record batches. A generation's stream ends in exactly one row with `last = true`, or in exactly
//! one error. Nothing follows after either.

mod build;
mod failure;

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::Stream;

pub use self::build::{GenerationChunks, blank, is_blank};
use crate::error::PredictError;
use crate::ids::ModelRef;

/// A stream of response batches. Its schema is known before the first batch.
///
/// [`ChunkStream::holding`] attaches values that must live as long as the stream (permits, cancel
/// guards, gauges). Dropping the stream drops the work behind it, then these values.
pub struct ChunkStream {
    schema: SchemaRef,
    // Fields are dropped in this order: the work first, then its permits.
    batches: Pin<Box<dyn Stream<Item = Result<RecordBatch, PredictError>> + Send>>,
    guards: Vec<Box<dyn std::any::Any + Send>>,
    ended: bool,
    answered_by: Option<ModelRef>,
}

impl ChunkStream {
    /// A stream of `batches`, each of `schema`.
    pub fn new(
        schema: SchemaRef,
        batches: impl Stream<Item = Result<RecordBatch, PredictError>> + Send + 'static,
    ) -> Self {
        Self {
            schema,
            batches: Box::pin(batches),
            guards: Vec::new(),
            ended: false,
            answered_by: None,
        }
    }

    /// Sets the model that answers, if the requested name is an alias.
    #[must_use]
    pub fn with_answered_by(mut self, model: ModelRef) -> Self {
        self.answered_by = Some(model);
        self
    }

    /// The model that answers; `None` if unknown.
    #[must_use]
    pub fn answered_by(&self) -> Option<&ModelRef> {
        self.answered_by.as_ref()
    }

    /// The schema of every batch.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Attaches `guard`, which is dropped with the stream.
    #[must_use]
    pub fn holding(mut self, guard: impl std::any::Any + Send) -> Self {
        self.guards.push(Box::new(guard));
        self
    }

    /// The same stream with its batches passed through `wrap`. It keeps its guards.
    #[must_use]
    pub fn map_batches<S>(self, wrap: impl FnOnce(BatchResults) -> S) -> Self
    where
        S: Stream<Item = Result<RecordBatch, PredictError>> + Send + 'static,
    {
        Self {
            schema: self.schema,
            batches: Box::pin(wrap(self.batches)),
            guards: self.guards,
            ended: self.ended,
            answered_by: self.answered_by,
        }
    }
}

/// Whether a generation's batch has the terminal row, after which a reader may stop. Returns false
/// for batches of other schemas.
#[must_use]
pub fn ends_generation(batch: &RecordBatch) -> bool {
    let last = batch.column_by_name("last");
    let last = last.and_then(|column| column.as_boolean_opt());
    last.is_some_and(|last| !last.is_empty() && last.value(last.len() - 1))
}

/// The sum of the token counts in a generation's batch; `None` if no row has a count.
#[must_use]
pub fn usage_of(batch: &RecordBatch) -> Option<Usage> {
    let column = |name: &str| {
        let column = batch.column_by_name(name)?;
        column.as_primitive_opt::<UInt32Type>()
    };
    // The row with the usage repeats the prompt count of the first row.
    let completions = column("completion_tokens")?;
    let sum = |name: &str| {
        let counts = column(name)?;
        let rows = (0..counts.len()).filter(|row| completions.is_valid(*row));
        let known = rows.filter(|row| counts.is_valid(*row));
        let mut known = known.map(|row| counts.value(row)).peekable();
        known.peek()?;
        Some(known.fold(0_u32, u32::saturating_add))
    };
    Some(Usage {
        prompt_tokens: sum("prompt_tokens")?,
        completion_tokens: sum("completion_tokens")?,
        cached_tokens: sum("cached_tokens").unwrap_or_default(),
        cache_write_tokens: sum("cache_write_tokens").unwrap_or_default(),
        reasoning_tokens: sum("reasoning_tokens").unwrap_or_default(),
    })
}

/// One item of a [`ChunkStream`].
pub type BatchResult = Result<RecordBatch, PredictError>;

/// The batches inside a [`ChunkStream`].
pub type BatchResults = Pin<Box<dyn Stream<Item = BatchResult> + Send>>;

impl Stream for ChunkStream {
    type Item = Result<RecordBatch, PredictError>;

    /// Yields nothing after the first error, even if the inner stream continues. Cancel safe: a
    /// pending poll loses no batch.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.batches.as_mut().poll_next(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.ended = true;
        }
        polled
    }
}

impl std::fmt::Debug for ChunkStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkStream")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End of text, or a stop string.
    Stop,
    /// The token limit or the context length was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// The upstream's content filter stopped the generation.
    ContentFilter,
    /// The item failed. The columns `error_code` and `error_message` have the reason.
    Error,
}

impl FinishReason {
    /// The stable name. It is OpenAI's name, which most dialects share.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::Error => "error",
        }
    }

    /// Parses a stable name; `None` if it is unknown.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Stop,
            Self::Length,
            Self::ToolCalls,
            Self::ContentFilter,
            Self::Error,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == name)
    }
}

/// Tokens read and written for one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens whose keys and values were cached from an earlier prompt; part of
    /// `prompt_tokens`.
    pub cached_tokens: u32,
    /// Tokens of the prompt that were written to a cache for later prompts; part of
    /// `prompt_tokens`.
    pub cache_write_tokens: u32,
    /// Tokens generated as reasoning; part of `completion_tokens`.
    pub reasoning_tokens: u32,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let add = |to: &mut u32, more: u32| *to = to.saturating_add(more);
        add(&mut self.prompt_tokens, other.prompt_tokens);
        add(&mut self.completion_tokens, other.completion_tokens);
        add(&mut self.cached_tokens, other.cached_tokens);
        add(&mut self.cache_write_tokens, other.cache_write_tokens);
        add(&mut self.reasoning_tokens, other.reasoning_tokens);
    }
}

/// Token counts of a prompt, before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PromptUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// As [`Usage::cached_tokens`].
    pub cached_tokens: u32,
}

/// One row of a generation's response.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct GenerationChunk {
    /// Index of the request row that this answers, from 0.
    pub item: u32,
    /// Index of the answer among several answers to that row, from 0.
    pub choice: u32,
    /// Index of the row in the stream: 0, 1, 2 … without gaps or duplicates.
    pub sequence: u32,
    /// New text.
    pub text: Option<String>,
    /// New reasoning text.
    pub thinking: Option<String>,
    /// Tool-call deltas as a JSON array in OpenAI's form.
    pub tool_calls: Option<String>,
    /// The token, if the row has exactly one.
    pub token_id: Option<u32>,
    /// Natural logarithm of the token's probability, if requested.
    pub logprob: Option<f32>,
    /// Set on the last row of a choice.
    pub finish_reason: Option<FinishReason>,
    /// Set on the last row of a choice, where known.
    pub usage: Option<Usage>,
    /// Set on the first row of each item's first choice, if known by then. It uses the columns of
    /// the usage, without `completion_tokens`; a row with a usage has only the usage.
    pub prompt: Option<PromptUsage>,
    /// Error of the item: the name of the code and its public text.
    pub error: Option<(String, String)>,
    /// Citations of the text: a JSON array of [`Citation`](crate::Citation)s. An empty array marks
    /// the start of a passage that later citations refer to.
    pub citations: Option<String>,
    /// True on exactly the last row of the stream.
    pub last: bool,
    /// The row's tokens with their log probabilities and most likely alternatives, if requested: a
    /// JSON array in OpenAI's format.
    pub token_logprobs: Option<String>,
    /// Token ids of the row, if [`Self::token_id`] cannot hold them: several, or none. A replica
    /// that supports continuation sets one of the two fields in every row.
    pub token_ids: Option<Vec<u32>>,
    /// Fields that only some dialects support: a JSON object of [`Details`](crate::Details).
    pub details: Option<String>,
}

static GENERATION_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("item", DataType::UInt32, false),
        Field::new("choice", DataType::UInt32, false),
        Field::new("sequence", DataType::UInt32, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("thinking", DataType::Utf8, true),
        Field::new("tool_calls", DataType::Utf8, true),
        Field::new("token_id", DataType::UInt32, true),
        Field::new("logprob", DataType::Float32, true),
        Field::new("finish_reason", DataType::Utf8, true),
        Field::new("prompt_tokens", DataType::UInt32, true),
        Field::new("completion_tokens", DataType::UInt32, true),
        Field::new("cached_tokens", DataType::UInt32, true),
        Field::new("error_code", DataType::Utf8, true),
        Field::new("error_message", DataType::Utf8, true),
        Field::new("citations", DataType::Utf8, true),
        Field::new("last", DataType::Boolean, false),
        Field::new("token_logprobs", DataType::Utf8, true),
        Field::new_list(
            "token_ids",
            Field::new_list_field(DataType::UInt32, true),
            true,
        ),
        Field::new("cache_write_tokens", DataType::UInt32, true),
        Field::new("reasoning_tokens", DataType::UInt32, true),
        Field::new("details", DataType::Utf8, true),
    ]))
});

/// Minimum number of columns of a response; nodes of the previous version send only these.
const FIRST_COLUMNS: usize = 17;
/// Index of the column `details`.
const DETAILS: usize = 20;

/// The schema of every generation's response.
#[must_use]
pub fn generation_schema() -> SchemaRef {
    GENERATION_SCHEMA.clone()
}

/// A borrowed view of one row of a generation batch.
#[derive(Clone, Copy, Debug)]
pub struct GenerationRow<'a> {
    batch: &'a RecordBatch,
    row: usize,
}

impl<'a> GenerationRow<'a> {
    /// The rows of `batch`.
    ///
    /// # Errors
    /// `Internal` if the batch does not have the column names and types of [`generation_schema`].
    pub fn rows(
        batch: &'a RecordBatch,
    ) -> Result<impl ExactSizeIterator<Item = GenerationRow<'a>>, PredictError> {
        let (expected, schema) = (&GENERATION_SCHEMA, batch.schema_ref());
        // Nodes of the next version may send more columns.
        let same = FIRST_COLUMNS <= schema.fields().len()
            && schema
                .fields()
                .iter()
                .zip(expected.fields())
                .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
        if !same {
            return Err(PredictError::internal(
                "the model's response does not have the columns of a generation",
                format!("{schema:?}"),
            ));
        }
        Ok((0..batch.num_rows()).map(move |row| GenerationRow { batch, row }))
    }

    fn u32_at(&self, column: usize) -> Option<u32> {
        let array = self.batch.column(column).as_primitive::<UInt32Type>();
        array.is_valid(self.row).then(|| array.value(self.row))
    }

    /// The value of a column that nodes of earlier versions may omit.
    fn later_u32_at(&self, column: usize) -> Option<u32> {
        (column < self.batch.num_columns()).then(|| self.u32_at(column))?
    }

    fn text_at(&self, column: usize) -> Option<&'a str> {
        let array = self.batch.column(column).as_string::<i32>();
        array.is_valid(self.row).then(|| array.value(self.row))
    }

    /// See [`GenerationChunk::item`].
    #[must_use]
    pub fn item(&self) -> u32 {
        self.u32_at(0).unwrap_or_default()
    }

    /// See [`GenerationChunk::choice`].
    #[must_use]
    pub fn choice(&self) -> u32 {
        self.u32_at(1).unwrap_or_default()
    }

    /// See [`GenerationChunk::sequence`].
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.u32_at(2).unwrap_or_default()
    }

    /// See [`GenerationChunk::text`].
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        self.text_at(3)
    }

    /// See [`GenerationChunk::thinking`].
    #[must_use]
    pub fn thinking(&self) -> Option<&'a str> {
        self.text_at(4)
    }

    /// See [`GenerationChunk::tool_calls`].
    #[must_use]
    pub fn tool_calls(&self) -> Option<&'a str> {
        self.text_at(5)
    }

    /// See [`GenerationChunk::token_id`].
    #[must_use]
    pub fn token_id(&self) -> Option<u32> {
        self.u32_at(6)
    }

    /// See [`GenerationChunk::logprob`].
    #[must_use]
    pub fn logprob(&self) -> Option<f32> {
        let array = self.batch.column(7).as_primitive::<Float32Type>();
        array.is_valid(self.row).then(|| array.value(self.row))
    }

    /// See [`GenerationChunk::finish_reason`].
    #[must_use]
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.text_at(8).and_then(FinishReason::from_name)
    }

    /// See [`GenerationChunk::usage`].
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let (prompt_tokens, completion_tokens) = (self.u32_at(9)?, self.u32_at(10)?);
        Some(Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens: self.u32_at(11).unwrap_or_default(),
            cache_write_tokens: self.later_u32_at(18).unwrap_or_default(),
            reasoning_tokens: self.later_u32_at(19).unwrap_or_default(),
        })
    }

    /// See [`GenerationChunk::prompt`]; for a row with a usage, the prompt part of the usage.
    #[must_use]
    pub fn prompt(&self) -> Option<PromptUsage> {
        Some(PromptUsage {
            prompt_tokens: self.u32_at(9)?,
            cached_tokens: self.u32_at(11).unwrap_or_default(),
        })
    }

    /// See [`GenerationChunk::error`].
    #[must_use]
    pub fn error(&self) -> Option<(&'a str, &'a str)> {
        Some((self.text_at(12)?, self.text_at(13).unwrap_or_default()))
    }

    /// See [`GenerationChunk::citations`].
    #[must_use]
    pub fn citations(&self) -> Option<&'a str> {
        self.text_at(14)
    }

    /// Whether the row has text, reasoning, tool calls or citations.
    #[must_use]
    pub fn has_content(&self) -> bool {
        let columns = [3, 4, 5, 14];
        columns
            .into_iter()
            .map(|column| self.batch.column(column))
            .any(|column| column.is_valid(self.row))
    }

    /// See [`GenerationChunk::last`].
    #[must_use]
    pub fn last(&self) -> bool {
        self.batch.column(15).as_boolean().value(self.row)
    }

    /// See [`GenerationChunk::token_logprobs`].
    #[must_use]
    pub fn token_logprobs(&self) -> Option<&'a str> {
        self.text_at(16)
    }

    /// See [`GenerationChunk::token_ids`]. `None` if the column is absent.
    #[must_use]
    pub fn token_ids(&self) -> Option<UInt32Array> {
        let column = self.batch.columns().get(FIRST_COLUMNS)?;
        let lists = column.as_list::<i32>();
        let ids = lists.is_valid(self.row).then(|| lists.value(self.row))?;
        ids.as_primitive_opt::<UInt32Type>().cloned()
    }

    /// See [`GenerationChunk::details`]. `None` if the column is absent.
    #[must_use]
    pub fn details(&self) -> Option<&'a str> {
        (DETAILS < self.batch.num_columns()).then(|| self.text_at(DETAILS))?
    }
}

#[cfg(test)]
mod tests;
