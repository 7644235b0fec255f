//! The content of an answer: text and reasoning. Pure.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use volley_provider_kit::fault::json_position;
use volley_provider_kit::step::Delta;

/// Reads the content of an event of a stream: one part, or plain text.
///
/// # Errors
/// A description of the fault if the content is malformed.
pub(super) fn add_content(delta: &mut Delta, content: &RawValue) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Part {
        #[serde(default, rename = "type")]
        kind: Option<String>,
        #[serde(default)]
        text: Option<String>,
        #[serde(default)]
        thinking: Option<String>,
    }
    let content = content.get();
    if content.starts_with('"') {
        let text = serde_json::from_str(content).map_err(|error| json_position(&error))?;
        delta.text = Some(text);
        return Ok(());
    }
    let part: Part = serde_json::from_str(content).map_err(|error| json_position(&error))?;
    refuse(delta, part.kind.as_deref());
    delta.text = part.text;
    delta.thinking = part.thinking;
    Ok(())
}

/// Reads the content of a whole message: parts, or plain text. Returns its reasoning and its text.
pub(super) fn whole_content(content: &Value) -> (Delta, Delta) {
    let parts = content.as_array().map_or(&[][..], Vec::as_slice);
    let texts = |name: &str| -> String {
        let texts = parts.iter().filter_map(|part| part[name].as_str());
        texts.collect()
    };
    let thinking = Delta {
        thinking: Some(texts("thinking")),
        ..Delta::default()
    };
    let text = content.as_str().map(str::to_owned);
    let mut delta = Delta {
        text: Some(text.unwrap_or_else(|| texts("text"))),
        ..Delta::default()
    };
    for part in parts {
        refuse(&mut delta, part["type"].as_str());
    }
    (thinking, delta)
}

/// Marks the answer as unusable for a part that is neither text nor reasoning.
fn refuse(delta: &mut Delta, kind: Option<&str>) {
    if let Some(kind) = kind.filter(|kind| !["text", "thinking"].contains(kind)) {
        delta.lacks_form(kind);
    }
}
