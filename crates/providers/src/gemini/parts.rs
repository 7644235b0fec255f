//! Parts of an answer that are neither text nor calls. Pure.

use serde_json::{Map, Value};
use volley_provider_kit::step::Delta;

/// Fields of a part that are not content.
const BESIDE: [&str; 4] = [
    "mediaResolution",
    "partMetadata",
    "thought_signature",
    "videoMetadata",
];

/// Adds code that ran at the provider, or its result, to the text. Returns whether the part is one.
pub(super) fn add_code(delta: &mut Delta, part: &Map<String, Value>) -> bool {
    let block = if let Some(code) = part.get("executableCode") {
        let language = code["language"].as_str().unwrap_or_default();
        let language = match language {
            "LANGUAGE_UNSPECIFIED" => String::new(),
            named => named.to_ascii_lowercase(),
        };
        code["code"].as_str().map(|code| (language, code))
    } else if let Some(result) = part.get("codeExecutionResult") {
        let output = result["output"].as_str();
        Some((String::new(), output.unwrap_or_default()))
    } else {
        None
    };
    let Some((language, text)) = block else {
        return false;
    };
    let text = text.trim_end_matches('\n');
    let block = format!("\n```{language}\n{text}\n```\n");
    delta.text.get_or_insert_default().push_str(&block);
    true
}

/// Marks the answer as unusable for content without a text form, such as an image.
pub(super) fn refuse(delta: &mut Delta, part: &Map<String, Value>) {
    let mut named = part.iter().filter(|(_, value)| !value.is_null());
    let content = named.find(|(name, _)| !BESIDE.contains(&name.as_str()));
    if let Some((kind, _)) = content {
        delta.lacks_form(kind);
    }
}
