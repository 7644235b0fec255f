//! Pieces of one answer, ordered so that each tool call is contiguous. Pure.
//!
//! Servers may interleave the arguments of several calls, and send text between two pieces of one
//! call. Some dialects have a block for each call and only one open block: for them, other pieces
//! wait until the arguments of the open call are complete.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Value, json};
use volley_types::{Citation, Details, ErrorCode, GenerationRow, PredictError};

use crate::citations;

/// Maximum size of waiting pieces in bytes of text.
const MAX_WAITING: usize = 16 << 20;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A part of the reasoning.
    Thinking(String),
    /// A part of the text.
    Text {
        /// The characters.
        text: String,
        /// Its tokens with log probabilities, if known.
        tokens: Vec<Value>,
        /// Whether the text is a refusal.
        refusal: bool,
    },
    /// Citations; an empty list marks the start of a passage with later citations.
    Citations(Vec<Citation>),
    /// A part of a tool call.
    Call(CallPiece),
    /// Details of the row.
    Details(Box<Details>),
}

/// A piece of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallPiece {
    /// Index of the call in the answer.
    pub index: u64,
    /// The id, in the first part of the call.
    pub id: Option<String>,
    /// The function, in the first part of the call.
    pub name: Option<String>,
    /// A part of the arguments' JSON text.
    pub arguments: String,
    /// The provider's signature.
    pub signature: Option<String>,
    /// Additional fields of Anthropic's servers.
    pub more: Option<Value>,
}

#[derive(Deserialize)]
struct Delta {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
    custom: Option<Custom>,
    extra_content: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

/// A custom tool, with free text as input.
#[derive(Deserialize)]
struct Custom {
    name: Option<String>,
    input: Option<String>,
}

/// The call pieces of deltas in OpenAI's format.
pub fn calls(deltas: &str) -> Vec<CallPiece> {
    let deltas: Vec<Delta> = serde_json::from_str(deltas).unwrap_or_default();
    let pieces = deltas.into_iter().map(|delta| {
        let custom = delta.custom.map(|custom| Function {
            name: custom.name,
            arguments: custom.input,
        });
        let function = delta.function.or(custom).unwrap_or_default();
        let extra = delta.extra_content.unwrap_or_default();
        let signature = extra.pointer("/google/thought_signature");
        CallPiece {
            index: delta.index.unwrap_or(0),
            id: delta.id,
            name: function.name,
            arguments: function.arguments.unwrap_or_default(),
            signature: signature.and_then(Value::as_str).map(str::to_owned),
            more: extra.get("anthropic").cloned(),
        }
    });
    pieces.collect()
}

/// The pieces of a row.
pub fn of(row: &GenerationRow<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let details = row.details().map(Details::from_json).unwrap_or_default();
    let refusal = details.refusal;
    if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
        pieces.push(Piece::Thinking(thinking.to_owned()));
    }
    if !details.is_empty() {
        pieces.push(Piece::Details(Box::new(details)));
    }
    if let Some(text) = row.text().filter(|text| !text.is_empty()) {
        pieces.push(Piece::Text {
            text: text.to_owned(),
            tokens: tokens(row),
            refusal,
        });
    }
    if row.citations().is_some() {
        pieces.push(Piece::Citations(citations::of(row)));
    }
    let called = row.tool_calls().map(calls).unwrap_or_default();
    pieces.extend(called.into_iter().map(Piece::Call));
    pieces
}

impl Piece {
    fn size(&self) -> usize {
        match self {
            Self::Thinking(text) | Self::Text { text, .. } => text.len(),
            Self::Call(call) => call.arguments.len() + 64,
            Self::Citations(cited) => 64 * (1 + cited.len()),
            Self::Details(_) => 256,
        }
    }

    fn is_of(&self, index: u64) -> bool {
        matches!(self, Self::Call(call) if call.index == index)
    }
}

/// Orders pieces.
#[derive(Debug, Default)]
pub struct Stretches {
    /// The open call.
    open: Option<(u64, Scan)>,
    /// Ended calls.
    ended: Vec<u64>,
    waiting: VecDeque<Piece>,
    bytes: usize,
}

impl Stretches {
    /// Whether the next piece can be emitted immediately.
    pub fn is_clear(&self) -> bool {
        self.waiting.is_empty() && self.is_between()
    }

    /// Whether no call is incomplete.
    fn is_between(&self) -> bool {
        let open = self.open.as_ref();
        open.is_none_or(|(_, scan)| scan.is_whole())
    }

    /// Adds a piece; `out` receives the pieces that can be emitted.
    ///
    /// # Errors
    /// `TooLarge` when the waiting pieces exceed the limit.
    pub fn add(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), PredictError> {
        let of_open = self
            .open
            .as_ref()
            .is_some_and(|(index, _)| piece.is_of(*index));
        if of_open || self.is_clear() {
            self.pass(piece, out);
            self.advance(out);
            return Ok(());
        }
        self.bytes += piece.size();
        if MAX_WAITING < self.bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("more than {MAX_WAITING} bytes arrived between two parts of one tool call"),
            ));
        }
        self.waiting.push_back(piece);
        Ok(())
    }

    /// Emits all waiting pieces at the end.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        while let Some(piece) = self.waiting.pop_front() {
            self.pass(piece, out);
            self.gather(out);
        }
        self.bytes = 0;
    }

    /// Emits waiting pieces after completed calls.
    fn advance(&mut self, out: &mut Vec<Piece>) {
        while self.is_between() {
            let Some(piece) = self.waiting.pop_front() else {
                return;
            };
            self.bytes = self.bytes.saturating_sub(piece.size());
            self.pass(piece, out);
            self.gather(out);
        }
    }

    /// Emits all pieces of the open call.
    fn gather(&mut self, out: &mut Vec<Piece>) {
        let Some((index, _)) = self.open else { return };
        let waiting = std::mem::take(&mut self.waiting);
        let (own, others): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|piece| piece.is_of(index));
        self.waiting = others;
        for piece in own {
            self.bytes = self.bytes.saturating_sub(piece.size());
            self.pass(piece, out);
        }
    }

    fn pass(&mut self, piece: Piece, out: &mut Vec<Piece>) {
        match (&piece, &mut self.open) {
            (Piece::Call(call), Some((index, scan))) if call.index == *index => {
                scan.add(&call.arguments);
            }
            (Piece::Call(call), open) => {
                if self.ended.contains(&call.index) {
                    // White space after complete arguments.
                    return;
                }
                let mut scan = Scan::default();
                scan.add(&call.arguments);
                if let Some((before, _)) = open.replace((call.index, scan)) {
                    self.ended.push(before);
                }
            }
            (_, open) => {
                if let Some((before, _)) = open.take() {
                    self.ended.push(before);
                }
            }
        }
        out.push(piece);
    }
}

/// Detects the end of a JSON object's text.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    depth: u32,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            match (self.in_string, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.in_string = !self.in_string,
                (false, b'{' | b'[') => (self.depth, self.begun) = (self.depth + 1, true),
                (false, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

/// The tokens of a row with log probabilities, in OpenAI's format. Without alternatives, the text
/// of a row counts as one token.
pub fn tokens(row: &GenerationRow<'_>) -> Vec<Value> {
    let told = row.token_logprobs().map(serde_json::from_str);
    if let Some(Ok(Value::Array(told))) = told {
        return told;
    }
    let text = row.text().unwrap_or_default();
    let told = row.logprob().map(|logprob| {
        json!({
            "token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": [],
        })
    });
    told.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(index: u64, arguments: &str) -> Piece {
        Piece::Call(CallPiece {
            index,
            arguments: arguments.to_owned(),
            ..CallPiece::default()
        })
    }

    fn text(text: &str) -> Piece {
        Piece::Text {
            text: text.to_owned(),
            tokens: Vec::new(),
            refusal: false,
        }
    }

    fn ordered(pieces: Vec<Piece>) -> Vec<Piece> {
        let (mut order, mut out) = (Stretches::default(), Vec::new());
        for piece in pieces {
            order.add(piece, &mut out).unwrap();
        }
        order.finish(&mut out);
        out
    }

    #[test]
    fn calls_in_turns_become_stretches() {
        let given = vec![
            call(0, "{\"a"),
            call(1, "{\"b"),
            text("so"),
            call(0, "\":1}"),
            call(1, "\":2}"),
        ];
        let expected = [
            call(0, "{\"a"),
            call(0, "\":1}"),
            call(1, "{\"b"),
            call(1, "\":2}"),
            text("so"),
        ];
        assert_eq!(ordered(given), expected);
    }

    #[test]
    fn calls_that_follow_one_another_do_not_wait() {
        let (mut order, mut out) = (Stretches::default(), Vec::new());
        for piece in [
            text("I look."),
            call(0, "{\"}\\\"\":"),
            call(0, "[1]}"),
            text("And"),
            call(1, "{}"),
            call(0, " "),
            text("then."),
        ] {
            order.add(piece, &mut out).unwrap();
            assert!(order.waiting.is_empty());
        }
        assert_eq!(out.len(), 6, "white space behind a call is no call");
    }

    proptest! {
        #[test]
        fn every_call_is_one_stretch_and_nothing_is_lost(
            turns in proptest::collection::vec((0..4_u64, "[a-z]{0,3}"), 0..24),
            whole in any::<bool>(),
        ) {
            let mut given: Vec<_> = turns.iter().map(|(index, said)| match index {
                3 => text(&format!("t{said}")),
                index => call(*index, &format!("{{{said}")),
            }).collect();
            if whole {
                given.extend((0..3).map(|index| call(index, "}")));
            }
            let told = ordered(given.clone());
            prop_assert_eq!(told.len(), given.len());
            for index in 0..3 {
                let own = |pieces: &[Piece]| pieces.iter().filter(|it| it.is_of(index)).cloned().collect::<Vec<_>>();
                prop_assert_eq!(own(&told), own(&given));
                let places: Vec<_> = told.iter().enumerate().filter(|(_, it)| it.is_of(index)).map(|(at, _)| at).collect();
                prop_assert!(places.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            }
        }
    }
}
