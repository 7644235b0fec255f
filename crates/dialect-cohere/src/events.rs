//! The events of a streamed chat. Each has its type both in its data, which Cohere's clients read,
//! and as the event name.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Citation, Details, FinishReason, GenerationRow, PredictError, Usage};

use super::{FORMAT, call_id, citation, finish_reason, is_plan, logprobs, usage};
use volley_dialect_kit::answer::failure;
use volley_dialect_kit::pieces::{self, CallPiece, Piece, Stretches};
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse::{Events, json_string, named_event as event};

/// Maximum number of bytes of an answer's text that are kept for the passages of citations.
const HELD_BYTES: usize = 1 << 20;

/// Type of the open part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Text,
    Thinking,
    /// A call, with its index among the calls.
    Call(u64),
}

/// Writes the events of one chat.
#[derive(Debug)]
pub(super) struct ChatEvents {
    id: String,
    started: bool,
    open: Option<Part>,
    /// Number of started content parts.
    parts: usize,
    cited: usize,
    text: String,
    order: Stretches,
    refused: bool,
    usage: Option<Usage>,
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
            order: Stretches::default(),
            refused: false,
            usage: None,
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

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) -> Result<(), PredictError> {
        self.start(out);
        let mut ready = Vec::new();
        for piece in pieces::of(row) {
            self.order.add(piece, &mut ready)?;
        }
        self.pieces(ready, out);
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            let mut rest = Vec::new();
            self.order.finish(&mut rest);
            self.pieces(rest, out);
            let details = row.details().map(Details::from_json).unwrap_or_default();
            if let Some(note) = refusal::note(self.reason, &details, self.text.is_empty()) {
                self.begin(Part::Text, out);
                self.delta("text", note, &[], out);
            }
            let reason = finish_reason(self.reason, &details, self.refused);
            let mut delta = json!({ "finish_reason": reason });
            if let Some(told) = self.usage {
                delta["usage"] = usage(told, &details);
            }
            self.end(delta, out);
        }
        Ok(())
    }

    fn pieces(&mut self, pieces: Vec<Piece>, out: &mut BytesMut) {
        let mut pieces = pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Thinking(text) => {
                    let plan =
                        |next: &Piece| matches!(next, Piece::Details(details) if is_plan(details));
                    match pieces.next_if(plan) {
                        Some(_) => self.plan(&text, out),
                        None => {
                            self.begin(Part::Thinking, out);
                            self.delta("thinking", &text, &[], out);
                        }
                    }
                }
                Piece::Text {
                    text,
                    tokens,
                    refusal,
                } => {
                    self.refused |= refusal;
                    self.begin(Part::Text, out);
                    self.delta("text", &text, &tokens, out);
                    if self.text.len() < HELD_BYTES {
                        self.text.push_str(&text);
                    }
                }
                Piece::Citations(cited) => self.citations(&cited, out),
                Piece::Call(call) => self.call(call, out),
                Piece::Details(details) => {
                    let own = cited(&details);
                    own.iter().for_each(|told| self.citation(told, out));
                    if !own.is_empty() {
                        // The next piece has the same citations in the shared format.
                        pieces.next_if(|next| matches!(next, Piece::Citations(_)));
                    }
                }
            }
        }
    }

    /// Writes the plan of an upstream of this format for its calls.
    fn plan(&mut self, text: &str, out: &mut BytesMut) {
        self.close(out);
        let body = json!({
            "type": "tool-plan-delta", "delta": { "message": { "tool_plan": text } },
        });
        event("tool-plan-delta", &body, out);
    }

    fn citations(&mut self, cited: &[Citation], out: &mut BytesMut) {
        let place = self.parts.saturating_sub(1);
        for cited in cited {
            self.citation(&citation(cited, &self.text, place), out);
        }
    }

    fn citation(&mut self, told: &Value, out: &mut BytesMut) {
        let body = json!({
            "type": "citation-start", "index": self.cited,
            "delta": { "message": { "citations": told } },
        });
        event("citation-start", &body, out);
        let body = json!({ "type": "citation-end", "index": self.cited });
        event("citation-end", &body, out);
        self.cited += 1;
    }

    fn call(&mut self, call: CallPiece, out: &mut BytesMut) {
        let index = call.index;
        if self.open != Some(Part::Call(index)) {
            self.close(out);
            self.open = Some(Part::Call(index));
            let told = json!({ "id": call_id(&call, &self.id), "type": "function",
                               "function": { "name": call.name.unwrap_or_default(),
                                             "arguments": "" } });
            let body = json!({
                "type": "tool-call-start", "index": index,
                "delta": { "message": { "tool_calls": told } },
            });
            event("tool-call-start", &body, out);
        }
        if !call.arguments.is_empty() {
            let told = json!({ "function": { "arguments": call.arguments } });
            let body = json!({
                "type": "tool-call-delta", "index": index,
                "delta": { "message": { "tool_calls": told } },
            });
            event("tool-call-delta", &body, out);
        }
    }

    /// Closes the open part and opens `part` of the content.
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

    fn delta(&self, field: &str, text: &str, tokens: &[Value], out: &mut BytesMut) {
        let index = self.parts.saturating_sub(1);
        let head = format!(
            "event: content-delta\ndata: {{\"type\":\"content-delta\",\"index\":{index},\
             \"delta\":{{\"message\":{{\"content\":{{\"{field}\":"
        );
        out.put_slice(head.as_bytes());
        json_string(text, out);
        out.put_slice(b"}}}");
        if !tokens.is_empty() {
            out.put_slice(format!(",\"logprobs\":{}", logprobs(tokens)).as_bytes());
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

/// The citations in the details, in Cohere's format.
pub(super) fn cited(details: &Details) -> Vec<&Value> {
    let native = details.format.as_deref() == Some(FORMAT);
    let blocks = details.blocks.iter().filter(|_| native);
    blocks.filter_map(|block| block.get("citation")).collect()
}

impl Events for ChatEvents {
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

    /// Reports the error in the last event, because Cohere's clients support no other error event.
    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        self.start(out);
        self.end(
            json!({ "finish_reason": "ERROR", "error": error.message }),
            out,
        );
    }
}
