//! The events of a streamed message. Anthropic's clients dispatch on event names only.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Citation, Details, FinishReason, GenerationRow, PredictError, Usage};

use super::{FORMAT, ending, usage};
use crate::error::error as anthropic_error;
use volley_dialect_kit::answer::failure;
use volley_dialect_kit::blocks::input;
use volley_dialect_kit::citations;
use volley_dialect_kit::envelope;
use volley_dialect_kit::pieces::{self, CallPiece, Piece, Stretches};
use volley_dialect_kit::sse::{Events, json_string, named_event as event};
use volley_dialect_kit::supplement::supplement;

/// Type of the open block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    /// A call, with its index among the calls.
    Tool(u64),
}

/// Writes the events of one message.
#[derive(Debug)]
pub(crate) struct MessageEvents {
    id: String,
    start: Value,
    started: bool,
    open: Option<Block>,
    /// Whether the open block has citations. Text after them starts a new block.
    cited: bool,
    /// Number of started blocks.
    blocks: usize,
    order: Stretches,
    /// Name and arguments of the open call.
    called: (String, String),
    /// Calls whose arguments are not an object.
    broken: Vec<(String, String)>,
    refused: bool,
    usage: Option<Usage>,
    reason: Option<FinishReason>,
    finished: bool,
}

impl MessageEvents {
    pub(crate) fn new(id: &str, model: &str) -> Self {
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null,
        });
        Self {
            id: id.to_owned(),
            start: message,
            started: false,
            open: None,
            cited: false,
            blocks: 0,
            order: Stretches::default(),
            called: Default::default(),
            broken: Vec::new(),
            refused: false,
            usage: None,
            reason: None,
            finished: false,
        }
    }

    fn start(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let mut message = std::mem::take(&mut self.start);
        // The usage in a terminal row covers the whole answer, not only the prompt.
        let details = row.details().filter(|_| row.finish_reason().is_none());
        let details = details.map(Details::from_json);
        let native = details.filter(|details| details.format.as_deref() == Some(FORMAT));
        let native = native.and_then(|details| details.usage);
        message["usage"] = native.unwrap_or_else(|| usage(Some(prompt(row)), None));
        let body = json!({ "type": "message_start", "message": message });
        event("message_start", &body, out);
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) -> Result<(), PredictError> {
        self.start(row, out);
        let plain = row.tool_calls().is_none() && row.details().is_none();
        if plain && self.order.is_clear() {
            self.thinking(row.thinking().unwrap_or_default(), out);
            self.text(row.text().unwrap_or_default(), out);
            if row.citations().is_some() {
                self.citations(&citations::of(row), out);
            }
        } else {
            let mut ready = Vec::new();
            for piece in pieces::of(row) {
                self.order.add(piece, &mut ready)?;
            }
            ready.into_iter().for_each(|piece| self.piece(piece, out));
        }
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            let details = row.details().map(Details::from_json);
            return self.end(&details.unwrap_or_default(), out);
        }
        Ok(())
    }

    fn piece(&mut self, piece: Piece, out: &mut BytesMut) {
        match piece {
            Piece::Thinking(text) => self.thinking(&text, out),
            Piece::Text { text, refusal, .. } => {
                self.refused |= refusal;
                self.text(&text, out);
            }
            Piece::Citations(cited) => self.citations(&cited, out),
            Piece::Call(call) => self.call(call, out),
            Piece::Details(details) => self.details(&details, out),
        }
    }

    fn thinking(&mut self, thinking: &str, out: &mut BytesMut) {
        if thinking.is_empty() {
            return;
        }
        self.begin_thinking(out);
        self.delta(br#"{"type":"thinking_delta","thinking":"#, thinking, out);
    }

    fn begin_thinking(&mut self, out: &mut BytesMut) {
        let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
        self.begin(Block::Thinking, out, || block);
    }

    fn text(&mut self, text: &str, out: &mut BytesMut) {
        if text.is_empty() {
            return;
        }
        if self.cited {
            self.close(out);
        }
        self.begin(Block::Text, out, || json!({ "type": "text", "text": "" }));
        self.delta(br#"{"type":"text_delta","text":"#, text, out);
    }

    /// A signature ends its reasoning block. Encrypted reasoning is a block of its own.
    fn details(&mut self, details: &Details, out: &mut BytesMut) {
        if details.begins && self.open == Some(Block::Text) {
            self.close(out);
        }
        if let Some(signature) = envelope::signature(details, FORMAT) {
            self.begin_thinking(out);
            self.delta(
                br#"{"type":"signature_delta","signature":"#,
                &signature,
                out,
            );
            self.close(out);
        }
        if let Some(data) = envelope::redacted(details, FORMAT) {
            self.whole(&json!({ "type": "redacted_thinking", "data": data }), out);
        }
        if details.format.as_deref() == Some(FORMAT) {
            for block in &details.blocks {
                self.whole(block, out);
            }
        }
    }

    /// Writes a block that arrives complete.
    fn whole(&mut self, block: &Value, out: &mut BytesMut) {
        self.close(out);
        let mut block = block.clone();
        // Clients collect the input of a call from deltas.
        let input = block.get_mut("input").filter(|input| input.is_object());
        let input = input.map(|input| std::mem::replace(input, json!({})));
        let body = json!({
            "type": "content_block_start", "index": self.blocks, "content_block": block,
        });
        event("content_block_start", &body, out);
        if let Some(input) = input.filter(|input| *input != json!({})) {
            let delta = json!({ "type": "input_json_delta", "partial_json": input.to_string() });
            let body = json!({
                "type": "content_block_delta", "index": self.blocks, "delta": delta,
            });
            event("content_block_delta", &body, out);
        }
        let body = json!({ "type": "content_block_stop", "index": self.blocks });
        event("content_block_stop", &body, out);
        self.blocks += 1;
    }

    /// Writes citations. An empty list marks the start of a passage that later citations refer to.
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

    fn call(&mut self, call: CallPiece, out: &mut BytesMut) {
        let id = super::call_id(&call, &self.id);
        let name = call.name.unwrap_or_default();
        if self.open != Some(Block::Tool(call.index)) {
            self.close(out);
            self.called = (name.clone(), String::new());
        }
        self.called.1.push_str(&call.arguments);
        self.begin(Block::Tool(call.index), out, || {
            let mut block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
            supplement(&mut block, call.more.as_ref().unwrap_or(&Value::Null));
            block
        });
        if !call.arguments.is_empty() {
            self.delta(
                br#"{"type":"input_json_delta","partial_json":"#,
                &call.arguments,
                out,
            );
        }
    }

    /// Closes the open block and opens `block`.
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
        let open = self.open.take();
        if let Some(Block::Tool(_)) = open {
            let (name, arguments) = std::mem::take(&mut self.called);
            if input(&name, &arguments, None).is_err() {
                self.broken.push((name, arguments));
            }
        }
        if open.is_some() {
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

    fn end(&mut self, details: &Details, out: &mut BytesMut) -> Result<(), PredictError> {
        let mut rest = Vec::new();
        self.order.finish(&mut rest);
        rest.into_iter().for_each(|piece| self.piece(piece, out));
        self.close(out);
        // Broken arguments are those of an answer that was cut off, or a failure of the model.
        for (name, arguments) in &self.broken {
            input(name, arguments, self.reason)?;
        }
        let mut delta = ending(self.reason, details, self.refused);
        // `context_management` is a field of the event, not of its delta.
        let edits = delta.as_object_mut();
        let edits = edits.and_then(|delta| delta.remove("context_management"));
        let mut body = json!({
            "type": "message_delta", "delta": delta,
            "usage": usage(self.usage, Some(details)),
        });
        if let Some(edits) = edits {
            body["context_management"] = edits;
        }
        event("message_delta", &body, out);
        event("message_stop", &json!({ "type": "message_stop" }), out);
        self.finished = true;
        Ok(())
    }
}

/// The prompt usage of the first row. It is zero if unknown, because clients require numbers there
/// and replace them with those of the last event.
fn prompt(row: &GenerationRow<'_>) -> Usage {
    let told = row.prompt().unwrap_or_default();
    // The first row has the complete usage if it is the last one, too.
    let written = row.usage().map_or(0, |usage| usage.cache_write_tokens);
    Usage {
        prompt_tokens: told.prompt_tokens,
        cached_tokens: told.cached_tokens,
        cache_write_tokens: written,
        ..Usage::default()
    }
}

impl Events for MessageEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            self.row(&row, out)?;
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
