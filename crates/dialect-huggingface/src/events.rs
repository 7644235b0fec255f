//! The events of a streamed generation, one for each token.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Details, FinishReason, GenerationRow, PredictError, Usage};

use super::FORMAT;
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
    /// Whether an upstream's own last event was written.
    ended: bool,
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
        let details = row.details().map(Details::from_json).unwrap_or_default();
        let own = own(&details);
        let plain = if own.is_empty() {
            tokens(row)
        } else {
            Vec::new()
        };
        for event in own {
            self.pass(event.clone(), out);
        }
        for token in plain {
            self.text
                .push_str(token["text"].as_str().unwrap_or_default());
            self.written += 1;
            self.event(&token, &Value::Null, &Value::Null, out);
        }
        if row.last() {
            // The format has no finish reason for a content filter.
            refusal::filtered(self.reason, &details)?;
            if !self.ended {
                self.end(&details, out);
            }
            self.finished = true;
        }
        Ok(())
    }

    /// Writes an event of an upstream of the same format.
    fn pass(&mut self, mut event: Value, out: &mut BytesMut) {
        let text = event["token"]["text"].as_str().unwrap_or_default();
        self.text.push_str(text);
        self.written += 1;
        self.ended |= event["generated_text"].is_string();
        if !self.details && event.get("details").is_some() {
            event["details"] = Value::Null;
        }
        out.put_slice(format!("data:{event}\n\n").as_bytes());
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

/// The events of an upstream of the same format.
fn own(details: &Details) -> Vec<&Value> {
    if details.format.as_deref() != Some(FORMAT) {
        return Vec::new();
    }
    let last = details.fields.as_ref().and_then(|it| it.get("event"));
    details.events.iter().chain(last).collect()
}

/// The tokens of a row, as an upstream of the same format told them or else as [`tokens`] does.
pub(super) fn all_tokens(row: &GenerationRow<'_>) -> Vec<Value> {
    let details = row.details().map(Details::from_json).unwrap_or_default();
    let own = own(&details);
    match own.is_empty() {
        true => tokens(row),
        false => own.iter().map(|event| event["token"].clone()).collect(),
    }
}

/// Formats the tokens of a row. If the model reports no tokens, the row's text counts as one token.
fn tokens(row: &GenerationRow<'_>) -> Vec<Value> {
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

#[cfg(test)]
mod tests {
    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    fn written(details: bool) -> Vec<Value> {
        let token = json!({ "index": 1, "generated_text": null, "details": null, "token":
            { "id": 3, "text": " hi", "logprob": -0.5, "special": false } });
        let last = json!({ "index": 2, "generated_text": " hi", "token":
            { "id": 2, "text": "</s>", "logprob": -0.25, "special": true },
            "details": { "finish_reason": "eos_token", "generated_tokens": 2, "seed": 7 } });
        let rows = [
            GenerationChunk {
                text: Some(" hi".to_owned()),
                details: json!({ "format": "tgi", "events": [token] })
                    .to_string()
                    .into(),
                ..GenerationChunk::default()
            },
            GenerationChunk {
                finish_reason: Some(FinishReason::Stop),
                details: json!({ "format": "tgi", "fields": { "event": last } })
                    .to_string()
                    .into(),
                last: true,
                ..GenerationChunk::default()
            },
        ];
        let (mut events, mut out) = (
            TokenEvents::new(String::new(), details, None),
            BytesMut::new(),
        );
        for row in &rows {
            events
                .batch(&GenerationChunks::single(row), &mut out)
                .unwrap();
        }
        assert!(events.finished());
        let text = String::from_utf8(out.to_vec()).unwrap();
        let data = text.split_terminator("\n\n");
        data.map(|data| serde_json::from_str(data.strip_prefix("data:").unwrap()).unwrap())
            .collect()
    }

    #[test]
    fn events_of_an_upstream_of_the_same_format_are_passed_on() {
        let events = written(true);
        assert_eq!(events.len(), 2);
        assert_eq!(
            (&events[0]["token"]["id"], &events[0]["token"]["logprob"]),
            (&json!(3), &json!(-0.5))
        );
        assert_eq!(
            (&events[1]["token"]["id"], &events[1]["generated_text"]),
            (&json!(2), &json!(" hi"))
        );
        assert_eq!(events[1]["details"]["seed"], 7);
        assert_eq!(written(false)[1]["details"], Value::Null);
    }
}
