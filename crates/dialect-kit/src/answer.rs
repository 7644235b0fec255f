//! Complete (not streamed) responses.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use serde_json::{Map, Value};
use volley_types::{
    ChunkStream, Citation, Details, ErrorCode, FinishReason, GenerationRow, PredictError, Usage,
};

use crate::citations;
pub use crate::pieces::tokens;
use crate::pieces::{self, Piece};
use crate::refusal;
use crate::sse;

/// Maximum size of a complete response in bytes of Arrow memory.
pub const MAX_BYTES: usize = 64 << 20;

/// Collects all batches of a response.
///
/// # Errors
/// The errors of the stream; `TooLarge` above [`MAX_BYTES`].
pub async fn collect(mut chunks: ChunkStream) -> Result<Vec<RecordBatch>, PredictError> {
    let (mut batches, mut bytes) = (Vec::new(), 0);
    while let Some(batch) = chunks.try_next().await? {
        bytes += batch.get_array_memory_size();
        if MAX_BYTES < bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "the answer is over the limit of {MAX_BYTES} bytes; stream it, or use Arrow \
                     Flight"
                ),
            ));
        }
        batches.push(batch);
    }
    Ok(batches)
}

/// One complete answer to one request row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Which request row this answers.
    pub item: u32,
    /// Which of several answers to that row.
    pub choice: u32,
    /// The generated text.
    pub text: String,
    /// The reasoning before the text.
    pub thinking: String,
    /// Complete tool calls in OpenAI's format, without the deltas' `index`.
    pub tool_calls: Vec<Value>,
    /// The reason why the choice ended; `None` before its end.
    pub finish_reason: Option<FinishReason>,
    /// The token usage of the choice; `None` if its server reported none.
    pub usage: Option<Usage>,
    /// Its tokens with log probabilities in OpenAI's format, if the model returns them.
    pub tokens: Vec<Value>,
    /// Citations of its text.
    pub citations: Vec<Citation>,
    /// The text of a refusal.
    pub refusal: String,
    /// All parts in their original order.
    pub pieces: Vec<Piece>,
    /// Details of its last row.
    pub details: Details,
}

impl Choice {
    /// Adds a row.
    fn add(&mut self, row: &GenerationRow<'_>) {
        self.text.push_str(row.text().unwrap_or_default());
        self.thinking.push_str(row.thinking().unwrap_or_default());
        if let Some(deltas) = row.tool_calls() {
            merge_tool_calls(&mut self.tool_calls, deltas);
        }
        self.finish_reason = row.finish_reason().or(self.finish_reason);
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        self.tokens.extend(tokens(row));
        self.citations.extend(citations::of(row));
        if row.finish_reason().is_some() {
            self.details = row.details().map(Details::from_json).unwrap_or_default();
        }
        let pieces = pieces::of(row);
        // Reasoning of another kind starts a new block.
        let own =
            |piece: &Piece| matches!(piece, Piece::Details(details) if details.item.is_some());
        let is_own = pieces.iter().any(own);
        for piece in pieces {
            match &piece {
                Piece::Thinking(_) if is_own => self.pieces.push(piece),
                _ => self.put(piece),
            }
        }
    }

    /// Adds a piece, merged with the previous one of the same kind.
    fn put(&mut self, piece: Piece) {
        if let Piece::Text {
            text,
            refusal: true,
            ..
        } = &piece
        {
            self.refusal.push_str(text);
        }
        match (self.pieces.last_mut(), piece) {
            (Some(Piece::Thinking(said)), Piece::Thinking(more)) => said.push_str(&more),
            (
                Some(Piece::Text { text, refusal, .. }),
                Piece::Text {
                    text: more,
                    refusal: same,
                    ..
                },
            ) if *refusal == same => text.push_str(&more),
            (_, piece) => self.pieces.push(piece),
        }
    }

    /// Completes the answer after all rows: sets missing arguments of tool calls, and the finish
    /// reason of an answer with calls. The last call of an answer that was cut off keeps none.
    fn end(&mut self) {
        let is_cut = matches!(
            self.finish_reason,
            Some(FinishReason::Length | FinishReason::ContentFilter)
        );
        let last = self.tool_calls.len().saturating_sub(1);
        for (index, call) in self.tool_calls.iter_mut().enumerate() {
            let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
                continue;
            };
            let arguments = function.get("arguments").and_then(Value::as_str);
            if arguments.is_none_or(|text| text.trim().is_empty()) {
                let missing = if is_cut && index == last { "" } else { "{}" };
                function.insert("arguments".to_owned(), missing.into());
            }
        }
        let stops = matches!(self.finish_reason, None | Some(FinishReason::Stop));
        if stops && !self.tool_calls.is_empty() {
            self.finish_reason = Some(FinishReason::ToolCalls);
        }
    }

    /// Whether the model or a content filter refused to answer.
    pub fn is_refused(&self) -> bool {
        !self.refusal.is_empty() || self.finish_reason == Some(FinishReason::ContentFilter)
    }

    /// The text with the refusal's explanation, for dialects without a field for it. An answer that
    /// a content filter left empty has a note.
    pub fn text_or_note(&self) -> String {
        let note = refusal::note(self.finish_reason, &self.details, self.text.is_empty());
        format!("{}{}", self.text, note.unwrap_or_default())
    }

    /// The text without refusals.
    pub fn said(&self) -> String {
        if self.refusal.is_empty() {
            return self.text.clone();
        }
        let said = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text {
                text,
                refusal: false,
                ..
            } => Some(text.as_str()),
            _ => None,
        });
        said.collect()
    }
}

/// The choices of a generation, by item and choice.
///
/// # Errors
/// The error of the first failed item; `Internal` when the stream has no terminal row.
pub fn choices(batches: &[RecordBatch]) -> Result<Vec<Choice>, PredictError> {
    let mut choices: BTreeMap<(u32, u32), Choice> = BTreeMap::new();
    let mut ended = false;
    for batch in batches {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            let choice = choices.entry((row.item(), row.choice())).or_default();
            (choice.item, choice.choice) = (row.item(), row.choice());
            choice.add(&row);
            ended |= row.last();
        }
    }
    if ended {
        choices.values_mut().for_each(Choice::end);
        Ok(choices.into_values().collect())
    } else {
        Err(sse::silent_end())
    }
}

/// The number of prompt tokens, for requests that only count tokens.
///
/// # Errors
/// As [`choices`]; `Unimplemented` when the model generated instead.
pub fn prompt_tokens(batches: &[RecordBatch]) -> Result<u32, PredictError> {
    let told = usage(&choices(batches)?);
    match told {
        Some(usage) if usage.completion_tokens == 0 => Ok(usage.prompt_tokens),
        _ => Err(PredictError::new(
            ErrorCode::Unimplemented,
            "this model cannot count tokens without an answer",
        )),
    }
}

/// The sum of the usage of all choices.
pub fn usage(choices: &[Choice]) -> Option<Usage> {
    let told = choices.iter().filter_map(|choice| choice.usage);
    told.reduce(|mut all, usage| {
        all += usage;
        all
    })
}

/// Details of the last row of the last choice.
pub fn details(choices: &[Choice]) -> Details {
    let mut told = choices.iter().rev().map(|choice| &choice.details);
    let told = told.find(|details| details.usage.is_some());
    let last = told.or(choices.last().map(|choice| &choice.details));
    last.cloned().unwrap_or_default()
}

/// Sets a field of an object. The macro `json!` serializes a given value again; this function moves
/// it.
pub fn put(object: &mut Value, name: &str, value: impl Into<Value>) {
    object[name] = value.into();
}

/// The error of a row whose item failed.
///
/// # Errors
/// That error.
pub fn failure(row: &GenerationRow<'_>) -> Result<(), PredictError> {
    row.failure().map_or(Ok(()), Err)
}

/// Adds deltas in OpenAI's format: the deltas of one `index` form one call, whose `arguments` are
/// joined. A delta without an index belongs to the last call, unless it has an `id` of its own.
pub fn merge_tool_calls(calls: &mut Vec<Value>, deltas: &str) {
    let Ok(Value::Array(deltas)) = serde_json::from_str(deltas) else {
        return;
    };
    for delta in deltas {
        let Value::Object(mut delta) = delta else {
            continue;
        };
        let index = delta.remove("index").and_then(|index| index.as_u64());
        let fresh = delta.get("id").is_some_and(Value::is_string);
        let place = match index.and_then(|index| usize::try_from(index).ok()) {
            // At most one new index: a gap would be a call without deltas.
            Some(index) => index.min(calls.len()),
            None if fresh => calls.len(),
            None => calls.len().saturating_sub(1),
        };
        if place == calls.len() {
            calls.push(Value::Object(Map::new()));
        }
        if let Some(call) = calls[place].as_object_mut() {
            merge(call, delta);
        }
    }
}

fn merge(call: &mut Map<String, Value>, delta: Map<String, Value>) {
    for (name, value) in delta {
        match (call.get_mut(&name), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(inner)), Value::Object(value)) => merge(inner, value),
            (Some(Value::String(text)), Value::String(more))
                if name == "arguments" || name == "input" =>
            {
                text.push_str(&more);
            }
            (_, value) => {
                call.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_types::{GenerationChunk, GenerationChunks};

    use serde_json::json;

    use super::*;

    #[test]
    fn chunks_of_several_choices_become_whole_answers() {
        let mut rows = GenerationChunks::default();
        let call = |index: usize, arguments: &str| {
            json!([{ "index": index, "function": { "arguments": arguments } }]).to_string()
        };
        let chunk = |choice, text: &str| GenerationChunk {
            choice,
            text: Some(text.to_owned()),
            ..GenerationChunk::default()
        };
        rows.push(&chunk(0, "He"));
        rows.push(&chunk(1, "Yo"));
        rows.push(&chunk(0, "llo"));
        for tool_calls in [
            json!([{ "index": 0, "id": "c1", "type": "function",
                     "function": { "name": "f", "arguments": "" } }])
            .to_string(),
            call(0, "{\"a\":"),
            call(0, "1}"),
        ] {
            rows.push(&GenerationChunk {
                tool_calls: Some(tool_calls),
                ..chunk(0, "")
            });
        }
        for (choice, last) in [(0, false), (1, true)] {
            rows.push(&GenerationChunk {
                finish_reason: Some(FinishReason::Stop),
                usage: last.then_some(Usage {
                    prompt_tokens: 3,
                    completion_tokens: 2,
                    ..Usage::default()
                }),
                last,
                ..chunk(choice, "")
            });
        }
        let choices = choices(&[rows.finish()]).unwrap();
        let texts: Vec<_> = choices.iter().map(|choice| choice.text.as_str()).collect();
        assert_eq!(texts, ["Hello", "Yo"]);
        assert_eq!(choices[0].finish_reason, Some(FinishReason::ToolCalls));
        let whole = json!({ "id": "c1", "type": "function",
                            "function": { "name": "f", "arguments": "{\"a\":1}" } });
        assert_eq!(choices[0].tool_calls, [whole]);
        let usage = usage(&choices).unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
    }

    #[test]
    fn a_stream_without_a_last_row_is_no_answer() {
        let chunk = GenerationChunk::default();
        let error = choices(&[GenerationChunks::single(&chunk)]).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
    }
}
