//! Fast path that extracts the text of an event without parsing it.
//!
//! Events with a text delta differ only in that text. After one such event is parsed, the text of
//! others with the same prefix and suffix is what lies in between, provided that it has no
//! characters with a meaning in JSON. Events with any other difference, or an escape, are parsed.

use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::step::{Delta, Step};
use volley_provider_kit::wire::Wire;

/// Number of text events from which the template tries to learn. After that, all events are parsed.
const MAX_TRIES: u32 = 16;
/// Maximum size of prefix and suffix together, in bytes. Comparing more costs more than it saves.
const MAX_AROUND: usize = 4 << 10;
/// A text that replaces the delta to test a template.
const PROBE: &str = "what is said here is the text";

/// The prefix and suffix of the text in one stream's events.
#[derive(Debug, Default)]
pub(crate) struct DeltaTemplate {
    around: Option<(String, String)>,
    tries: u32,
}

impl DeltaTemplate {
    /// Returns the text of an event that matches the template.
    pub(crate) fn text<'a>(&self, data: &'a str) -> Option<&'a str> {
        let (before, after) = self.around.as_ref()?;
        let piece = data.strip_prefix(before.as_str())?;
        let piece = piece.strip_suffix(after.as_str())?;
        (!piece.is_empty() && is_plain(piece)).then_some(piece)
    }

    /// Learns the template from an event with text only.
    pub(crate) fn learn(
        &mut self,
        wire: &Wire,
        calls: &ToolCallAccumulator,
        data: &str,
        delta: &Delta,
    ) {
        if self.around.is_some() || MAX_TRIES <= self.tries {
            return;
        }
        let Some(text) = delta.text.as_deref().filter(|text| !text.is_empty()) else {
            return;
        };
        self.tries += 1;
        if data.len() <= MAX_AROUND && *delta == said(text) && is_plain(text) {
            self.around = around(wire, calls, data, text);
        }
    }
}

fn said(text: &str) -> Delta {
    Delta {
        text: Some(text.to_owned()),
        ..Delta::default()
    }
}

/// Whether text needs no escapes in JSON.
fn is_plain(text: &str) -> bool {
    let special = |byte: &u8| *byte < b' ' || matches!(*byte, b'"' | b'\\');
    !text.as_bytes().iter().any(special)
}

/// Returns the prefix and suffix of the only occurrence of `text` as a string. `None` unless an
/// event with another text there reads as exactly that text.
fn around(
    wire: &Wire,
    calls: &ToolCallAccumulator,
    data: &str,
    text: &str,
) -> Option<(String, String)> {
    let quoted = format!("\"{text}\"");
    let mut places = data.match_indices(&quoted);
    let (place, _) = places.next()?;
    if places.next().is_some() {
        return None;
    }
    let before = &data[..=place];
    let after = &data[place + quoted.len() - 1..];
    let probe = format!("{before}{PROBE}{after}");
    let read = wire.read(&probe, &mut calls.clone());
    (read == Ok(Step::Delta(said(PROBE)))).then(|| (before.to_owned(), after.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::provider;

    const FORMATS: [(&str, &str); 4] = [
        (
            "openai",
            r#"{"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":@},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        ),
        (
            "anthropic",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":@}}"#,
        ),
        (
            "gemini",
            r#"{"candidates":[{"content":{"parts":[{"text":@}],"role":"model"},"index":0}]}"#,
        ),
        (
            "openai_responses",
            r#"{"type":"response.output_text.delta","output_index":0,"delta":@,"logprobs":[]}"#,
        ),
    ];

    fn event(template: &str, text: &str) -> String {
        template.replace('@', &serde_json::Value::from(text).to_string())
    }

    fn learnt(name: &str, template: &str, text: &str) -> DeltaTemplate {
        let (wire, calls) = (Wire::from(provider(name)), ToolCallAccumulator::default());
        let data = event(template, text);
        let Ok(Step::Delta(delta)) = wire.read(&data, &mut calls.clone()) else {
            panic!("{data}")
        };
        let mut learnt = DeltaTemplate::default();
        learnt.learn(&wire, &calls, &data, &delta);
        learnt
    }

    #[test]
    fn what_is_alike_is_seen_and_what_differs_is_not() {
        for (name, template) in FORMATS {
            let learnt = learnt(name, template, "Grüße");
            assert_eq!(
                learnt.text(&event(template, " Fuchs 🦊")),
                Some(" Fuchs 🦊")
            );
            assert_eq!(learnt.text(&event(template, "a\nb")), None, "an escape");
            assert_eq!(learnt.text(&event(template, "")), None);
            let other = event(template, "a").replace("index\":0", "index\":1");
            assert!(other == event(template, "a") || learnt.text(&other).is_none());
            assert_eq!(learnt.text("[DONE]"), None);
        }
    }

    #[test]
    fn an_event_that_brings_more_or_whose_text_stands_elsewhere_too_teaches_nothing() {
        let (name, template) = FORMATS[0];
        assert!(
            learnt(name, template, "m").around.is_none(),
            "the model's name"
        );
        let last = template.replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
        assert!(learnt(name, &last, "a").around.is_none());
        let mut found = learnt(name, template, "m");
        for _ in 0..MAX_TRIES {
            let data = event(template, "m");
            found.learn(
                &provider(name).into(),
                &ToolCallAccumulator::default(),
                &data,
                &said("m"),
            );
        }
        let (wire, data) = (provider(name).into(), event(template, "good"));
        found.learn(&wire, &ToolCallAccumulator::default(), &data, &said("good"));
        assert!(found.around.is_none(), "it does not try for ever");
    }

    proptest! {
        #[test]
        fn what_is_seen_is_what_would_be_read(
            which in 0..FORMATS.len(),
            first in "[a-zäß ]{2,8}",
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..3),
            text in any::<String>(),
        ) {
            let (name, template) = FORMATS[which];
            let learnt = learnt(name, template, &first);
            let mut data: Vec<char> = event(template, &text).chars().collect();
            for (index, char) in changes {
                let index = index.index(data.len());
                data[index] = char;
            }
            let data: String = data.into_iter().collect();
            if let Some(seen) = learnt.text(&data) {
                let read = Wire::from(provider(name)).read(&data, &mut ToolCallAccumulator::default());
                prop_assert_eq!(read, Ok(Step::Delta(said(seen))));
            }
        }
    }
}
