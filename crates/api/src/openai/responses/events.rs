//! The typed events of a streamed response. Each has a name and a number; the last has the whole
//! response.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};
use volley_types::{Citation, ErrorCode, FinishReason, GenerationRow, PredictError, Usage};

use super::output::{self, Beside, Draft, FunctionCall};
use crate::answer::{self, failure};
use crate::citations;
use crate::openai::now;
use crate::sse::{Events, json_string, named_event};

/// The most text of one response, which its last event says once more.
const MAX_BYTES: usize = 64 << 20;
/// The status of an item that is not done.
const OPEN: &str = "in_progress";

/// Writes the events of one response.
#[derive(Debug)]
pub(super) struct ResponseEvents {
    draft: Draft,
    /// The number of the next event.
    sequence: u64,
    started: bool,
    /// Items in the order of the output.
    items: Vec<Item>,
    /// The place of the text or thinking that goes on.
    open: Option<usize>,
    /// The places of the calls, by their index among calls.
    calls: Vec<usize>,
    bytes: usize,
    usage: Usage,
    reason: Option<FinishReason>,
    finished: bool,
}

#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    text: String,
    /// `in_progress` until it is done.
    status: &'static str,
}

#[derive(Debug)]
enum Kind {
    Message(Beside),
    Reasoning,
    Call { call_id: String, name: String },
}

/// A tool call's delta in the form of a chat completion.
#[derive(Deserialize)]
struct Delta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
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
            usage: Usage::default(),
            reason: None,
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

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) -> Result<(), PredictError> {
        self.start(out);
        if let Some(thinking) = row.thinking().filter(|text| !text.is_empty()) {
            let place = self.continued(|kind| matches!(kind, Kind::Reasoning), out);
            let place = place.unwrap_or_else(|| self.begin(Kind::Reasoning, out));
            self.delta("response.reasoning_text.delta", place, thinking, None, out)?;
        }
        if let Some(text) = row.text().filter(|text| !text.is_empty()) {
            let place = self.message(out);
            let told = Some(answer::tokens(row));
            self.delta("response.output_text.delta", place, text, told, out)?;
        }
        for citation in citations::of(row) {
            self.citation(&citation, out);
        }
        let calls = row.tool_calls().map(serde_json::from_str::<Vec<Delta>>);
        for call in calls.and_then(Result::ok).unwrap_or_default() {
            self.call(call, out)?;
        }
        if let Some(told) = row.usage() {
            self.usage += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if row.last() {
            self.end(out);
        }
        Ok(())
    }

    /// The item that goes on, where it is of that kind; one of another kind is closed.
    fn continued(&mut self, same: impl Fn(&Kind) -> bool, out: &mut BytesMut) -> Option<usize> {
        let place = self.open?;
        if same(&self.items[place].kind) {
            return Some(place);
        }
        self.open = None;
        self.done(place, "completed", out);
        None
    }

    /// The message that goes on, or a new one.
    fn message(&mut self, out: &mut BytesMut) -> usize {
        let place = self.continued(|kind| matches!(kind, Kind::Message(_)), out);
        place.unwrap_or_else(|| self.begin_message(out))
    }

    fn citation(&mut self, citation: &Citation, out: &mut BytesMut) {
        let place = self.message(out);
        // Its place is told within its own item.
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

    fn begin_message(&mut self, out: &mut BytesMut) -> usize {
        self.begin(Kind::Message(Beside::default()), out)
    }

    /// Adds an item; one of text is the one that goes on.
    fn begin(&mut self, kind: Kind, out: &mut BytesMut) -> usize {
        let place = self.items.len();
        let (name, part) = match &kind {
            Kind::Message(_) => ("msg", Some(output::text_part("", Beside::default()))),
            Kind::Reasoning => ("rs", Some(json!({ "type": "reasoning_text", "text": "" }))),
            Kind::Call { .. } => ("fc", None),
        };
        let item = Item {
            id: self.draft.item_id(name, place),
            kind,
            text: String::new(),
            status: OPEN,
        };
        let (id, mut shown) = (item.id.clone(), item.show());
        if part.is_some() {
            shown["content"] = json!([]);
        }
        self.items.push(item);
        let body = json!({ "output_index": place, "item": shown });
        self.event("response.output_item.added", body, out);
        if let Some(part) = part {
            self.open = Some(place);
            let body = json!({
                "item_id": id, "output_index": place, "content_index": 0, "part": part,
            });
            self.event("response.content_part.added", body, out);
        }
        place
    }

    /// Deltas of one index are one call. Calls stay open to the end, as they may interleave.
    fn call(&mut self, delta: Delta, out: &mut BytesMut) -> Result<(), PredictError> {
        let function = delta.function.unwrap_or_default();
        let index = match delta.index {
            // No more than one ahead: a hole would be a call that nobody made.
            Some(index) => index.min(self.calls.len()),
            None if delta.id.is_some() => self.calls.len(),
            None => self.calls.len().saturating_sub(1),
        };
        let place = match self.calls.get(index) {
            Some(place) => *place,
            None => {
                self.continued(|_| false, out);
                let place = self.items.len();
                let call_id = delta.id.unwrap_or_else(|| self.draft.call_id(place));
                let name = function.name.unwrap_or_default();
                self.calls.push(place);
                self.begin(Kind::Call { call_id, name }, out)
            }
        };
        match function.arguments.filter(|text| !text.is_empty()) {
            Some(arguments) => {
                let name = "response.function_call_arguments.delta";
                self.delta(name, place, &arguments, None, out)
            }
            None => Ok(()),
        }
    }

    /// More text of an item. `told` is there for text alone.
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
        if !matches!(item.kind, Kind::Call { .. }) {
            out.put_slice(b"\"content_index\":0,");
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
        let shown = item.show();
        let at = json!({ "item_id": item.id, "output_index": place });
        let (name, body) = match &item.kind {
            Kind::Message(beside) => (
                "response.output_text.done",
                json!({
                    "content_index": 0, "text": item.text, "logprobs": beside.logprobs,
                }),
            ),
            Kind::Reasoning => (
                "response.reasoning_text.done",
                json!({ "content_index": 0, "text": item.text }),
            ),
            Kind::Call { name, .. } => (
                "response.function_call_arguments.done",
                json!({ "name": name, "arguments": item.text }),
            ),
        };
        self.event(name, merged(at.clone(), body), out);
        if let Some(part) = shown.pointer("/content/0") {
            let body = merged(at, json!({ "content_index": 0, "part": part }));
            self.event("response.content_part.done", body, out);
        }
        let body = json!({ "output_index": place, "item": shown });
        self.event("response.output_item.done", body, out);
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.items.is_empty() {
            self.begin_message(out);
        }
        let status = output::status(self.reason);
        for place in 0..self.items.len() {
            self.done(place, status, out);
        }
        let output = self.items.iter().map(Item::show).collect();
        let response = self.draft.ended(output, self.reason, self.usage, now());
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

/// Both objects' fields.
fn merged(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            one.extend(other);
            Value::Object(one)
        }
        (one, _) => one,
    }
}

impl Item {
    fn show(&self) -> Value {
        let status = self.status;
        match &self.kind {
            Kind::Message(beside) => output::message(&self.id, status, &self.text, beside.clone()),
            Kind::Reasoning => output::reasoning(&self.id, &self.text),
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
