//! Converts chunks to record batches.
//!
//! Most batches of a stream have one row with a text and nothing else. Blank columns are built once
//! and shared, because building them, with validity and offsets, would be most of the cost of a
//! token. For the same reason nodes omit blank columns on the wire; see [`is_blank`].

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float32Builder, ListBuilder, StringBuilder, UInt32Builder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow_schema::{DataType, Field};

use super::{FinishReason, GenerationChunk, generation_schema};

/// Rows that fit before a builder grows. Most batches have one to a few rows, and the builders'
/// defaults reserve about 40 KiB over all columns for each batch.
const ROWS: usize = 4;
/// Bytes of text that fit before a text column grows.
const BYTES: usize = 32;
/// Blank columns are cached for batches of up to this many rows.
const BLANKS: usize = 64;

/// Collects chunks into one record batch of [`generation_schema`].
#[derive(Debug, Default)]
pub struct GenerationChunks {
    rows: usize,
    item: LazyColumn<Counts>,
    choice: LazyColumn<Counts>,
    sequence: LazyColumn<Counts>,
    text: LazyColumn<Texts>,
    thinking: LazyColumn<Texts>,
    tool_calls: LazyColumn<Texts>,
    token_id: LazyColumn<Numbers>,
    logprob: LazyColumn<Floats>,
    finish_reason: LazyColumn<Texts>,
    prompt_tokens: LazyColumn<Numbers>,
    completion_tokens: LazyColumn<Numbers>,
    cached_tokens: LazyColumn<Numbers>,
    error_code: LazyColumn<Texts>,
    error_message: LazyColumn<Texts>,
    citations: LazyColumn<Texts>,
    last: LazyColumn<Flags>,
    token_logprobs: LazyColumn<Texts>,
    token_ids: LazyColumn<Lists>,
    cache_write_tokens: LazyColumn<Numbers>,
    reasoning_tokens: LazyColumn<Numbers>,
    details: LazyColumn<Texts>,
}

impl GenerationChunks {
    /// Adds one row.
    pub fn push(&mut self, chunk: &GenerationChunk) {
        let at = self.rows;
        self.rows += 1;
        self.item.push(at, (chunk.item != 0).then_some(chunk.item));
        let choice = (chunk.choice != 0).then_some(chunk.choice);
        self.choice.push(at, choice);
        self.sequence.push(at, Some(chunk.sequence));
        self.text.push(at, chunk.text.as_deref());
        self.thinking.push(at, chunk.thinking.as_deref());
        self.tool_calls.push(at, chunk.tool_calls.as_deref());
        self.token_id.push(at, chunk.token_id);
        self.logprob.push(at, chunk.logprob);
        let reason = chunk.finish_reason.map(FinishReason::as_str);
        self.finish_reason.push(at, reason);
        let usage = chunk.usage;
        let prompt = chunk.prompt.map(|of| (of.prompt_tokens, of.cached_tokens));
        let prompt = usage
            .map(|of| (of.prompt_tokens, of.cached_tokens))
            .or(prompt);
        self.prompt_tokens
            .push(at, prompt.map(|(tokens, _)| tokens));
        self.completion_tokens
            .push(at, usage.map(|usage| usage.completion_tokens));
        let cached = prompt.map(|(_, cached)| cached);
        self.cached_tokens
            .push(at, cached.filter(|tokens| *tokens != 0));
        let error = chunk.error.as_ref();
        self.error_code
            .push(at, error.map(|(code, _)| code.as_str()));
        self.error_message
            .push(at, error.map(|(_, message)| message.as_str()));
        self.citations.push(at, chunk.citations.as_deref());
        self.last.push(at, chunk.last.then_some(true));
        self.token_logprobs
            .push(at, chunk.token_logprobs.as_deref());
        self.token_ids.push(at, chunk.token_ids.as_deref());
        let written = usage.map(|usage| usage.cache_write_tokens);
        self.cache_write_tokens
            .push(at, written.filter(|tokens| *tokens != 0));
        let reasoned = usage.map(|usage| usage.reasoning_tokens);
        self.reasoning_tokens
            .push(at, reasoned.filter(|tokens| *tokens != 0));
        self.details.push(at, chunk.details.as_deref());
    }

    /// Number of collected rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether no rows are collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the collected rows and resets `self` to empty.
    pub fn finish(&mut self) -> RecordBatch {
        let rows = std::mem::take(&mut self.rows);
        let columns = vec![
            self.item.finish(rows),
            self.choice.finish(rows),
            self.sequence.finish(rows),
            self.text.finish(rows),
            self.thinking.finish(rows),
            self.tool_calls.finish(rows),
            self.token_id.finish(rows),
            self.logprob.finish(rows),
            self.finish_reason.finish(rows),
            self.prompt_tokens.finish(rows),
            self.completion_tokens.finish(rows),
            self.cached_tokens.finish(rows),
            self.error_code.finish(rows),
            self.error_message.finish(rows),
            self.citations.finish(rows),
            self.last.finish(rows),
            self.token_logprobs.finish(rows),
            self.token_ids.finish(rows),
            self.cache_write_tokens.finish(rows),
            self.reasoning_tokens.finish(rows),
            self.details.finish(rows),
        ];
        #[expect(
            clippy::expect_used,
            reason = "the columns are listed in the schema's order"
        )]
        let batch = RecordBatch::try_new(generation_schema(), columns)
            .expect("columns are listed in the schema's order and have one row per push");
        batch
    }

    /// One chunk as a batch of one row.
    #[must_use]
    pub fn single(chunk: &GenerationChunk) -> RecordBatch {
        let mut chunks = Self::default();
        chunks.push(chunk);
        chunks.finish()
    }
}

/// Whether `column` is blank: all values are null or, if it is not nullable, zero or `false`.
/// Returns false for types that [`blank`] does not support.
#[must_use]
pub fn is_blank(field: &Field, column: &dyn Array) -> bool {
    match (field.data_type(), field.is_nullable()) {
        (DataType::UInt32, false) => {
            let counts = column.as_primitive::<UInt32Type>().values();
            // For longer columns the check costs more than it saves.
            counts.len() <= BLANKS && counts.iter().all(|count| *count == 0)
        }
        (DataType::Boolean, false) => column.as_boolean().true_count() == 0,
        (DataType::Utf8 | DataType::UInt32 | DataType::Float32, true) => {
            column.null_count() == column.len()
        }
        (list, true) if *list == *NUMBERS => column.null_count() == column.len(),
        _ => false,
    }
}

/// A blank column of `rows` rows; `None` for types that do not occur in a generation's response.
#[must_use]
pub fn blank(field: &Field, rows: usize) -> Option<ArrayRef> {
    Some(match (field.data_type(), field.is_nullable()) {
        (DataType::UInt32, false) => blanks::<Counts>(rows),
        (DataType::Boolean, false) => blanks::<Flags>(rows),
        (DataType::Utf8, true) => blanks::<Texts>(rows),
        (DataType::UInt32, true) => blanks::<Numbers>(rows),
        (DataType::Float32, true) => blanks::<Floats>(rows),
        (list, true) if *list == *NUMBERS => blanks::<Lists>(rows),
        _ => return None,
    })
}

/// Type of a list of numbers.
static NUMBERS: LazyLock<DataType> =
    LazyLock::new(|| DataType::List(Arc::new(Field::new_list_field(DataType::UInt32, true))));

fn blanks<K: Kind>(rows: usize) -> ArrayRef {
    let kept = K::blanks().get(rows);
    kept.cloned().unwrap_or_else(|| K::blank(rows))
}

/// A column without a builder until its first value.
#[derive(Debug)]
struct LazyColumn<K: Kind>(Option<K::Builder>);

impl<K: Kind> Default for LazyColumn<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Kind> LazyColumn<K> {
    /// Appends `value` as row `at`; the column has `at` rows before the call.
    fn push(&mut self, at: usize, value: Option<K::Value<'_>>) {
        if self.0.is_none() && value.is_some() {
            let mut builder = K::builder();
            (0..at).for_each(|_| K::append(&mut builder, None));
            self.0 = Some(builder);
        }
        if let Some(builder) = &mut self.0 {
            K::append(builder, value);
        }
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        match self.0.take() {
            Some(mut builder) => builder.finish(),
            None => blanks::<K>(rows),
        }
    }
}

/// Value type of a column, and its blank value.
trait Kind {
    type Value<'v>;
    type Builder: ArrayBuilder + std::fmt::Debug;

    fn builder() -> Self::Builder;
    fn append(builder: &mut Self::Builder, value: Option<Self::Value<'_>>);
    /// A blank column of `rows` rows.
    fn blank(rows: usize) -> ArrayRef;
    /// Blank columns, indexed by their number of rows.
    fn blanks() -> &'static [ArrayRef];
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident<$life:lifetime>: $value:ty, $builder:ty = $new:expr, $append:expr, $blank:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        struct $kind;

        impl Kind for $kind {
            type Value<$life> = $value;
            type Builder = $builder;

            fn builder() -> $builder {
                $new
            }

            fn append(builder: &mut $builder, value: Option<Self::Value<'_>>) {
                let append: fn(&mut $builder, Option<Self::Value<'_>>) = $append;
                append(builder, value);
            }

            fn blank(rows: usize) -> ArrayRef {
                let blank: fn(usize) -> ArrayRef = $blank;
                blank(rows)
            }

            fn blanks() -> &'static [ArrayRef] {
                static KEPT: LazyLock<Vec<ArrayRef>> =
                    LazyLock::new(|| (0..=BLANKS).map($kind::blank).collect());
                &KEPT
            }
        }
    )*};
}

kinds! {
    /// Text or null.
    Texts<'v>: &'v str, StringBuilder = StringBuilder::with_capacity(ROWS, BYTES),
        |builder, value| builder.append_option(value),
        |rows| new_null_array(&DataType::Utf8, rows);
    /// A number or null.
    Numbers<'v>: u32, UInt32Builder = UInt32Builder::with_capacity(ROWS),
        |builder, value| builder.append_option(value),
        |rows| new_null_array(&DataType::UInt32, rows);
    /// Numbers or null.
    Lists<'v>: &'v [u32], ListBuilder<UInt32Builder> =
            ListBuilder::with_capacity(UInt32Builder::with_capacity(ROWS), ROWS),
        |builder, value| {
            if let Some(numbers) = value {
                builder.values().append_slice(numbers);
            }
            builder.append(value.is_some());
        },
        |rows| new_null_array(&NUMBERS, rows);
    /// A number or 0.
    Counts<'v>: u32, UInt32Builder = UInt32Builder::with_capacity(ROWS),
        |builder, value| builder.append_value(value.unwrap_or(0)),
        |rows| Arc::new(UInt32Array::from(vec![0; rows]));
    /// A number with a fraction, or null.
    Floats<'v>: f32, Float32Builder = Float32Builder::with_capacity(ROWS),
        |builder, value| builder.append_option(value),
        |rows| new_null_array(&DataType::Float32, rows);
    /// A boolean; blank is `false`.
    Flags<'v>: bool, BooleanBuilder = BooleanBuilder::with_capacity(ROWS),
        |builder, value| builder.append_value(value.unwrap_or(false)),
        |rows| Arc::new(BooleanArray::from(vec![false; rows]));
}

#[cfg(test)]
mod tests;
