//! Grounding sources and recited citations in Gemini's answers. Offsets are in bytes until
//! [`in_characters`].

use serde_json::Value;
use volley_provider_kit::citations::{Passages, number, text};
use volley_types::Citation;

/// Returns the citations of a candidate that were not returned before.
pub(super) fn citations(
    grounding: Option<&Value>,
    recited: Option<&Value>,
    ends: bool,
    passages: &mut Passages,
) -> Option<Vec<Citation>> {
    let mut all = Vec::new();
    if let Some(told) = grounding {
        let list = |name: &str| told[name].as_array().into_iter().flatten();
        let sources: Vec<_> = list("groundingChunks").map(source).collect();
        if !sources.is_empty() {
            passages.sources = sources;
        }
        for support in list("groundingSupports") {
            let used = support["groundingChunkIndices"].as_array();
            let used = used.into_iter().flatten().filter_map(Value::as_u64);
            let used = used.filter_map(|index| passages.sources.get(usize::try_from(index).ok()?));
            all.extend(used.map(|source| Citation {
                start: start(&support["segment"]),
                end: number(&support["segment"], "endIndex"),
                ..source.clone()
            }));
        }
    }
    if let Some(told) = recited {
        // Vertex AI and the Gemini API use different names.
        let lists = [&told["citationSources"], &told["citations"]];
        let lists = lists.into_iter().filter_map(Value::as_array).flatten();
        all.extend(lists.map(|told| Citation {
            url: text(told, "uri"),
            title: text(told, "title"),
            start: start(told),
            end: number(told, "endIndex"),
            ..Citation::default()
        }));
    }
    if all.is_empty() && ends && passages.none_seen() {
        // The server did not report where they are used.
        all.clone_from(&passages.sources);
    }
    passages.fresh(all)
}

/// The start offset. The server omits zero if there is an end.
fn start(told: &Value) -> Option<u32> {
    let start = number(told, "startIndex");
    start.or_else(|| number(told, "endIndex").map(|_| 0))
}

/// Reads a source: a web page, a retrieved document or a place on a map.
fn source(chunk: &Value) -> Citation {
    let kinds = ["web", "retrievedContext", "maps"];
    let mut kinds = kinds.into_iter().map(|kind| &chunk[kind]);
    let told = kinds.find(|told| told.is_object()).unwrap_or(&Value::Null);
    Citation {
        url: text(told, "uri"),
        title: text(told, "title"),
        quote: text(told, "text"),
        source: text(told, "documentName").or_else(|| text(told, "placeId")),
        ..Citation::default()
    }
}

/// Converts byte offsets to characters. Invalid offsets are removed.
pub(super) fn in_characters(
    citations: &mut Option<Vec<Citation>>,
    character: impl Fn(u32) -> Option<u32>,
) {
    for citation in citations.iter_mut().flatten() {
        citation.start = citation.start.and_then(&character);
        citation.end = citation.end.and_then(&character);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn supports_point_to_sources_that_may_have_come_before_and_are_told_once() {
        let mut passages = Passages::default();
        let sources = json!({ "groundingChunks": [
            { "web": { "uri": "https://a.example", "title": "a" } },
            { "retrievedContext": { "uri": "gs://b", "title": "b", "text": "words" } },
        ] });
        assert_eq!(citations(Some(&sources), None, false, &mut passages), None);
        let supports = json!({ "groundingSupports": [
            { "segment": { "endIndex": 4, "text": "four" }, "groundingChunkIndices": [0, 1, 9] },
        ] });
        let told = citations(Some(&supports), None, true, &mut passages).unwrap();
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].start, told[0].end), (Some(0), Some(4)));
        assert_eq!(told[1].quote.as_deref(), Some("words"));
        assert_eq!(citations(Some(&supports), None, true, &mut passages), None);
    }

    #[test]
    fn sources_without_places_are_told_at_the_end_and_what_is_recited_too() {
        let mut passages = Passages::default();
        let sources = json!({ "groundingChunks": [{ "web": { "uri": "https://a.example" } }] });
        let told = citations(Some(&sources), None, true, &mut passages).unwrap();
        assert_eq!((told.len(), told[0].end), (1, None));
        for name in ["citationSources", "citations"] {
            let recited =
                json!({ name: [{ "startIndex": 1, "endIndex": 3, "uri": "https://c.example" }] });
            let told = citations(None, Some(&recited), false, &mut Passages::default()).unwrap();
            assert_eq!((told[0].start, told[0].end), (Some(1), Some(3)));
        }
    }
}
