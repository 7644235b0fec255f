//! The typed events of a streamed response. Each has a name and a sequence number; the last one
//! contains the whole response.

mod details;

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{
    Citation, Details, ErrorCode, FinishReason, GenerationRow, PredictError, Usage,
};

use super::FORMAT;
use super::output::{self, Draft, FunctionCall, Reasoning, TextExtras, merged};
use volley_dialect_kit::answer::{self, failure};
use volley_dialect_kit::chat;
use volley_dialect_kit::citations;
use volley_dialect_kit::pieces::{self, CallPiece};
use volley_dialect_kit::refusal::explanation;
use volley_dialect_kit::sse::{self, Events, json_string, named_event};

/// Maximum text of one response in bytes. The limit exists because the last event repeats the text.
const MAX_BYTES: usize = 64 << 20;
/// Status of an unfinished item.
const OPEN: &str = "in_progress";

/// Writes the events of one response.
#[derive(Debug)]
pub(super) struct ResponseEvents {
    draft: Draft,
    /// Sequence number of the next event.
    sequence: u64,
    started: bool,
    /// Items in the order of the output.
    items: Vec<Item>,
    /// Index of the open text or reasoning item.
    open: Option<usize>,
    /// Item indices of the calls, by the index of the call.
    calls: Vec<usize>,
    bytes: usize,
    usage: Option<Usage>,
    reason: Option<FinishReason>,
    /// The complete response for a caller that does not stream.
    response: Option<Value>,
    finished: bool,
}

#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    text: String,
    /// Whether `response.content_part.added` was sent.
    parted: bool,
    /// `in_progress` until the item is finished.
    status: &'static str,
}

#[derive(Debug)]
enum Kind {
    Message(TextExtras),
    Reasoning(Reasoning),
    Call {
        call_id: String,
        name: String,
    },
    /// A complete item of a type that only its provider defines.
    Other(Value),
}

impl ResponseEvents {
    pub(super) fn new(draft: Draft) -> Self {
        Self {
            draft,
            sequence: 0,
            started: false,
            items: Vec::new(),
            open: None,
            calls: Vec::new(),
            bytes: 0,
            usage: None,
            reason: None,
            response: None,
            finished: false,
        }
    }

    fn start(&mut self, out: &mut BytesMut) {
        if !self.started {
            self.started = true;
            let response = self.draft.begun();
            self.event("response.created", json!({ "response": response }), out);
            let response = self.draft.begun();
            self.event("response.in_progress", json!({ "response": response }), out);
        }
    }

    /// The response for a caller that does not stream.
    ///
    /// # Errors
    /// The error of the first failed item; `Internal` if there is no terminal row.
    pub(super) fn whole(mut self, batches: &[RecordBatch]) -> Result<Value, PredictError> {
        let mut written = BytesMut::new();
        for batch in batches {
            self.batch(batch, &mut written)?;
            written.clear();
        }
        self.response.ok_or_else(sse::silent_end)
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) -> Result<(), PredictError> {
        self.start(out);
        let details = row.details().map(Details::from_json).unwrap_or_default();
        let own = details.format.as_deref() == Some(FORMAT);
        if let (Some(id), None, true) = (&details.item, &details.signature, own) {
            self.continued(|_| false, out);
            self.begin_as(Kind::Reasoning(Reasoning::default()), id.clone(), out);
        }
        if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
            self.reasoning(thinking, details.summary, out)?;
        }
        self.details(&details, own, out);
        if let Some(text) = row.text().filter(|text| !text.is_empty()) {
            let place = self.message(details.refusal, out);
            let (name, told) = match details.refusal {
                true => ("response.refusal.delta", None),
                false => ("response.output_text.delta", Some(answer::tokens(row))),
            };
            self.delta(name, place, text, told, out)?;
        }
        for citation in citations::of(row) {
            self.citation(&citation, out);
        }
        if let Some(told) = explanation(&details) {
            let place = self.message(true, out);
            self.delta("response.refusal.delta", place, told, None, out)?;
        }
        let calls = row.tool_calls().map(pieces::calls);
        for call in calls.unwrap_or_default() {
            self.call(call, out)?;
        }
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            self.end(&details, out);
        }
        Ok(())
    }

    fn reasoning(
        &mut self,
        text: &str,
        summary: bool,
        out: &mut BytesMut,
    ) -> Result<(), PredictError> {
        let place = self.continued(|kind| matches!(kind, Kind::Reasoning(_)), out);
        let begun = Kind::Reasoning(Reasoning::default());
        let place = place.unwrap_or_else(|| self.begin(begun, out));
        let item = &mut self.items[place];
        if let (Kind::Reasoning(told), false) = (&mut item.kind, item.parted) {
            told.summary = summary;
            item.parted = true;
            let id = item.id.clone();
            let (name, index, kind) = match summary {
                true => (
                    "response.reasoning_summary_part.added",
                    "summary_index",
                    "summary_text",
                ),
                false => (
                    "response.content_part.added",
                    "content_index",
                    "reasoning_text",
                ),
            };
            let mut body = json!({
                "item_id": id, "output_index": place, "part": { "type": kind, "text": "" },
            });
            body[index] = 0.into();
            self.event(name, body, out);
        }
        let summed = matches!(&self.items[place].kind, Kind::Reasoning(told) if told.summary);
        let name = match summed {
            true => "response.reasoning_summary_text.delta",
            false => "response.reasoning_text.delta",
        };
        self.delta(name, place, text, None, out)
    }

    /// The index of the open item, if it is of the requested kind. Closes an open item of another
    /// kind.
    fn continued(&mut self, same: impl Fn(&Kind) -> bool, out: &mut BytesMut) -> Option<usize> {
        let place = self.open?;
        if same(&self.items[place].kind) {
            return Some(place);
        }
        self.open = None;
        self.done(place, "completed", out);
        None
    }

    /// The index of the open message, or of a new one.
    fn message(&mut self, refusal: bool, out: &mut BytesMut) -> usize {
        let same = |kind: &Kind| {
            let Kind::Message(beside) = kind else {
                return false;
            };
            beside.refusal == refusal
        };
        let place = self.continued(same, out);
        place.unwrap_or_else(|| self.begin_message(refusal, out))
    }

    fn citation(&mut self, citation: &Citation, out: &mut BytesMut) {
        let place = self.message(false, out);
        // Annotations count from the start of their own item, citations from the start of the
        // answer.
        let before = self.items[..place].iter();
        let before = before.filter(|item| matches!(item.kind, Kind::Message(_)));
        let before: usize = before.map(|item| item.text.chars().count()).sum();
        let annotation = citations::of_response(citation, u32::try_from(before).unwrap_or(0));
        let item = &mut self.items[place];
        let Kind::Message(beside) = &mut item.kind else {
            return;
        };
        let body = json!({
            "item_id": item.id, "output_index": place, "content_index": 0,
            "annotation_index": beside.annotations.len(), "annotation": annotation,
        });
        beside.annotations.push(annotation);
        self.event("response.output_text.annotation.added", body, out);
    }

    fn begin_message(&mut self, refusal: bool, out: &mut BytesMut) -> usize {
        let beside = TextExtras {
            refusal,
            ..TextExtras::default()
        };
        self.begin(Kind::Message(beside), out)
    }

    /// Adds an item. A message or reasoning item becomes the open item.
    fn begin(&mut self, kind: Kind, out: &mut BytesMut) -> usize {
        let name = match &kind {
            Kind::Message(_) => "msg",
            Kind::Reasoning(_) => "rs",
            Kind::Call { .. } => "fc",
            Kind::Other(_) => "item",
        };
        let id = self.draft.item_id(name, self.items.len());
        self.begin_as(kind, id, out)
    }

    /// Adds an item with the given id.
    fn begin_as(&mut self, kind: Kind, id: String, out: &mut BytesMut) -> usize {
        let place = self.items.len();
        let part = match &kind {
            Kind::Message(beside) => Some(output::text_part("", beside.clone())),
            _ => None,
        };
        let goes_on = matches!(kind, Kind::Message(_) | Kind::Reasoning(_));
        let item = Item {
            id: id.clone(),
            kind,
            text: String::new(),
            parted: part.is_some(),
            status: OPEN,
        };
        let mut shown = item.show();
        if goes_on {
            shown["content"] = json!([]);
        }
        self.items.push(item);
        let body = json!({ "output_index": place, "item": shown });
        self.event("response.output_item.added", body, out);
        self.open = goes_on.then_some(place).or(self.open);
        if let Some(part) = part {
            let body = json!({
                "item_id": id, "output_index": place, "content_index": 0, "part": part,
            });
            self.event("response.content_part.added", body, out);
        }
        place
    }

    /// Adds a delta of a call. Deltas with the same index belong to one call. Calls stay open until
    /// the end, because they may interleave.
    fn call(&mut self, call: CallPiece, out: &mut BytesMut) -> Result<(), PredictError> {
        // A new index may only be the next one, because a gap would be a call that was never made.
        let index = usize::try_from(call.index).unwrap_or(usize::MAX);
        let place = match self.calls.get(index.min(self.calls.len())) {
            Some(place) => *place,
            None => {
                self.continued(|_| false, out);
                let place = self.items.len();
                let call_id = call.id.unwrap_or_else(|| self.draft.call_id(place));
                let call_id = match &call.signature {
                    Some(signature) => chat::signed_id(&call_id, signature),
                    None => call_id,
                };
                let name = call.name.unwrap_or_default();
                self.calls.push(place);
                self.begin(Kind::Call { call_id, name }, out)
            }
        };
        if call.arguments.is_empty() {
            return Ok(());
        }
        let name = "response.function_call_arguments.delta";
        self.delta(name, place, &call.arguments, None, out)
    }

    /// Adds text to an item. `told` has the log probabilities; only messages have them.
    fn delta(
        &mut self,
        name: &str,
        place: usize,
        text: &str,
        told: Option<Vec<Value>>,
        out: &mut BytesMut,
    ) -> Result<(), PredictError> {
        self.bytes += text.len();
        if MAX_BYTES < self.bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("the response is over the limit of {MAX_BYTES} bytes"),
            ));
        }
        let item = &mut self.items[place];
        item.text.push_str(text);
        let head = format!(
            "event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":{},\"item_id\":\"{}\",\
             \"output_index\":{place},",
            self.sequence, item.id
        );
        self.sequence += 1;
        out.put_slice(head.as_bytes());
        match &item.kind {
            Kind::Reasoning(told) if told.summary => out.put_slice(b"\"summary_index\":0,"),
            Kind::Message(_) | Kind::Reasoning(_) => out.put_slice(b"\"content_index\":0,"),
            Kind::Call { .. } | Kind::Other(_) => {}
        }
        out.put_slice(b"\"delta\":");
        json_string(text, out);
        match (told, &mut item.kind) {
            (Some(told), Kind::Message(beside)) if !told.is_empty() => {
                let json = Value::from(told.as_slice());
                out.put_slice(format!(",\"logprobs\":{json}").as_bytes());
                beside.logprobs.extend(told);
            }
            (Some(_), _) => out.put_slice(b",\"logprobs\":[]"),
            (None, _) => {}
        }
        out.put_slice(b"}\n\n");
        Ok(())
    }

    /// Closes an item.
    fn done(&mut self, place: usize, status: &'static str, out: &mut BytesMut) {
        let item = &mut self.items[place];
        if item.status != OPEN {
            return;
        }
        item.status = status;
        let lacks = status == "completed" && item.text.trim().is_empty();
        if let (Kind::Call { .. }, true) = (&item.kind, lacks) {
            // Missing arguments mean an empty object, unless the end of the answer cut them off.
            item.text = "{}".to_owned();
        }
        let shown = item.show();
        let at = json!({ "item_id": item.id, "output_index": place });
        let told = match &item.kind {
            Kind::Message(beside) if beside.refusal => Some((
                "response.refusal.done",
                json!({ "content_index": 0, "refusal": item.text }),
            )),
            Kind::Message(beside) => Some((
                "response.output_text.done",
                json!({
                    "content_index": 0, "text": item.text, "logprobs": beside.logprobs,
                }),
            )),
            Kind::Reasoning(told) if told.summary && item.parted => Some((
                "response.reasoning_summary_text.done",
                json!({ "summary_index": 0, "text": item.text }),
            )),
            Kind::Reasoning(_) if item.parted => Some((
                "response.reasoning_text.done",
                json!({ "content_index": 0, "text": item.text }),
            )),
            Kind::Reasoning(_) | Kind::Other(_) => None,
            Kind::Call { name, .. } => Some((
                "response.function_call_arguments.done",
                json!({ "name": name, "arguments": item.text }),
            )),
        };
        let parted = item.parted;
        if let Some((name, body)) = told {
            self.event(name, merged(at.clone(), body), out);
        }
        if let Some(part) = shown.pointer("/content/0").filter(|_| parted) {
            let body = merged(at, json!({ "content_index": 0, "part": part }));
            self.event("response.content_part.done", body, out);
        } else if let Some(part) = shown.pointer("/summary/0").filter(|_| parted) {
            let body = merged(at, json!({ "summary_index": 0, "part": part }));
            self.event("response.reasoning_summary_part.done", body, out);
        }
        let body = json!({ "output_index": place, "item": shown });
        self.event("response.output_item.done", body, out);
    }

    fn end(&mut self, details: &Details, out: &mut BytesMut) {
        if self.items.is_empty() {
            self.begin_message(false, out);
        }
        let status = output::status(self.reason);
        for place in 0..self.items.len() {
            self.done(place, status, out);
        }
        let output = self.items.iter().map(Item::show).collect();
        let response = self.draft.ended(output, self.reason, self.usage, details);
        self.response = Some(response.clone());
        let name = match status {
            "completed" => "response.completed",
            _ => "response.incomplete",
        };
        self.event(name, json!({ "response": response }), out);
        self.finished = true;
    }

    fn event(&mut self, name: &str, body: Value, out: &mut BytesMut) {
        let head = json!({ "type": name, "sequence_number": self.sequence });
        self.sequence += 1;
        let body = merged(head, body);
        named_event(name, &body, out);
    }
}

impl Item {
    fn show(&self) -> Value {
        let status = self.status;
        match &self.kind {
            Kind::Message(beside) => output::message(&self.id, status, &self.text, beside.clone()),
            Kind::Reasoning(told) => output::reasoning(&self.id, &self.text, told),
            Kind::Other(item) => item.clone(),
            Kind::Call { call_id, name } => output::function_call(&FunctionCall {
                id: &self.id,
                call_id,
                name,
                arguments: &self.text,
                status,
            }),
        }
    }
}

impl Events for ResponseEvents {
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
        self.start(out);
        for item in self.items.iter_mut().filter(|item| item.status == OPEN) {
            item.status = "incomplete";
        }
        let output = self.items.iter().map(Item::show).collect();
        let response = self.draft.failed(output, error);
        self.event("response.failed", json!({ "response": response }), out);
    }
}
