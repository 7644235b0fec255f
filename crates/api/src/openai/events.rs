//! The events of streamed completions. Nothing but `data:` lines: OpenAI's own clients fail on
//! ids, names and empty events.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{GenerationRow, PredictError, Usage};

use super::{completions, finish_reason, logprobs};
use crate::answer::{self, failure};
use crate::citations;
use crate::error::openai_error;
use crate::sse::{Events, json_string};

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Which of the two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `chat.completion.chunk`.
    Chat,
    /// `text_completion`, with so many answers to each prompt.
    Text {
        /// Answers to each prompt.
        answers: u32,
    },
}

/// Writes the events of one stream.
#[derive(Debug)]
pub(crate) struct CompletionEvents {
    kind: Kind,
    /// Everything in front of the choices, which is the same in every event.
    head: String,
    /// What is behind them.
    tail: &'static str,
    include_usage: bool,
    /// How many characters of each choice are written, where they are counted.
    written: BTreeMap<u32, usize>,
    /// Choices whose first event is written.
    begun: Vec<u32>,
    usage: Option<Usage>,
    finished: bool,
}

impl CompletionEvents {
    pub(crate) fn new(
        kind: Kind,
        id: &str,
        created: u64,
        model: &str,
        include_usage: bool,
    ) -> Self {
        let object = match kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text { .. } => "text_completion",
        };
        let model = Value::from(model);
        Self {
            kind,
            head: format!(
                "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\
                 \"model\":{model},\"choices\":["
            ),
            tail: if include_usage {
                "],\"usage\":null}\n\n"
            } else {
                "]}\n\n"
            },
            include_usage,
            written: BTreeMap::new(),
            begun: Vec::new(),
            usage: None,
            finished: false,
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        let index = match self.kind {
            Kind::Chat => row.choice(),
            Kind::Text { answers } => row.item() * answers + row.choice(),
        };
        if self.kind == Kind::Chat && !self.begun.contains(&index) {
            self.begun.push(index);
            self.choice(index, out, |out| {
                out.put_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
            });
        }
        match self.kind {
            Kind::Chat => self.chat(index, row, out),
            Kind::Text { .. } => self.text(index, row, out),
        }
    }

    fn chat(&self, index: u32, row: &GenerationRow<'_>, out: &mut BytesMut) {
        let text = row.text().filter(|text| !text.is_empty());
        let told = answer::tokens(row);
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
        if let Some(calls) = row.tool_calls() {
            // They are in OpenAI's own form.
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
        if row.finish_reason().is_some() {
            self.event(out, |out| {
                let reason = finish_reason(row.finish_reason());
                let choice = format!(
                    "{{\"index\":{index},\"delta\":{{}},\"logprobs\":null,\
                     \"finish_reason\":\"{reason}\"}}"
                );
                out.put_slice(choice.as_bytes());
            });
        }
    }

    fn text(&mut self, index: u32, row: &GenerationRow<'_>, out: &mut BytesMut) {
        let text = row.text().unwrap_or_default();
        let reason = row
            .finish_reason()
            .map(|reason| finish_reason(Some(reason)));
        if text.is_empty() && reason.is_none() {
            return;
        }
        let told = answer::tokens(row);
        let offset = self.written.entry(index).or_default();
        let told = completions::logprobs(&told, *offset);
        *offset += text.chars().count();
        self.event(out, |out| {
            let choice = json!({
                "index": index, "text": text, "logprobs": told, "finish_reason": reason,
            });
            out.put_slice(choice.to_string().as_bytes());
        });
    }

    /// An event of one choice that has not ended, with no probabilities.
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

    fn end(&mut self, out: &mut BytesMut) {
        if self.include_usage {
            out.put_slice(self.head.as_bytes());
            let usage = super::usage(self.usage.unwrap_or_default());
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
                self.end(out);
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    const EVENTS: usize = 500;
    const ROUNDS: usize = if cfg!(debug_assertions) { 5 } else { 400 };

    /// The best of some rounds, in nanoseconds an event.
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

    /// What the bytes of an upstream of the same format would spare, were they passed on: see
    /// docs/connectors.md.
    #[test]
    fn cost() {
        let chunk = GenerationChunk {
            text: Some(" word".to_owned()),
            ..GenerationChunk::default()
        };
        let batch = GenerationChunks::single(&chunk);
        let mut events = CompletionEvents::new(Kind::Chat, "chatcmpl-1", 1, "model", false);
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
