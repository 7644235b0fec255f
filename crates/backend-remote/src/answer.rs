//! Reads the answer to one item incrementally. Pure.

use bytes::Bytes;
use serde_json::{Value, json};
use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::citations::Passages;
use volley_provider_kit::framing::{Framing, StreamEnd};
use volley_provider_kit::step::{self, Delta, Step};
use volley_provider_kit::wire::Wire;
use volley_remote_http::sse::Parser;
use volley_remote_http::upstream;
use volley_types::{Details, FinishReason, PredictError, Usage, WARNING};

use crate::answer_check::AnswerCheck;
use crate::delta_template::DeltaTemplate;

/// The content of one chunk of an answer.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Deltas with content for the caller, in order.
    pub(crate) deltas: Vec<Delta>,
    /// Usage of the prompt, before the first delta.
    pub(crate) prompt: Option<Usage>,
    /// The end of the answer, if it was read.
    pub(crate) end: Option<UpstreamEnd>,
}

impl Part {
    /// Whether the part is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.end.is_none()
    }

    /// Keeps the whole body for callers of the same dialect.
    pub(crate) fn keep(&mut self, format: &str, body: &[u8]) {
        if let (Some(end), Ok(answer)) = (&mut self.end, serde_json::from_slice(body)) {
            end.details.format = Some(format.to_owned());
            end.details.answer = Some(answer);
        }
    }
}

/// The end of a complete answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpstreamEnd {
    pub(crate) finish_reason: FinishReason,
    /// `None` if the server did not report it.
    pub(crate) usage: Option<Usage>,
    /// Details that only some dialects can express.
    pub(crate) details: Details,
}

/// Reads a whole completion.
///
/// # Errors
/// `UpstreamFailed` if it is not a completion or does not pass `check`; otherwise the error that it
/// reports.
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
        Ok(Step::Exhausted(message)) => return Err(upstream::exhausted(&message, redact)),
        Ok(Step::End) | Err(_) => {
            return Err(upstream::unexpected("other JSON", "a completion"));
        }
    };
    answer.check = check;
    for delta in deltas {
        answer.take(delta, &mut part);
        if answer.failure.is_some() {
            break;
        }
    }
    if answer.failure.is_none() {
        answer.end(&mut part);
    }
    match answer.take_failure() {
        Some(failure) => Err(failure),
        None => Ok(part),
    }
}

/// State of an answer while it is read.
pub(crate) struct UpstreamAnswer {
    wire: Wire,
    parser: Parser,
    template: DeltaTemplate,
    calls: ToolCallAccumulator,
    check: AnswerCheck,
    /// `None` until the server reports it.
    usage: Option<Usage>,
    details: Details,
    /// Whether content for the caller was read.
    begun: bool,
    /// Whether tools of the caller were called.
    called: bool,
    finish_reason: Option<FinishReason>,
    /// Whether the end of the body is distinguishable from an abort.
    bounded: bool,
    /// Whether any value of an answer was found.
    found: bool,
    ended: bool,
    failure: Option<PredictError>,
}

impl UpstreamAnswer {
    /// `seed` is part of the ids of tool calls that the server sends without ids.
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

    /// Sets another framing.
    pub(crate) fn framed(self, framing: Framing) -> Self {
        let parser = Parser::new(framing);
        Self { parser, ..self }
    }

    /// Sets the checks of the answer.
    pub(crate) fn checked_by(self, check: AnswerCheck) -> Self {
        Self { check, ..self }
    }

    /// Sets whether the end of the body is distinguishable from an abort.
    pub(crate) fn bounded(self, bounded: bool) -> Self {
        Self { bounded, ..self }
    }

    /// Whether the end of the answer was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the failure that follows the parts that were read. The answer is unusable after it.
    pub(crate) fn take_failure(&mut self) -> Option<PredictError> {
        self.failure.take()
    }

    /// Reads a chunk of the body, or its end (`None`). A failure is kept until the returned part is
    /// consumed; see [`Self::take_failure`].
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
                // The stream was aborted inside this event.
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

    /// Reads an event and returns whether more may follow.
    fn event(
        &mut self,
        data: &str,
        at_end: bool,
        part: &mut Part,
        redact: impl Fn(&str) -> String,
    ) -> bool {
        match self.wire.read(data, &mut self.calls) {
            Ok(Step::Delta(delta)) => {
                // Otherwise each delta is checked.
                if self.check.is_plain() {
                    self.template.learn(&self.wire, &self.calls, data, &delta);
                }
                self.take(delta, part);
                return self.failure.is_none();
            }
            Ok(Step::All(deltas)) => {
                for delta in deltas {
                    self.take(delta, part);
                    if self.failure.is_some() {
                        return false;
                    }
                }
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
            Ok(Step::Exhausted(message)) => {
                self.failure = Some(upstream::exhausted(&message, redact));
            }
            // The stream was aborted inside this event.
            Err(_) if at_end => {}
            Err(cause) => self.failure = Some(upstream::malformed(cause)),
        }
        false
    }

    /// Ends an answer after its connection broke. Complete events are read; without an end the
    /// failure is `error`.
    pub(crate) fn break_off(&mut self, error: PredictError) -> Part {
        self.bounded = false;
        let part = self.read(None, str::to_owned);
        if !self.ended {
            self.failure = Some(error);
        }
        part
    }

    /// Whether the answer has a finish reason. It is then complete, even without its final event.
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
        if self.failure.is_some() {
            return;
        }
        if let Err(failure) = self.check.apply(&mut delta) {
            self.failure = Some(failure);
            return;
        }
        if let Some(text) = &delta.text {
            self.calls.passages.add(text);
        }
        // The default position of a citation is the current one.
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
        // The content before it is delivered first.
        let unusable = delta.unusable.take();
        self.failure = unusable.map(|why| upstream::unusable(&why));
        if delta.has_content() {
            if !std::mem::replace(&mut self.begun, true) {
                part.prompt = self.usage.filter(|usage| 0 < usage.prompt_tokens);
                self.record_first_token(&mut delta);
                self.warn_first(&mut delta);
            }
            part.deltas.push(delta);
        }
    }

    /// Adds usage that the server reports before its answer to the first row.
    fn record_first_token(&self, delta: &mut Delta) {
        if let (Some(usage), Some(format)) = (&self.details.usage, &self.details.format) {
            let details = delta.details();
            details.format = Some(format.clone());
            details.usage = Some(usage.clone());
        }
    }

    /// Adds the warning of the end to the first row, so that it can be a header of a stream.
    fn warn_first(&self, delta: &mut Delta) {
        let fields = self.details.fields.as_ref();
        if let Some(warning) = fields.and_then(|fields| fields.get(WARNING)) {
            let fields = delta.details().fields.get_or_insert_with(|| json!({}));
            fields[WARNING] = warning.clone();
        }
    }

    /// Merges details of the last row. Newer values take precedence.
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
        let is_cut = matches!(
            self.finish_reason,
            Some(FinishReason::Length | FinishReason::ContentFilter)
        );
        // The cut may come before a name.
        if !is_cut && self.calls.lacks_name() {
            self.failure = Some(upstream::unusable("it has a call without a name"));
            return;
        }
        if let Some(rest) = self.calls.rest(is_cut) {
            let rest = Delta {
                tool_calls: Some(rest),
                ..Delta::default()
            };
            self.take(rest, part);
            if self.failure.is_some() {
                return;
            }
        }
        // Some servers report `stop` for tool calls.
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
