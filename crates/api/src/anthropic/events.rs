//! The events of a streamed message. Their clients go by the names of events alone.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};
use volley_types::{Citation, FinishReason, GenerationRow, PredictError, Usage};

use super::{stop_reason, usage};
use crate::answer::failure;
use crate::citations;
use crate::error::anthropic_error;
use crate::sse::{Events, json_string, named_event as event};

/// The block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    /// A call, by its index among the calls.
    Tool(u64),
}

/// Writes the events of one message.
#[derive(Debug)]
pub(crate) struct MessageEvents {
    start: Value,
    started: bool,
    open: Option<Block>,
    /// Whether the block that is open is cited: what is said next is in another.
    cited: bool,
    /// Blocks that were begun.
    blocks: usize,
    usage: Usage,
    reason: Option<FinishReason>,
    finished: bool,
}

/// A tool call's delta in OpenAI's form.
#[derive(Deserialize)]
struct Delta {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

impl MessageEvents {
    pub(crate) fn new(id: &str, model: &str) -> Self {
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(Usage::default()),
        });
        Self {
            start: json!({ "type": "message_start", "message": message }),
            started: false,
            open: None,
            cited: false,
            blocks: 0,
            usage: Usage::default(),
            reason: None,
            finished: false,
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        if !self.started {
            self.started = true;
            event("message_start", &self.start, out);
        }
        if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
            self.begin(
                Block::Thinking,
                out,
                || json!({ "type": "thinking", "thinking": "", "signature": "" }),
            );
            self.delta(br#"{"type":"thinking_delta","thinking":"#, thinking, out);
        }
        if let Some(text) = row.text().filter(|text| !text.is_empty()) {
            if self.cited {
                self.close(out);
            }
            self.begin(Block::Text, out, || json!({ "type": "text", "text": "" }));
            self.delta(br#"{"type":"text_delta","text":"#, text, out);
        }
        if row.citations().is_some() {
            self.citations(&citations::of(row), out);
        }
        let calls = row.tool_calls().map(serde_json::from_str::<Vec<Delta>>);
        for call in calls.and_then(Result::ok).unwrap_or_default() {
            self.call(call, out);
        }
        if let Some(told) = row.usage() {
            self.usage += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            self.end(out);
        }
    }

    /// An empty list says that a passage begins of which citations come later.
    fn citations(&mut self, cited: &[Citation], out: &mut BytesMut) {
        if cited.is_empty() {
            if self.open == Some(Block::Text) {
                self.close(out);
            }
            return;
        }
        self.begin(Block::Text, out, || json!({ "type": "text", "text": "" }));
        self.cited = true;
        for citation in cited {
            let body = json!({
                "type": "content_block_delta", "index": self.blocks.saturating_sub(1),
                "delta": { "type": "citations_delta", "citation": citations::of_message(citation) },
            });
            event("content_block_delta", &body, out);
        }
    }

    fn call(&mut self, call: Delta, out: &mut BytesMut) {
        let (name, arguments) = match call.function {
            Some(function) => (function.name, function.arguments),
            None => (None, None),
        };
        let block = Block::Tool(call.index.unwrap_or(0));
        self.begin(
            block,
            out,
            || json!({ "type": "tool_use", "id": call.id, "name": name, "input": {} }),
        );
        if let Some(arguments) = arguments.filter(|text| !text.is_empty()) {
            self.delta(
                br#"{"type":"input_json_delta","partial_json":"#,
                &arguments,
                out,
            );
        }
    }

    /// Makes `block` the open one.
    fn begin(&mut self, block: Block, out: &mut BytesMut, content: impl FnOnce() -> Value) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let body = json!({
            "type": "content_block_start", "index": self.blocks, "content_block": content(),
        });
        self.blocks += 1;
        event("content_block_start", &body, out);
    }

    fn close(&mut self, out: &mut BytesMut) {
        self.cited = false;
        if self.open.take().is_some() {
            let body = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
            event("content_block_stop", &body, out);
        }
    }

    fn delta(&self, head: &[u8], text: &str, out: &mut BytesMut) {
        let index = self.blocks.saturating_sub(1);
        out.put_slice(
            b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
        );
        out.put_slice(index.to_string().as_bytes());
        out.put_slice(b",\"delta\":");
        out.put_slice(head);
        json_string(text, out);
        out.put_slice(b"}}\n\n");
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.close(out);
        let body = json!({
            "type": "message_delta",
            "delta": { "stop_reason": stop_reason(self.reason), "stop_sequence": null },
            "usage": usage(self.usage),
        });
        event("message_delta", &body, out);
        event("message_stop", &json!({ "type": "message_stop" }), out);
        self.finished = true;
    }
}

impl Events for MessageEvents {
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

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        event("error", &anthropic_error(error), out);
    }
}
