//! Builds the content of a whole message: blocks in the order in which the model produced them.
//! Pure.

use serde_json::{Value, json};
use volley_dialect_kit::blocks::input;
use volley_types::{Citation, Details, FinishReason, PredictError};

use super::{FORMAT, call_id};
use volley_dialect_kit::answer::Choice;
use volley_dialect_kit::citations;
use volley_dialect_kit::envelope;
use volley_dialect_kit::pieces::{CallPiece, Piece, Stretches};
use volley_dialect_kit::supplement::supplement;

/// Collects blocks.
struct Blocks<'a> {
    id: &'a str,
    content: Vec<Value>,
    /// Type of the open block.
    open: OpenBlock,
    /// Number of characters of text so far, and the number before the open block.
    said: u32,
    begun: u32,
    /// Index of the open call, and its arguments so far.
    call: (u64, String),
    reason: Option<FinishReason>,
    /// The first call with unusable arguments.
    failure: Option<PredictError>,
    cited: &'a [Citation],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    None,
    Text,
    Thinking,
    Call,
}

/// The content blocks of an answer. An empty answer has one empty text block.
///
/// # Errors
/// `UpstreamFailed` if the arguments of a call are not an object.
pub(super) fn blocks(id: &str, choice: &Choice) -> Result<Vec<Value>, PredictError> {
    let (mut order, mut ready) = (Stretches::default(), Vec::new());
    for piece in &choice.pieces {
        // The size limit of `Stretches` is not needed here, because the answer as a whole is
        // limited.
        let _ = order.add(piece.clone(), &mut ready);
    }
    order.finish(&mut ready);
    let mut blocks = Blocks {
        id,
        content: Vec::new(),
        open: OpenBlock::None,
        said: 0,
        begun: 0,
        call: (0, String::new()),
        reason: choice.finish_reason,
        failure: None,
        cited: &choice.citations,
    };
    ready.into_iter().for_each(|piece| blocks.add(piece));
    blocks.close();
    if let Some(failure) = blocks.failure {
        return Err(failure);
    }
    if blocks.content.is_empty() {
        blocks.content.push(json!({ "type": "text", "text": "" }));
    }
    Ok(blocks.content)
}

impl Blocks<'_> {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Thinking(text) => {
                self.enter(
                    OpenBlock::Thinking,
                    || json!({ "type": "thinking", "thinking": "", "signature": "" }),
                );
                self.append("thinking", &text);
            }
            Piece::Text { text, .. } => {
                self.enter(OpenBlock::Text, || json!({ "type": "text", "text": "" }));
                self.append("text", &text);
                let more = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
                self.said = self.said.saturating_add(more);
            }
            // Citations are added with their positions when the text block is closed.
            Piece::Citations(_) => {}
            Piece::Call(call) => self.call(&call),
            Piece::Details(details) => self.details(&details),
        }
    }

    fn call(&mut self, call: &CallPiece) {
        if self.open != OpenBlock::Call || self.call.0 != call.index {
            self.close();
            let id = call_id(call, self.id);
            let name = call.name.as_deref().unwrap_or_default();
            let mut block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
            supplement(&mut block, call.more.as_ref().unwrap_or(&Value::Null));
            self.content.push(block);
            self.open = OpenBlock::Call;
            self.call = (call.index, String::new());
        }
        self.call.1.push_str(&call.arguments);
    }

    fn details(&mut self, details: &Details) {
        if details.begins && self.open == OpenBlock::Text {
            self.close();
        }
        if let Some(signature) = envelope::signature(details, FORMAT) {
            self.enter(
                OpenBlock::Thinking,
                || json!({ "type": "thinking", "thinking": "" }),
            );
            if let Some(block) = self.content.last_mut() {
                block["signature"] = signature.into();
            }
            self.close();
        }
        if let Some(data) = envelope::redacted(details, FORMAT) {
            self.close();
            let block = json!({ "type": "redacted_thinking", "data": data });
            self.content.push(block);
        }
        if details.format.as_deref() == Some(FORMAT) && !details.blocks.is_empty() {
            self.close();
            self.content.extend(details.blocks.iter().cloned());
        }
    }

    fn enter(&mut self, open: OpenBlock, block: impl FnOnce() -> Value) {
        if self.open != open {
            self.close();
            self.content.push(block());
            (self.open, self.begun) = (open, self.said);
        }
    }

    fn append(&mut self, name: &str, text: &str) {
        if let Some(Value::String(said)) = self.content.last_mut().map(|block| &mut block[name]) {
            said.push_str(text);
        }
    }

    fn close(&mut self) {
        match std::mem::replace(&mut self.open, OpenBlock::None) {
            OpenBlock::None | OpenBlock::Thinking => {}
            OpenBlock::Call => self.close_call(),
            OpenBlock::Text => {
                let block = self.content.pop().unwrap_or_default();
                let text = block["text"].as_str().unwrap_or_default();
                let cited = self.cited_here();
                self.content.extend(citations::blocks(text, &cited));
            }
        }
    }

    /// Sets the input of the last block, a call. A call that was cut off is left out.
    fn close_call(&mut self) {
        let Some(mut block) = self.content.pop() else {
            return;
        };
        let name = block["name"].as_str().unwrap_or_default();
        match input(name, &self.call.1, self.reason) {
            Ok(Some(input)) => {
                block["input"] = input;
                self.content.push(block);
            }
            Ok(None) => {}
            Err(error) => _ = self.failure.get_or_insert(error),
        }
    }

    /// The citations of the open block, with positions relative to its start.
    fn cited_here(&self) -> Vec<Citation> {
        let (begun, end) = (self.begun, self.said);
        let here = self.cited.iter().filter(|citation| {
            let at = citation.end.or(citation.start).unwrap_or(end);
            begun < at && at <= end || at == 0 && begun == 0
        });
        let moved = here.map(|citation| Citation {
            start: citation.start.map(|start| start.saturating_sub(begun)),
            end: citation.end.map(|end| end.saturating_sub(begun)),
            ..citation.clone()
        });
        moved.collect()
    }
}
