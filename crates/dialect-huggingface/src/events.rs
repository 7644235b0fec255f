//! The events of a streamed generation, one for each token.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Details, FinishReason, GenerationRow, PredictError, Usage};

use crate::error::error as huggingface_error;
use volley_dialect_kit::answer::{self, failure};
use volley_dialect_kit::blocks::is_stop_sequence;
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse::Events;

/// Writes the events of one answer.
#[derive(Debug, Default)]
pub(super) struct TokenEvents {
    /// Text at the start of the complete text.
    text: String,
    details: bool,
    seed: Option<u64>,
    written: u64,
    usage: Usage,
    reason: Option<FinishReason>,
    finished: bool,
}

impl TokenEvents {
    /// Events of an answer whose complete text starts with `begun`.
    pub(super) fn new(begun: String, details: bool, seed: Option<u64>) -> Self {
        Self {
            text: begun,
            details,
            seed,
            ..Self::default()
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) -> Result<(), PredictError> {
        if let Some(usage) = row.usage() {
            self.usage += usage;
        }
        self.reason = row.finish_reason().or(self.reason);
        for token in tokens(row) {
            self.text
                .push_str(token["text"].as_str().unwrap_or_default());
            self.written += 1;
            self.event(&token, &Value::Null, &Value::Null, out);
        }
        if row.last() {
            // The format has no finish reason for a content filter.
            let details = row.details().map(Details::from_json).unwrap_or_default();
            refusal::filtered(self.reason, &details)?;
            self.end(&details, out);
        }
        Ok(())
    }

    /// Writes the end as an event of its own, so that no token is held back until it is known
    /// whether it is the last one.
    fn end(&mut self, details: &Details, out: &mut BytesMut) {
        let token = json!({ "id": 0, "text": "", "logprob": null, "special": true });
        self.written += 1;
        let details = match self.details {
            false => Value::Null,
            true => json!({
                "finish_reason": finish_reason(self.reason, details),
                "generated_tokens": self.usage.completion_tokens,
                "seed": self.seed,
                "input_length": self.usage.prompt_tokens,
            }),
        };
        let text = Value::from(std::mem::take(&mut self.text));
        self.event(&token, &text, &details, out);
        self.finished = true;
    }

    fn event(&self, token: &Value, text: &Value, details: &Value, out: &mut BytesMut) {
        let event = json!({
            "index": self.written, "token": token, "generated_text": text, "details": details,
        });
        out.put_slice(format!("data:{event}\n\n").as_bytes());
    }
}

impl Events for TokenEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            self.row(&row, out)?;
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        out.put_slice(format!("data:{}\n\n", huggingface_error(error)).as_bytes());
    }
}

/// Formats the tokens of a row. If the model reports no tokens, the row's text counts as one token.
pub(super) fn tokens(row: &GenerationRow<'_>) -> Vec<Value> {
    let ids = ids(row);
    let told = answer::tokens(row);
    if told.is_empty() {
        let text = row.text().unwrap_or_default();
        let id = ids.last().copied().unwrap_or(0);
        let token = json!({ "id": id, "text": text, "logprob": null, "special": false });
        return match text.is_empty() {
            true => Vec::new(),
            false => vec![token],
        };
    }
    let place = |at: usize| ids.get(at).copied().unwrap_or(0);
    let told = told.iter().enumerate().map(|(at, token)| {
        json!({
            "id": token.get("id").cloned().unwrap_or_else(|| place(at).into()),
            "text": token["token"],
            "logprob": token["logprob"],
            "special": false,
        })
    });
    told.collect()
}

fn ids(row: &GenerationRow<'_>) -> Vec<u32> {
    match row.token_id() {
        Some(id) => vec![id],
        None => row
            .token_ids()
            .map_or(Vec::new(), |ids| ids.values().to_vec()),
    }
}

/// The finish reason in the terms of Text Generation Inference.
pub(super) fn finish_reason(reason: Option<FinishReason>, details: &Details) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        _ if is_stop_sequence(details) => "stop_sequence",
        _ => "eos_token",
    }
}
