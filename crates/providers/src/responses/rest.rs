//! What the deltas of a streamed response did not bring. The events that end a part, an item or the
//! response repeat it whole, and some servers send nothing else.

use serde_json::Value;
use serde_json::value::RawValue;
use volley_provider_kit::blocks::arguments_text;
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::{annotation, some};
use volley_provider_kit::parts::PartKind;
use volley_provider_kit::step::Delta;

use super::{Event, done, reasoned, said, whole};

/// Records the deltas of an event.
pub(super) fn hear(event: &Event<'_>, calls: &mut ToolCallAccumulator) {
    let (item, content) = (event.output_index, event.content_index);
    let delta = event.delta.as_deref().unwrap_or_default();
    let at = calls.passages.said();
    let parts = &mut calls.parts;
    match event.kind.as_ref() {
        "response.output_item.added" => {
            parts.forget(item);
            parts.begin((PartKind::Text, item, 0), at);
        }
        "response.content_part.added" | "response.output_text.delta" | "response.refusal.delta" => {
            parts.begin((PartKind::Text, item, content), at)
        }
        "response.output_text.annotation.added" => {
            parts.add((PartKind::Notes, item, content), "");
        }
        "response.reasoning_text.delta" => {
            parts.add((PartKind::Reasoning, item, content), delta);
        }
        "response.reasoning_summary_text.delta" => {
            parts.add((PartKind::Summary, item, event.summary_index), delta);
        }
        _ => {}
    }
}

/// Begins a call at the index `item`.
pub(super) fn begin(
    item: u64,
    id: Option<&str>,
    name: &str,
    arguments: &str,
    calls: &mut ToolCallAccumulator,
) -> Value {
    calls.parts.add((PartKind::Arguments, item, 0), arguments);
    calls.begin_in(item, id, name, arguments)
}

/// Adds arguments to the call at the index `item`.
pub(super) fn more(item: u64, arguments: &str, calls: &mut ToolCallAccumulator) -> Option<String> {
    let more = calls.more_in(item, arguments)?;
    calls.parts.add((PartKind::Arguments, item, 0), arguments);
    deltas(vec![more])
}

/// The rest of a part, from the event that ends it.
pub(super) fn of_part(event: &Event<'_>, calls: &mut ToolCallAccumulator) -> Result<Delta, String> {
    let (item, content) = (event.output_index, event.content_index);
    let text = |raw: Option<&RawValue>| raw.map(whole).transpose();
    let mut delta = Delta::default();
    match event.kind.as_ref() {
        "response.function_call_arguments.done" => {
            let arguments = text(event.arguments)?.unwrap_or_default();
            delta.tool_calls = rest_of_call(item, &arguments, calls);
        }
        "response.reasoning_text.done" => {
            let told = text(event.text)?.unwrap_or_default();
            let id = (PartKind::Reasoning, item, content);
            delta.thinking = calls.parts.rest(id, told.as_str().unwrap_or_default());
        }
        "response.reasoning_summary_text.done" => {
            let told = text(event.text)?.unwrap_or_default();
            let id = (PartKind::Summary, item, event.summary_index);
            delta.thinking = calls.parts.rest(id, told.as_str().unwrap_or_default());
            if delta.thinking.is_some() {
                delta.details().summary = true;
            }
        }
        "response.output_text.done" | "response.refusal.done" | "response.content_part.done" => {
            let mut told = text(event.part)?.unwrap_or_else(|| Value::Object(Default::default()));
            for (name, given) in [("text", event.text), ("refusal", event.refusal)] {
                if let Some(given) = text(given)? {
                    told[name] = given;
                }
            }
            // Reasoning also has content parts. It is read from its own events.
            if !told["text"].is_null() && told["type"] == "reasoning_text" {
                return Ok(delta);
            }
            delta = rest_of_said(item, content, &told, calls);
        }
        _ => {}
    }
    Ok(delta)
}

/// The rest of an item, from the event that ends it.
pub(super) fn of_item(index: u64, item: &Value, calls: &mut ToolCallAccumulator) -> Delta {
    let mut delta = Delta::default();
    match item["type"].as_str() {
        Some("message") => {
            let parts = item["content"].as_array().into_iter().flatten();
            for (content, part) in (0..).zip(parts) {
                join(&mut delta, rest_of_said(index, content, part, calls));
            }
        }
        Some("function_call") if calls.parts.knows((PartKind::Arguments, index, 0)) => {
            delta.tool_calls = rest_of_call(index, &item["arguments"], calls);
        }
        Some("function_call") => {
            let name = item["name"].as_str().unwrap_or_default();
            let arguments = arguments_text(&item["arguments"]);
            let call = begin(index, item["call_id"].as_str(), name, &arguments, calls);
            delta.tool_calls = deltas(vec![call]);
        }
        Some("reasoning") => {
            let heard = [PartKind::Reasoning, PartKind::Summary];
            let mut heard = heard.into_iter().map(|kind| (kind, index, 0));
            if !heard.any(|id| calls.parts.knows(id)) {
                delta = reasoned(item).unwrap_or_default();
            }
            let summary = delta.details.as_ref().is_some_and(|told| told.summary);
            if let Some(mut details) = done(item) {
                details.summary = summary;
                delta.details = Some(Box::new(details));
            }
        }
        _ => delta.details = done(item).map(Box::new),
    }
    delta
}

/// Adds the output of the event that ends a response, if no earlier event had it.
pub(super) fn of_answer(last: &mut Delta, calls: &mut ToolCallAccumulator) {
    let answer = last.end.as_ref().and_then(|end| end.answer.as_ref());
    let output = answer.and_then(|answer| answer["output"].as_array());
    let output = output.cloned().unwrap_or_default();
    let is_silent = calls.passages.said() == 0;
    let called = calls.any();
    for (index, item) in (0..).zip(&output) {
        let is_missing = match item["type"].as_str() {
            Some("message") => is_silent,
            Some("function_call") => !called || calls.is_unfilled(index),
            _ => false,
        };
        if is_missing {
            join(last, of_item(index, item, calls));
        }
    }
    if last.finish_reason.is_none() && calls.any() {
        last.finish_reason = Some(volley_types::FinishReason::ToolCalls);
    }
}

fn rest_of_call(item: u64, arguments: &Value, calls: &mut ToolCallAccumulator) -> Option<String> {
    let id = (PartKind::Arguments, item, 0);
    if !calls.parts.knows(id) {
        // The call has no name yet. The event that ends its item has it.
        return None;
    }
    let rest = calls.parts.rest(id, &arguments_text(arguments))?;
    let rest = calls.more_in(item, &rest)?;
    deltas(vec![rest])
}

/// The rest of a part of a message: its text, and its citations if no event had one.
fn rest_of_said(item: u64, content: u64, part: &Value, calls: &mut ToolCallAccumulator) -> Delta {
    let mut delta = said(part);
    let at = calls.passages.said();
    let text = delta.text.take().unwrap_or_default();
    delta.text = calls
        .parts
        .rest_of_text((PartKind::Text, item, content), &text, at);
    if delta.text.is_none() {
        (delta.details, delta.logprobs) = (None, None);
    }
    let notes = (PartKind::Notes, item, content);
    let noted = part["annotations"].as_array().into_iter().flatten();
    let cited = some(noted.filter_map(annotation).collect());
    delta.citations = cited.filter(|_| !calls.parts.knows(notes));
    if delta.citations.is_some() {
        calls.parts.add(notes, "");
    }
    delta
}

fn join(delta: &mut Delta, more: Delta) {
    if let Some(text) = more.text {
        delta.text.get_or_insert_default().push_str(&text);
    }
    if let Some(cited) = more.citations {
        delta.citations.get_or_insert_default().extend(cited);
    }
    if more.details.is_some_and(|told| told.refusal) {
        delta.details().refusal = true;
    }
    delta.logprobs = delta.logprobs.take().or(more.logprobs);
    let before = delta.tool_calls.take();
    delta.tool_calls = match (before, more.tool_calls) {
        (Some(before), Some(more)) => {
            let lists = [before, more];
            let lists = lists
                .iter()
                .map(|list| serde_json::from_str::<Vec<Value>>(list));
            deltas(lists.flatten().flatten().collect())
        }
        (before, more) => before.or(more),
    };
}

#[cfg(test)]
mod tests {
    use super::super::{read, read_whole};
    use super::*;
    use volley_provider_kit::step::Step;

    /// Reads events as a worker does: their text advances the position.
    fn answer(events: &[&str]) -> (String, String, Vec<Delta>) {
        let calls = &mut ToolCallAccumulator::new(1);
        let (mut text, mut input, mut all) = (String::new(), String::new(), Vec::new());
        for event in events {
            let delta = match read(event, calls).unwrap() {
                Step::Delta(delta) | Step::Last(delta) => delta,
                step => panic!("{step:?}"),
            };
            let said = delta.text.as_deref().unwrap_or_default();
            calls.passages.add(said);
            text.push_str(said);
            let called = delta.tool_calls.as_deref().unwrap_or("[]");
            let called: Vec<Value> = serde_json::from_str(called).unwrap();
            let inputs = called
                .iter()
                .map(|call| call["function"]["arguments"].as_str().unwrap());
            input.extend(inputs);
            all.push(delta);
        }
        (text, input, all)
    }

    const ADDED: &str = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}"#;
    const CALL: &str = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"}}"#;

    #[test]
    fn arguments_that_only_end_events_have_are_read_once() {
        let ended = r#"{"type":"response.function_call_arguments.done","output_index":0,"arguments":"{\"a\":1}"}"#;
        let object = r#"{"type":"response.function_call_arguments.done","output_index":0,"arguments":{"a":1}}"#;
        let piece = r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{\"a\":"}"#;
        let last = r#"{"type":"response.completed","response":{"output":[{"type":"function_call","call_id":"c","name":"f","arguments":{"a":1}}]}}"#;
        for events in [
            &[ADDED, ended, CALL, last][..],
            &[ADDED, object, CALL, last],
            &[ADDED, piece, ended, CALL],
            &[ADDED, piece, CALL],
            &[ADDED, CALL],
            &[CALL, last],
            &[ADDED, last],
            &[last],
        ] {
            let (_, input, all) = answer(events);
            assert_eq!(input, "{\"a\":1}", "{events:?}");
            let named = all.iter().filter_map(|delta| delta.tool_calls.as_deref());
            let named = named.filter(|called| called.contains("\"name\":\"f\""));
            assert_eq!(named.count(), 1, "{events:?}");
        }
    }

    #[test]
    fn text_that_only_end_events_have_is_read_once() {
        let added =
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message"}}"#;
        let piece = r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"ab"}"#;
        let ended = r#"{"type":"response.output_text.done","output_index":0,"content_index":0,"text":"abc"}"#;
        let part = r#"{"type":"response.content_part.done","output_index":0,"content_index":0,"part":{"type":"output_text","text":"abc"}}"#;
        let item = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":[{"type":"output_text","text":"abc","annotations":[{"type":"url_citation","url":"https://a.example","start_index":0,"end_index":1}]}]}}"#;
        let last = r#"{"type":"response.completed","response":{"output":[{"type":"message","content":[{"type":"output_text","text":"abc"}]}]}}"#;
        for events in [
            &[added, ended, part, item, last][..],
            &[ended, last],
            &[part, item],
            &[added, piece, ended, part, item],
            &[item, last],
            &[added, last],
            &[last],
        ] {
            assert_eq!(answer(events).0, "abc", "{events:?}");
        }
        let (_, _, all) = answer(&[added, ended, item]);
        assert_eq!(all[2].citations.as_ref().unwrap().len(), 1);
        let refused = r#"{"type":"response.refusal.done","output_index":0,"content_index":0,"refusal":"No."}"#;
        let (text, _, all) = answer(&[refused]);
        assert!(text == "No." && all[0].details.as_ref().unwrap().refusal);
    }

    #[test]
    fn reasoning_that_only_end_events_have_is_read_once() {
        let ended = r#"{"type":"response.reasoning_summary_text.done","output_index":0,"summary_index":0,"text":"hm"}"#;
        let item = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"}}"#;
        for events in [&[ended, item][..], &[item]] {
            let (_, _, all) = answer(events);
            let thought: String = all.iter().filter_map(|it| it.thinking.clone()).collect();
            assert_eq!(thought, "hm", "{events:?}");
            let last = all.last().unwrap().details.as_ref().unwrap();
            assert_eq!(last.signature.as_deref(), Some("e"));
        }
    }

    #[test]
    fn a_whole_call_may_have_an_object_as_its_arguments() {
        let body = br#"{"output":[{"type":"function_call","call_id":"c","name":"f","arguments":{"a":1}}]}"#;
        let Ok(Step::All(all)) = read_whole(body, &mut ToolCallAccumulator::default()) else {
            panic!()
        };
        let called: Value = serde_json::from_str(all[0].tool_calls.as_ref().unwrap()).unwrap();
        assert_eq!(called[0]["function"]["arguments"], "{\"a\":1}");
    }
}
