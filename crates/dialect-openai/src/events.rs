//! The events of streamed completions. They consist of `data:` lines only, because OpenAI's own
//! clients fail on ids, event names and empty events.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value, json};
use volley_types::{Details, FinishReason, GenerationRow, PredictError, Usage};

use super::{FINGERPRINT, finish_reason, logprobs, pause};
use volley_dialect_kit::answer::{self, failure};
use volley_dialect_kit::citations;
use volley_dialect_kit::openai_error::error as openai_error;
use volley_dialect_kit::pieces;
use volley_dialect_kit::refusal::{self, explanation};
use volley_dialect_kit::sse::{Events, json_string};
use volley_dialect_kit::supplement::supplement;

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "openai";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The route that a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventsInterface {
    /// `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Text {
        /// Number of answers to each prompt.
        answers: u32,
    },
}

/// Writes the events of one stream.
#[derive(Debug)]
pub(crate) struct CompletionEvents {
    kind: EventsInterface,
    /// The part before the choices, which is the same in every event.
    head: String,
    /// The part after the choices.
    tail: &'static str,
    include_usage: bool,
    /// Number of characters written of each choice, if log probabilities need it.
    written: BTreeMap<u32, usize>,
    /// Choices whose first event is written.
    begun: Vec<u32>,
    /// Choices of plain completions with a refusal.
    refused: Vec<u32>,
    /// Choices of plain completions with text.
    said: Vec<u32>,
    usage: Option<Usage>,
    /// Whether the caller uses `functions` instead of `tools`.
    legacy: bool,
    finished: bool,
}

impl CompletionEvents {
    /// Sets whether the caller uses `functions` instead of `tools`.
    pub(crate) fn of_functions(self, legacy: bool) -> Self {
        Self { legacy, ..self }
    }

    pub(crate) fn new(
        kind: EventsInterface,
        id: &str,
        created: u64,
        model: &str,
        include_usage: bool,
    ) -> Self {
        let object = match kind {
            EventsInterface::Chat => "chat.completion.chunk",
            EventsInterface::Text { .. } => "text_completion",
        };
        let model = Value::from(model);
        Self {
            kind,
            head: format!(
                "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\
                 \"model\":{model},\"system_fingerprint\":\"{FINGERPRINT}\",\"choices\":["
            ),
            tail: if include_usage {
                "],\"usage\":null}\n\n"
            } else {
                "]}\n\n"
            },
            include_usage,
            written: BTreeMap::new(),
            begun: Vec::new(),
            refused: Vec::new(),
            said: Vec::new(),
            usage: None,
            legacy: false,
            finished: false,
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        let index = match self.kind {
            EventsInterface::Chat => row.choice(),
            EventsInterface::Text { answers } => row.item() * answers + row.choice(),
        };
        if self.kind == EventsInterface::Chat && !self.begun.contains(&index) {
            self.begun.push(index);
            self.choice(index, out, |out| {
                out.put_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
            });
        }
        match self.kind {
            EventsInterface::Chat => self.chat(index, row, out),
            EventsInterface::Text { .. } => self.text(index, row, out),
        }
    }

    fn chat(&self, index: u32, row: &GenerationRow<'_>, out: &mut BytesMut) {
        let details = row.details().map(Details::from_json).unwrap_or_default();
        let text = row.text().filter(|text| !text.is_empty());
        let (text, refusal) = match details.refusal {
            true => (None, text),
            false => (text, None),
        };
        let refusal = refusal.or_else(|| explanation(&details));
        let told = answer::tokens(row);
        if let Some(refusal) = refusal {
            let logprobs = match told.is_empty() {
                true => Value::Null,
                false => json!({ "content": null, "refusal": told }),
            };
            self.event(out, |out| {
                let choice = json!({
                    "index": index, "delta": { "refusal": refusal },
                    "logprobs": logprobs, "finish_reason": null,
                });
                out.put_slice(choice.to_string().as_bytes());
            });
        }
        if let (Some(text), false) = (text, told.is_empty()) {
            let told = logprobs(told);
            self.event(out, |out| {
                let choice = json!({
                    "index": index, "delta": { "content": text },
                    "logprobs": told, "finish_reason": null,
                });
                out.put_slice(choice.to_string().as_bytes());
            });
        } else if let Some(text) = text {
            self.choice(index, out, |out| {
                out.put_slice(b"\"delta\":{\"content\":");
                json_string(text, out);
                out.put_u8(b'}');
            });
        }
        if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
            self.choice(index, out, |out| {
                out.put_slice(b"\"delta\":{\"reasoning_content\":");
                json_string(thinking, out);
                out.put_u8(b'}');
            });
        }
        if let Some(calls) = row.tool_calls().filter(|_| self.legacy) {
            self.function_call(index, calls, out);
        } else if let Some(calls) = row.tool_calls() {
            // The row's calls are already in OpenAI's format.
            self.choice(index, out, |out| {
                out.put_slice(b"\"delta\":{\"tool_calls\":");
                out.put_slice(calls.as_bytes());
                out.put_u8(b'}');
            });
        }
        let cited = citations::of(row);
        if !cited.is_empty() {
            let told: Value = cited.iter().map(citations::of_chat).collect();
            self.choice(index, out, |out| {
                out.put_slice(format!("\"delta\":{{\"annotations\":{told}}}").as_bytes());
            });
        }
        let native = details.format.as_deref() == Some(FORMAT);
        for block in details.blocks.iter().filter(|_| native) {
            self.beside(index, block, out);
        }
        if row.finish_reason().is_some() {
            self.finish(index, row, &details, out);
        }
    }

    /// Forwards the fields of an upstream of this format that rows do not have.
    fn beside(&self, index: u32, block: &Value, out: &mut BytesMut) {
        let mut choice = json!({
            "index": index, "delta": block["delta"], "logprobs": null, "finish_reason": null,
        });
        supplement(&mut choice, &block["choice"]);
        self.event(out, |out| out.put_slice(choice.to_string().as_bytes()));
    }

    fn finish(&self, index: u32, row: &GenerationRow<'_>, details: &Details, out: &mut BytesMut) {
        let reason = match finish_reason(row.finish_reason()) {
            "tool_calls" if self.legacy => "function_call",
            reason => reason,
        };
        let paused = pause(details).map(|own| format!(",\"native_finish_reason\":\"{own}\""));
        let paused = paused.unwrap_or_default();
        let choice = format!(
            "{{\"index\":{index},\"delta\":{{}},\"logprobs\":null,\
             \"finish_reason\":\"{reason}\"{paused}}}"
        );
        out.put_slice(self.head.as_bytes());
        out.put_slice(choice.as_bytes());
        // Top-level fields of an upstream of this format. Its fingerprint is left out, because
        // every event has Volley's own.
        let native = details.format.as_deref() == Some(FORMAT);
        let fields = details.fields.as_ref().filter(|_| native);
        let fields = fields.and_then(Value::as_object).into_iter().flatten();
        let mut beside = String::new();
        for (name, value) in fields.filter(|(name, _)| *name != "system_fingerprint") {
            beside += &format!(",{}:{value}", Value::from(name.as_str()));
        }
        let tail = self.tail.strip_prefix(']').unwrap_or_default();
        out.put_slice(format!("]{beside}{tail}").as_bytes());
    }

    fn text(&mut self, index: u32, row: &GenerationRow<'_>, out: &mut BytesMut) {
        let mut text = row.text().unwrap_or_default();
        let details = row.details().map(Details::from_json).unwrap_or_default();
        if details.refusal && !self.refused.contains(&index) {
            self.refused.push(index);
        }
        if !text.is_empty() && !self.said.contains(&index) {
            self.said.push(index);
        }
        // This interface has only text for a refusal.
        if text.is_empty() {
            let is_empty = !self.said.contains(&index);
            text = refusal::note(row.finish_reason(), &details, is_empty).unwrap_or_default();
        }
        let reason = row.finish_reason().map(|reason| match reason {
            FinishReason::Stop if self.refused.contains(&index) => FinishReason::ContentFilter,
            reason => reason,
        });
        let reason = reason.map(|reason| finish_reason(Some(reason)));
        let tokens = answer::tokens(row);
        if text.is_empty() && reason.is_none() && tokens.is_empty() {
            return;
        }
        let offset = self.written.entry(index).or_default();
        let told = text_logprobs(&tokens, *offset);
        // An echoed prompt has its text in one row and its tokens in several rows.
        let spelt = tokens.iter().filter_map(|token| token["token"].as_str());
        *offset += match tokens.is_empty() {
            true => text.chars().count(),
            false => spelt.map(|text| text.chars().count()).sum(),
        };
        self.event(out, |out| {
            let choice = json!({
                "index": index, "text": text, "logprobs": told, "finish_reason": reason,
            });
            out.put_slice(choice.to_string().as_bytes());
        });
    }

    /// Writes the first call in the deprecated format, which has one call only.
    fn function_call(&self, index: u32, calls: &str, out: &mut BytesMut) {
        for call in pieces::calls(calls) {
            if call.index == 0 {
                let mut told = json!({ "arguments": call.arguments });
                if let Some(name) = call.name {
                    told["name"] = name.into();
                }
                self.choice(index, out, |out| {
                    let delta = format!("\"delta\":{{\"function_call\":{told}}}");
                    out.put_slice(delta.as_bytes());
                });
            }
        }
    }

    /// Writes an event of one choice without a finish reason and log probabilities.
    fn choice(&self, index: u32, out: &mut BytesMut, delta: impl FnOnce(&mut BytesMut)) {
        self.event(out, |out| {
            out.put_slice(b"{\"index\":");
            out.put_slice(index.to_string().as_bytes());
            out.put_u8(b',');
            delta(out);
            out.put_slice(b",\"logprobs\":null,\"finish_reason\":null}");
        });
    }

    fn event(&self, out: &mut BytesMut, choice: impl FnOnce(&mut BytesMut)) {
        out.put_slice(self.head.as_bytes());
        choice(out);
        out.put_slice(self.tail.as_bytes());
    }

    /// Writes the usage, if requested and known, and the end marker.
    fn end(&mut self, details: &Details, out: &mut BytesMut) {
        if let Some(usage) = self.usage.filter(|_| self.include_usage) {
            out.put_slice(self.head.as_bytes());
            let usage = super::usage(usage, details);
            out.put_slice(format!("],\"usage\":{usage}}}\n\n").as_bytes());
        }
        out.put_slice(DONE);
        self.finished = true;
    }
}

impl Events for CompletionEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            self.row(&row, out);
            if row.last() {
                let details = row.details().map(Details::from_json);
                self.end(&details.unwrap_or_default(), out);
                break;
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        let body = json!({ "error": openai_error(error) });
        out.put_slice(format!("data: {body}\n\n").as_bytes());
    }
}

/// Log probabilities in the format of plain completions, for text that starts at the character
/// `offset`; `None` if there are none.
pub(super) fn text_logprobs(tokens: &[Value], mut offset: usize) -> Option<Value> {
    let mut told: [Vec<Value>; 4] = Default::default();
    for token in tokens {
        let text = token["token"].as_str().unwrap_or_default();
        let others = token["top_logprobs"].as_array().into_iter().flatten();
        let others = others.filter_map(|other| {
            let text = other["token"].as_str()?;
            Some((text.to_owned(), other["logprob"].clone()))
        });
        let mut others: Map<_, _> = others.collect();
        // The first token of a prompt has no probability. Every other token is listed among its
        // alternatives, as OpenAI does.
        let others = match &token["logprob"] {
            Value::Null => Value::Null,
            own => {
                others.entry(text).or_insert_with(|| own.clone());
                others.into()
            }
        };
        told[0].push(text.into());
        told[1].push(token["logprob"].clone());
        told[2].push(others);
        told[3].push(offset.into());
        offset += text.chars().count();
    }
    let [texts, logprobs, others, offsets] = told;
    (!texts.is_empty()).then(|| {
        json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": others,
                "text_offset": offsets })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    const EVENTS: usize = 500;
    const ROUNDS: usize = if cfg!(debug_assertions) { 5 } else { 400 };

    /// Fastest of several rounds, in nanoseconds per event.
    fn best(mut round: impl FnMut(&mut BytesMut)) -> f64 {
        let mut out = BytesMut::with_capacity(EVENTS * 400);
        let rounds = (0..ROUNDS).map(|_| {
            out.clear();
            let begun = Instant::now();
            round(&mut out);
            begun.elapsed().as_nanos() as f64 / EVENTS as f64
        });
        rounds.fold(f64::MAX, f64::min)
    }

    /// Measures how much time would be saved by forwarding the bytes of an upstream of the same
    /// format. See docs/evidence/remote-models.md.
    #[test]
    fn cost() {
        let chunk = GenerationChunk {
            text: Some(" word".to_owned()),
            ..GenerationChunk::default()
        };
        let batch = GenerationChunks::single(&chunk);
        let mut events =
            CompletionEvents::new(EventsInterface::Chat, "chatcmpl-1", 1, "model", false);
        let written = best(|out| {
            for _ in 0..EVENTS {
                events.batch(&batch, out).unwrap();
            }
        });
        let raw = vec![b'x'; 320];
        let copied = best(|out| {
            for _ in 0..EVENTS {
                out.put_slice(&raw);
            }
        });
        eprintln!(
            "an event written from its row: {written:.0} ns; 320 bytes passed on: {copied:.0} ns"
        );
        assert!(
            copied < written,
            "a copy is cheaper than making what is copied"
        );
    }
}
