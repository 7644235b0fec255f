//! What comes back for one item, read piece by piece. Pure.

use bytes::Bytes;
use volley_types::registry::ProviderKind;
use volley_types::{FinishReason, PredictError, Usage};

use crate::provider::{self, Calls, Delta, Ending, Passages, Step, Wire};
use crate::sight::Sight;
use crate::sse::{Framing, Parser};
use crate::upstream;

/// What one read of an answer brings.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Those with something for the caller, in order.
    pub(crate) deltas: Vec<Delta>,
    /// The answer's end, where it was read.
    pub(crate) end: Option<End>,
}

impl Part {
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.end.is_none()
    }
}

/// How an answer ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) finish_reason: FinishReason,
    pub(crate) usage: Option<Usage>,
}

/// A whole completion.
///
/// # Errors
/// `UpstreamFailed` when it is none, or says that the server failed.
pub(crate) fn whole(
    wire: &Wire,
    seed: u64,
    body: &[u8],
    redact: impl Fn(&str) -> String,
) -> Result<Part, PredictError> {
    let delta = match wire.read_whole(body, &mut Calls::new(seed)) {
        Ok(Step::Delta(delta) | Step::Last(delta)) => delta,
        Ok(Step::Failed(message)) => return Err(upstream::failed(&message, redact)),
        Ok(Step::Refused(code, message)) => {
            return Err(upstream::refused(code, &message, redact));
        }
        Ok(Step::End) | Err(_) => {
            return Err(upstream::not_a_stream("JSON that is no completion"));
        }
    };
    let (mut answer, mut part) = (Answer::new(wire.clone(), seed), Part::default());
    answer.take(delta, &mut part);
    answer.end(&mut part);
    match answer.take_failure() {
        Some(failure) => Err(failure),
        None => Ok(part),
    }
}

/// An answer as it is read.
pub(crate) struct Answer {
    wire: Wire,
    parser: Parser,
    sight: Sight,
    calls: Calls,
    usage: Usage,
    finish_reason: Option<FinishReason>,
    /// Whether the body's end is known to be its own, and no cut.
    bounded: bool,
    /// Whether any of it was something that an answer has.
    found: bool,
    ended: bool,
    failure: Option<PredictError>,
}

impl Answer {
    /// `seed` makes ids of tool calls that the server does not name.
    pub(crate) fn new(wire: impl Into<Wire>, seed: u64) -> Self {
        let wire = wire.into();
        let mut calls = Calls::new(seed);
        if matches!(wire.provider, ProviderKind::Gemini | ProviderKind::Vertex) {
            calls.passages = Passages::default().of_bytes();
        }
        Self {
            parser: Parser::new(provider::format(wire.provider).framing),
            wire,
            sight: Sight::default(),
            calls,
            usage: Usage::default(),
            finish_reason: None,
            bounded: false,
            found: false,
            ended: false,
            failure: None,
        }
    }

    /// The same, of a body that is cut in another way.
    pub(crate) fn framed(self, framing: Framing) -> Self {
        let parser = Parser::new(framing);
        Self { parser, ..self }
    }

    /// The same, of a body whose end HTTP tells from a cut.
    pub(crate) fn bounded(self, bounded: bool) -> Self {
        Self { bounded, ..self }
    }

    /// Whether the answer's own end was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The failure that comes after what was read so far. The answer is of no use after it.
    pub(crate) fn take_failure(&mut self) -> Option<PredictError> {
        self.failure.take()
    }

    /// Reads a piece of the body, or its end. A failure in it is kept for after what it brings.
    pub(crate) fn read(&mut self, piece: Option<Bytes>, redact: impl Fn(&str) -> String) -> Part {
        let mut events = Vec::new();
        let at_end = piece.is_none();
        let parsed = match piece {
            Some(piece) => self.parser.push(piece, &mut events),
            None => self.parser.finish(&mut events),
        };
        let mut part = Part::default();
        for event in &events {
            let text = match event.text() {
                Ok(text) => text,
                // The last event is in pieces because the stream is.
                Err(_) if at_end => break,
                Err(error) => {
                    self.failure = Some(upstream::unreadable(error));
                    break;
                }
            };
            if let Some(piece) = self.sight.text(text) {
                self.calls.passages.add(piece);
                part.deltas.push(Delta {
                    text: Some(piece.to_owned()),
                    ..Delta::default()
                });
                continue;
            }
            if !self.event(text, at_end, &mut part, &redact) {
                break;
            }
        }
        if !self.ended && self.failure.is_none() {
            self.failure = match parsed {
                _ if at_end => self.end_of_body(&mut part),
                Err(error) => Some(upstream::unreadable(error)),
                Ok(()) => None,
            };
        }
        part
    }

    /// Reads an event, and tells whether more may follow.
    fn event(
        &mut self,
        data: &str,
        at_end: bool,
        part: &mut Part,
        redact: impl Fn(&str) -> String,
    ) -> bool {
        match self.wire.read(data, &mut self.calls) {
            Ok(Step::Delta(delta)) => {
                self.sight.learn(&self.wire, &self.calls, data, &delta);
                self.take(delta, part);
                return true;
            }
            Ok(Step::Last(delta)) => {
                self.take(delta, part);
                self.end(part);
            }
            Ok(Step::End) => self.end(part),
            Ok(Step::Failed(message)) => {
                self.failure = Some(upstream::failed(&message, redact));
            }
            Ok(Step::Refused(code, message)) => {
                self.failure = Some(upstream::refused(code, &message, redact));
            }
            // The last event is in pieces because the stream is.
            Err(_) if at_end => {}
            Err(cause) => self.failure = Some(upstream::malformed(cause)),
        }
        false
    }

    /// The connection broke: what is whole is read, and a missing end is `error`.
    pub(crate) fn break_off(&mut self, error: PredictError) -> Part {
        self.bounded = false;
        let part = self.read(None, str::to_owned);
        if !self.ended {
            self.failure = Some(error);
        }
        part
    }

    fn end_of_body(&mut self, part: &mut Part) -> Option<PredictError> {
        let is_end = match self.wire.ending() {
            Ending::Event => false,
            Ending::BodyAfterReason => self.finish_reason.is_some(),
            Ending::WholeBody => self.bounded,
        };
        if is_end {
            self.end(part);
            return self.failure.take();
        }
        Some(upstream::incomplete())
    }

    fn take(&mut self, mut delta: Delta, part: &mut Part) {
        if let Some(text) = &delta.text {
            self.calls.passages.add(text);
        }
        // Where nothing tells, it is where the text stands.
        let here = self.calls.passages.said();
        for citation in delta.citations.iter_mut().flatten() {
            let end = citation.end.or(citation.start).unwrap_or(here);
            citation.end = Some(end);
            citation.start = citation.start.or(Some(end));
        }
        provider::usage(&mut self.usage, &delta);
        self.finish_reason = delta.finish_reason.or(self.finish_reason);
        self.found |= delta.text.is_some() || delta.has_content();
        if delta.has_content() {
            part.deltas.push(delta);
        }
    }

    fn end(&mut self, part: &mut Part) {
        if self.wire.is_custom() && !self.found {
            self.failure = Some(upstream::not_found());
            return;
        }
        self.ended = true;
        part.end = Some(End {
            finish_reason: self.finish_reason.unwrap_or(FinishReason::Stop),
            usage: (self.usage != Usage::default()).then_some(self.usage),
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::ErrorCode;

    use super::*;

    const OPENAI: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ": ping\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Gr\u{fc}\u{df}e \"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{1f98a}\"},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );
    const ANTHROPIC: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Gr\u{fc}\u{df}e \u{1f98a}\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":3}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    const COHERE: &str = concat!(
        "event: message-start\ndata: {\"type\":\"message-start\",\"delta\":{\"message\":{\"content\":[]}}}\n\n",
        "event: content-delta\ndata: {\"type\":\"content-delta\",\"index\":0,\"delta\":{\"message\":{\"content\":{\"text\":\"Gr\u{fc}\u{df}e \u{1f98a}\"}}}}\n\n",
        "event: message-end\ndata: {\"type\":\"message-end\",\"delta\":{\"finish_reason\":\"MAX_TOKENS\"}}\n\n",
    );
    const OLLAMA: &str = concat!(
        "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Gr\u{fc}\u{df}e \"},\"done\":false}\n",
        "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\u{1f98a}\"},\"done\":false}\n",
        "{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"length\",\"eval_count\":3}\n",
    );
    const GEMINI: &str = concat!(
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Gr\u{fc}\u{df}e \"}]}}]}\r\n\r\n",
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\u{1f98a}\"}]},\"finishReason\":\"MAX_TOKENS\"}]}\r\n\r\n",
    );
    const STREAMS: [(ProviderKind, &str); 5] = [
        (ProviderKind::OpenAi, OPENAI),
        (ProviderKind::Anthropic, ANTHROPIC),
        (ProviderKind::Cohere, COHERE),
        (ProviderKind::Ollama, OLLAMA),
        (ProviderKind::Gemini, GEMINI),
    ];

    /// The text, whether there was an end, and the failure, of an answer in these pieces.
    fn play(provider: ProviderKind, pieces: &[&[u8]]) -> (String, bool, Option<ErrorCode>) {
        let (mut answer, mut text, mut ended) = (Answer::new(provider, 0), String::new(), false);
        let pieces = pieces
            .iter()
            .map(|piece| Some(Bytes::copy_from_slice(piece)));
        for piece in pieces.chain([None]) {
            let part = answer.read(piece, str::to_owned);
            for delta in part.deltas {
                text.push_str(&delta.text.unwrap_or_default());
            }
            ended |= part.end.is_some();
            let failure = answer.take_failure();
            if failure.is_some() || answer.has_ended() {
                assert_eq!(ended, answer.has_ended());
                return (text, ended, failure.map(|failure| failure.code));
            }
        }
        panic!("an answer ends, well or badly");
    }

    #[test]
    fn cut_anywhere_a_stream_is_incomplete_and_never_a_success() {
        for (provider, stream) in STREAMS {
            // Nothing but line ends may be missing from the end of a good one.
            let enough = stream.trim_end().len();
            for length in 0..stream.len() {
                let (text, ended, failure) = play(provider, &[&stream.as_bytes()[..length]]);
                assert!("Gr\u{fc}\u{df}e \u{1f98a}".starts_with(&text));
                let expected = (length < enough).then_some(ErrorCode::UpstreamIncomplete);
                assert_eq!(
                    (ended, failure),
                    (enough <= length, expected),
                    "at {length}"
                );
            }
        }
    }

    #[test]
    fn what_comes_in_one_piece_is_one_part() {
        let mut answer = Answer::new(ProviderKind::OpenAi, 0);
        let part = answer.read(Some(Bytes::from_static(OPENAI.as_bytes())), str::to_owned);
        assert_eq!(part.deltas.len(), 2);
        let end = part.end.unwrap();
        assert_eq!(end.finish_reason, FinishReason::Length);
        assert_eq!(end.usage.unwrap().completion_tokens, 3);
        assert!(answer.has_ended() && answer.take_failure().is_none());
    }

    #[test]
    fn a_bare_error_among_events_is_the_servers() {
        let error = "{\n  \"error\": {\n    \"message\": \"busy\"\n  }\n}\n";
        let mut answer = Answer::new(ProviderKind::Gemini, 0);
        let begun = format!("{}{error}", &GEMINI[..GEMINI.find("\r\n\r\n").unwrap() + 4]);
        let part = answer.read(Some(Bytes::from(begun)), str::to_owned);
        assert_eq!(part.deltas.len(), 1);
        assert!(answer.take_failure().unwrap().message.contains("busy"));
    }

    #[test]
    fn a_connection_that_breaks_after_the_end_has_not_failed() {
        let mut answer = Answer::new(ProviderKind::OpenAi, 0);
        let unended = OPENAI.trim_end().as_bytes();
        answer.read(Some(Bytes::from_static(unended)), str::to_owned);
        assert!(!answer.has_ended());
        assert!(answer.break_off(upstream::incomplete()).end.is_some());
        assert!(answer.has_ended() && answer.take_failure().is_none());
    }

    proptest! {
        #[test]
        fn mutated_streams_end_in_one_way_and_alike_wherever_they_are_cut(
            which in 0..STREAMS.len(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            removed in any::<prop::sample::Index>(),
            place in any::<prop::sample::Index>(),
        ) {
            let (provider, stream) = STREAMS[which];
            let mut bytes = stream.as_bytes().to_vec();
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.remove(removed.index(bytes.len()));
            let whole = play(provider, &[&bytes]);
            let (a, b) = bytes.split_at(place.index(bytes.len()));
            prop_assert_eq!(play(provider, &[a, b]), whole);
        }
    }
}
