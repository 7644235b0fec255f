//! Reads citations.

use serde_json::Value;
use volley_provider_kit::citations::{number, text};
use volley_types::Citation;

/// Reads a citation or a list of them. Each source is a citation.
pub(super) fn citations(told: &Value) -> Vec<Citation> {
    if let Some(list) = told.as_array() {
        return list.iter().flat_map(citations).collect();
    }
    let sources = told["sources"].as_array().into_iter().flatten();
    let cited = sources.map(|source| {
        // The output of a tool is a document too.
        let document = match &source["document"] {
            Value::Null => &source["tool_output"],
            document => document,
        };
        let quote = ["snippet", "text", "content"];
        Citation {
            url: text(document, "url"),
            title: text(document, "title"),
            quote: quote.iter().find_map(|name| text(document, name)),
            source: text(source, "id"),
            start: number(told, "start"),
            end: number(told, "end"),
            ..Citation::default()
        }
    });
    cited.collect()
}
