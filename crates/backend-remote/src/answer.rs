//! What comes back for one item, read piece by piece. Pure.

use bytes::Bytes;
use serde_json::Value;
use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::citations::Passages;
use volley_provider_kit::framing::{Framing, StreamEnd};
use volley_provider_kit::step::{self, Delta, Step};
use volley_provider_kit::wire::Wire;
use volley_remote_http::sse::Parser;
use volley_remote_http::upstream;
use volley_types::{Details, FinishReason, PredictError, Usage};

use crate::answer_check::AnswerCheck;
use crate::delta_template::DeltaTemplate;

/// What one read of an answer brings.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Those with something for the caller, in order.
    pub(crate) deltas: Vec<Delta>,
    /// What is known of the prompt in front of the first of them.
    pub(crate) prompt: Option<Usage>,
    /// The answer's end, where it was read.
    pub(crate) end: Option<UpstreamEnd>,
}

impl Part {
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.end.is_none()
    }

    /// Keeps the whole answer as its server gave it, for a caller of the same dialect.
    pub(crate) fn keep(&mut self, format: &str, body: &[u8]) {
        if let (Some(end), Ok(answer)) = (&mut self.end, serde_json::from_slice(body)) {
            end.details.format = Some(format.to_owned());
            end.details.answer = Some(answer);
        }
    }
}

/// How an answer ended well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpstreamEnd {
    pub(crate) finish_reason: FinishReason,
    /// `None` where the server told none.
    pub(crate) usage: Option<Usage>,
    /// What only some dialects have a place for.
    pub(crate) details: Details,
}

/// A whole completion.
///
/// # Errors
/// `UpstreamFailed` when it is none, or says that the server failed.
pub(crate) fn whole(
    wire: &Wire,
    check: AnswerCheck,
    seed: u64,
    body: &[u8],
    redact: impl Fn(&str) -> String,
) -> Result<Part, PredictError> {
    let (mut answer, mut part) = (UpstreamAnswer::new(wire.clone(), seed), Part::default());
    let deltas = match wire.read_whole(body, &mut answer.calls) {
        Ok(Step::Delta(delta) | Step::Last(delta)) => vec![delta],
        Ok(Step::All(deltas)) => deltas,
        Ok(Step::Failed(message)) => return Err(upstream::failed(&message, redact)),
        Ok(Step::Refused(code, message)) => {
            return Err(upstream::refused(code, &message, redact));
        }
        Ok(Step::End) | Err(_) => {
            return Err(upstream::not_a_stream("JSON without a completion"));
        }
    };
    answer.check = check;
    for delta in deltas {
        answer.take(delta, &mut part);
    }
    if answer.failure.is_none() {
        answer.end(&mut part);
    }
    match answer.take_failure() {
        Some(failure) => Err(failure),
        None => Ok(part),
    }
}

/// An answer as it is read.
pub(crate) struct UpstreamAnswer {
    wire: Wire,
    parser: Parser,
    template: DeltaTemplate,
    calls: ToolCallAccumulator,
    check: AnswerCheck,
    /// `None` until some is told.
    usage: Option<Usage>,
    details: Details,
    /// Whether something for the caller was read.
    begun: bool,
    /// Whether tools of the caller were called.
    called: bool,
    finish_reason: Option<FinishReason>,
    /// Whether the body's end is known to be its own, and no cut.
    bounded: bool,
    /// Whether any of it was something that an answer has.
    found: bool,
    ended: bool,
    failure: Option<PredictError>,
}

impl UpstreamAnswer {
    /// `seed` makes ids of tool calls that the server does not name.
    pub(crate) fn new(wire: impl Into<Wire>, seed: u64) -> Self {
        let wire = wire.into();
        let mut calls = ToolCallAccumulator::new(seed);
        if wire.provider.counts_bytes {
            calls.passages = Passages::default().of_bytes();
        }
        Self {
            parser: Parser::new(wire.provider.framing),
            wire,
            template: DeltaTemplate::default(),
            calls,
            check: AnswerCheck::default(),
            usage: None,
            details: Details::default(),
            begun: false,
            called: false,
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

    /// The same, of which that is expected.
    pub(crate) fn checked_by(self, check: AnswerCheck) -> Self {
        Self { check, ..self }
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
            if let Some(piece) = self.template.text(text) {
                self.calls.passages.add(piece);
                if let Err(failure) = self.check.said(piece) {
                    self.failure = Some(failure);
                    break;
                }
                self.begun = true;
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
                self.template.learn(&self.wire, &self.calls, data, &delta);
                self.take(delta, part);
                return self.failure.is_none();
            }
            Ok(Step::All(deltas)) => {
                deltas.into_iter().for_each(|delta| self.take(delta, part));
                return true;
            }
            Ok(Step::Last(delta)) => {
                self.take(delta, part);
                if self.failure.is_none() {
                    self.end(part);
                }
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

    /// Whether the answer has told why it ends: it is whole, even if its terminator never comes.
    pub(crate) fn has_reason(&self) -> bool {
        self.finish_reason.is_some()
    }

    fn end_of_body(&mut self, part: &mut Part) -> Option<PredictError> {
        let is_end = match self.wire.ending() {
            StreamEnd::Event | StreamEnd::BodyAfterReason => self.has_reason(),
            StreamEnd::WholeBody => self.bounded,
        };
        self.details.unterminated = self.wire.ending() == StreamEnd::Event;
        if is_end {
            self.end(part);
            return self.failure.take();
        }
        Some(upstream::incomplete())
    }

    fn take(&mut self, mut delta: Delta, part: &mut Part) {
        if let Err(failure) = self.check.apply(&mut delta) {
            self.failure = Some(failure);
            return;
        }
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
        if delta.has_usage() || self.usage.is_some() {
            step::usage(self.usage.get_or_insert_default(), &delta);
        }
        if let Some(end) = delta.end.take() {
            self.keep(*end);
        }
        self.finish_reason = delta.finish_reason.or(self.finish_reason);
        self.found |= delta.text.is_some() || delta.has_content();
        self.called |= delta.tool_calls.is_some();
        if delta.has_content() {
            if !std::mem::replace(&mut self.begun, true) {
                part.prompt = self.usage.filter(|usage| 0 < usage.prompt_tokens);
                self.record_first_token(&mut delta);
            }
            part.deltas.push(delta);
        }
    }

    /// What a server tells of the usage in front of its answer goes with the first row.
    fn record_first_token(&self, delta: &mut Delta) {
        if let (Some(usage), Some(format)) = (&self.details.usage, &self.details.format) {
            let details = delta.details();
            details.format = Some(format.clone());
            details.usage = Some(usage.clone());
        }
    }

    /// Keeps what the last row tells. What was told before stays where it is not told again.
    fn keep(&mut self, end: Details) {
        let kept = &mut self.details;
        kept.format = end.format.or(kept.format.take());
        kept.stop_sequence = end.stop_sequence.or(kept.stop_sequence.take());
        kept.stop_reason = end.stop_reason.or(kept.stop_reason.take());
        kept.stop_details = end.stop_details.or(kept.stop_details.take());
        kept.usage = end.usage.or(kept.usage.take());
        kept.answer = end.answer.or(kept.answer.take());
        kept.fields = match (kept.fields.take(), end.fields) {
            (Some(Value::Object(mut fields)), Some(Value::Object(more))) => {
                fields.extend(more);
                Some(fields.into())
            }
            (before, more) => more.or(before),
        };
    }

    fn end(&mut self, part: &mut Part) {
        if self.wire.is_custom() && !self.found {
            self.failure = Some(upstream::not_found());
            return;
        }
        if let Some(rest) = self.calls.rest() {
            let rest = Delta {
                tool_calls: Some(rest),
                ..Delta::default()
            };
            self.take(rest, part);
            if self.failure.is_some() {
                return;
            }
        }
        // Some servers say `stop` where they call tools.
        let finish_reason = match self.finish_reason {
            None | Some(FinishReason::Stop) if self.called => FinishReason::ToolCalls,
            reason => reason.unwrap_or(FinishReason::Stop),
        };
        if let Err(failure) = self.check.finish(finish_reason) {
            self.failure = Some(failure);
            return;
        }
        self.ended = true;
        part.end = Some(UpstreamEnd {
            finish_reason,
            usage: self.usage,
            details: std::mem::take(&mut self.details),
        });
    }
}

#[cfg(test)]
mod tests;
