//! The events of a streamed chat. Each has its type in its data, which is what Cohere's clients go
//! by, and as the event's name.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{FinishReason, GenerationRow, PredictError, Usage};

use super::{citation, finish_reason, logprob, usage};
use crate::answer::{self, failure};
use crate::citations;
use crate::sse::{Events, json_string, named_event as event};

/// How much of an answer's text is held, for citations to tell their passages.
const HELD_BYTES: usize = 1 << 20;

/// The part that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Text,
    Thinking,
    /// A call, by its index among the calls.
    Call(u64),
}

/// Writes the events of one chat.
#[derive(Debug)]
pub(super) struct ChatEvents {
    id: String,
    started: bool,
    open: Option<Part>,
    /// Parts of the content that were begun.
    parts: usize,
    cited: usize,
    text: String,
    usage: Usage,
    reason: Option<FinishReason>,
    finished: bool,
}

impl ChatEvents {
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            started: false,
            open: None,
            parts: 0,
            cited: 0,
            text: String::new(),
            usage: Usage::default(),
            reason: None,
            finished: false,
        }
    }

    fn start(&mut self, out: &mut BytesMut) {
        if !self.started {
            self.started = true;
            let message = json!({
                "role": "assistant", "content": [], "tool_plan": "", "tool_calls": [],
                "citations": [],
            });
            let body =
                json!({ "type": "message-start", "id": self.id, "delta": { "message": message } });
            event("message-start", &body, out);
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        self.start(out);
        if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
            self.begin(Part::Thinking, out);
            self.delta("thinking", thinking, None, out);
        }
        if let Some(text) = row.text().filter(|text| !text.is_empty()) {
            self.begin(Part::Text, out);
            let told = answer::tokens(row);
            self.delta("text", text, told.first(), out);
            if self.text.len() < HELD_BYTES {
                self.text.push_str(text);
            }
        }
        if row.citations().is_some() {
            self.citations(row, out);
        }
        let calls = row.tool_calls().map(serde_json::from_str::<Vec<Value>>);
        for call in calls.and_then(Result::ok).unwrap_or_default() {
            self.call(&call, out);
        }
        if let Some(told) = row.usage() {
            self.usage += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            let reason = finish_reason(self.reason);
            self.end(
                json!({ "finish_reason": reason, "usage": usage(self.usage) }),
                out,
            );
        }
    }

    fn citations(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        let place = self.parts.saturating_sub(1);
        for cited in citations::of(row) {
            let told = citation(&cited, &self.text, place);
            let body = json!({
                "type": "citation-start", "index": self.cited,
                "delta": { "message": { "citations": told } },
            });
            event("citation-start", &body, out);
            let body = json!({ "type": "citation-end", "index": self.cited });
            event("citation-end", &body, out);
            self.cited += 1;
        }
    }

    /// A delta of a call in OpenAI's form.
    fn call(&mut self, call: &Value, out: &mut BytesMut) {
        let index = call["index"].as_u64().unwrap_or(0);
        let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
        if self.open != Some(Part::Call(index)) {
            self.close(out);
            self.open = Some(Part::Call(index));
            let name = call.pointer("/function/name");
            let told = json!({ "id": call["id"], "type": "function",
                               "function": { "name": name, "arguments": "" } });
            let body = json!({
                "type": "tool-call-start", "index": index,
                "delta": { "message": { "tool_calls": told } },
            });
            event("tool-call-start", &body, out);
        }
        if let Some(arguments) = arguments.filter(|text| !text.is_empty()) {
            let told = json!({ "function": { "arguments": arguments } });
            let body = json!({
                "type": "tool-call-delta", "index": index,
                "delta": { "message": { "tool_calls": told } },
            });
            event("tool-call-delta", &body, out);
        }
    }

    /// Makes `part` of the content the open one.
    fn begin(&mut self, part: Part, out: &mut BytesMut) {
        if self.open == Some(part) {
            return;
        }
        self.close(out);
        self.open = Some(part);
        let content = match part {
            Part::Thinking => json!({ "type": "thinking", "thinking": "" }),
            Part::Text | Part::Call(_) => json!({ "type": "text", "text": "" }),
        };
        let body = json!({
            "type": "content-start", "index": self.parts,
            "delta": { "message": { "content": content } },
        });
        self.parts += 1;
        event("content-start", &body, out);
    }

    fn close(&mut self, out: &mut BytesMut) {
        match self.open.take() {
            None => {}
            Some(Part::Call(index)) => {
                let body = json!({ "type": "tool-call-end", "index": index });
                event("tool-call-end", &body, out);
            }
            Some(Part::Text | Part::Thinking) => {
                let body = json!({ "type": "content-end", "index": self.parts - 1 });
                event("content-end", &body, out);
            }
        }
    }

    fn delta(&self, field: &str, text: &str, token: Option<&Value>, out: &mut BytesMut) {
        let index = self.parts.saturating_sub(1);
        let head = format!(
            "event: content-delta\ndata: {{\"type\":\"content-delta\",\"index\":{index},\
             \"delta\":{{\"message\":{{\"content\":{{\"{field}\":"
        );
        out.put_slice(head.as_bytes());
        json_string(text, out);
        out.put_slice(b"}}}");
        if let Some(token) = token {
            out.put_slice(format!(",\"logprobs\":{}", logprob(token)).as_bytes());
        }
        out.put_slice(b"}\n\n");
    }

    fn end(&mut self, delta: Value, out: &mut BytesMut) {
        self.close(out);
        let body = json!({ "type": "message-end", "id": self.id, "delta": delta });
        event("message-end", &body, out);
        self.finished = true;
    }
}

impl Events for ChatEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            self.row(&row, out);
            if self.finished {
                break;
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    /// In Cohere's form an end tells of the error: its clients know no other event for it.
    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        self.start(out);
        self.end(
            json!({ "finish_reason": "ERROR", "error": error.message }),
            out,
        );
    }
}
