//! Citations in the format of each dialect.

use serde_json::{Value, json};
use volley_types::{Citation, GenerationRow, SpanUnit};

/// The citations of a row; empty if it has none.
pub fn of(row: &GenerationRow<'_>) -> Vec<Citation> {
    row.citations().map(Citation::from_json).unwrap_or_default()
}

/// As an annotation of a chat completion, which only supports URLs.
pub fn of_chat(citation: &Citation) -> Value {
    json!({ "type": "url_citation", "url_citation": {
        "url": citation.uri(),
        "title": citation.title.as_deref().unwrap_or_default(),
        "start_index": citation.start.unwrap_or_default(),
        "end_index": citation.end.unwrap_or_default(),
    } })
}

/// As an annotation of a response's text, which starts at character `begin` of the complete text.
pub fn of_response(citation: &Citation, begin: u32) -> Value {
    let at = |place: Option<u32>| place.unwrap_or_default().saturating_sub(begin);
    let title = citation.title.as_deref().unwrap_or_default();
    if citation.url.is_some() {
        return json!({
            "type": "url_citation", "url": citation.uri(), "title": title,
            "start_index": at(citation.start), "end_index": at(citation.end),
        });
    }
    let number = citation.document.unwrap_or_default();
    let id = citation.source.clone();
    json!({
        "type": "file_citation", "file_id": id.unwrap_or_else(|| number.to_string()),
        "filename": title, "index": number,
    })
}

/// As a citation of a message block.
pub fn of_message(citation: &Citation) -> Value {
    let quote = citation.quote.as_deref().unwrap_or_default();
    let number = citation.document.unwrap_or_default();
    let place = citation.place;
    let (from, to) = place.map_or((0, 0), |place| (place.from, place.to));
    let title = &citation.title;
    let unit = place.map(|place| place.unit);
    if unit == Some(SpanUnit::Passages) {
        let source = citation.source.clone().unwrap_or_else(|| citation.uri());
        return json!({
            "type": "search_result_location", "cited_text": quote, "source": source,
            "title": title, "search_result_index": number,
            "start_block_index": from, "end_block_index": to,
        });
    }
    if let Some(url) = &citation.url {
        return json!({
            "type": "web_search_result_location", "cited_text": quote, "url": url,
            "title": title, "encrypted_index": citation.token.as_deref().unwrap_or_default(),
        });
    }
    let (kind, names) = match unit {
        Some(SpanUnit::Pages) => ("page_location", ["start_page_number", "end_page_number"]),
        Some(SpanUnit::Blocks) => (
            "content_block_location",
            ["start_block_index", "end_block_index"],
        ),
        _ => ("char_location", ["start_char_index", "end_char_index"]),
    };
    let mut told = json!({
        "type": kind, "cited_text": quote, "document_index": number, "document_title": title,
        "file_id": citation.source,
    });
    told[names[0]] = from.into();
    told[names[1]] = to.into();
    told
}

/// Splits a complete text into message blocks: each cited passage is a block with its citations.
pub fn blocks(text: &str, citations: &[Citation]) -> Vec<Value> {
    let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
    let byte = |character: Option<u32>| {
        let character = usize::try_from(character?).ok()?;
        Some(places.get(character).copied().unwrap_or(text.len()))
    };
    let mut cited: Vec<(usize, usize, &Citation)> = citations
        .iter()
        .map(|citation| {
            let end = byte(citation.end).unwrap_or(text.len());
            let start = byte(citation.start).unwrap_or_default().min(end);
            (start, end, citation)
        })
        .collect();
    // Stable sort, so that citations of one passage keep their order.
    cited.sort_by_key(|(start, end, _)| (*end, *start));
    let (mut blocks, mut done) = (Vec::<Value>::new(), 0);
    for (start, end, citation) in cited {
        let told = of_message(citation);
        if done < end {
            // A passage that overlaps the previous one, or is empty, gets the remaining part.
            let start = if start == end { done } else { start.max(done) };
            if done < start {
                blocks.push(json!({ "type": "text", "text": &text[done..start] }));
            }
            blocks.push(json!({ "type": "text", "text": &text[start..end], "citations": [told] }));
            done = end;
        } else if let Some(list) = blocks.last_mut().and_then(cited_in) {
            list.push(told);
        } else {
            blocks.push(json!({ "type": "text", "text": "", "citations": [told] }));
        }
    }
    if done < text.len() || blocks.is_empty() {
        blocks.push(json!({ "type": "text", "text": &text[done..] }));
    }
    blocks
}

fn cited_in(block: &mut Value) -> Option<&mut Vec<Value>> {
    block.get_mut("citations")?.as_array_mut()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::CitedSpan;

    use super::*;

    fn web(start: u32, end: u32) -> Citation {
        Citation {
            url: Some("https://a.example".to_owned()),
            start: Some(start),
            end: Some(end),
            ..Citation::default()
        }
    }

    #[test]
    fn passages_are_blocks() {
        let told = blocks("Grün ist 🦊 rot.", &[web(9, 10), web(0, 4), web(9, 10)]);
        let texts: Vec<_> = told.iter().map(|block| &block["text"]).collect();
        assert_eq!(texts, ["Grün", " ist ", "🦊", " rot."]);
        assert_eq!(told[2]["citations"].as_array().unwrap().len(), 2);
        assert!(told[1].get("citations").is_none());
        assert_eq!(blocks("", &[]), [json!({ "type": "text", "text": "" })]);
    }

    #[test]
    fn each_place_has_its_type() {
        let of = |unit, source: Option<&str>| {
            let citation = Citation {
                document: Some(3),
                source: source.map(str::to_owned),
                place: Some(CitedSpan {
                    unit,
                    from: 1,
                    to: 2,
                }),
                ..Citation::default()
            };
            of_message(&citation)
        };
        let pages = of(SpanUnit::Pages, None);
        assert_eq!(
            (&pages["type"], &pages["end_page_number"]),
            (&json!("page_location"), &json!(2))
        );
        let found = of(SpanUnit::Passages, Some("kb"));
        assert_eq!(
            (&found["source"], &found["search_result_index"]),
            (&json!("kb"), &json!(3))
        );
        assert_eq!(of(SpanUnit::Blocks, None)["type"], "content_block_location");
        assert_eq!(of(SpanUnit::Characters, None)["type"], "char_location");
        let file = of_response(
            &Citation {
                document: Some(3),
                ..Citation::default()
            },
            0,
        );
        assert_eq!(
            (&file["type"], &file["file_id"]),
            (&json!("file_citation"), &json!("3"))
        );
    }

    proptest! {
        #[test]
        fn blocks_have_the_text_and_all_citations(
            text in ".{0,20}",
            places in proptest::collection::vec((proptest::option::of(0..30_u32), proptest::option::of(0..30_u32)), 0..6),
        ) {
            let cited: Vec<_> = places.into_iter()
                .map(|(start, end)| Citation { start, end, ..web(0, 0) })
                .collect();
            let told = blocks(&text, &cited);
            let joined: String = told.iter().map(|block| block["text"].as_str().unwrap()).collect();
            prop_assert_eq!(joined, text);
            let count: usize = told.iter().filter_map(|block| block["citations"].as_array()).map(Vec::len).sum();
            prop_assert_eq!(count, cited.len());
        }
    }
}
