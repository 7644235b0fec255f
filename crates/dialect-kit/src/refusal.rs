//! Refusals of a model and of its provider's content filter. Pure.

use volley_types::{Details, ErrorReason, FinishReason, PredictError};

/// The text of an answer without any, in dialects that only have text for it.
const NOTE: &str = "[The provider's content filter ended this answer.]";

/// The upstream's explanation of a refusal.
pub fn explanation(details: &Details) -> Option<&str> {
    let told = details.stop_details.as_ref()?;
    told["explanation"].as_str().filter(|text| !text.is_empty())
}

/// The text to add at the end of a refused answer, in dialects without a field for it: the
/// upstream's explanation, or a note if the answer `is_empty`.
pub fn note(reason: Option<FinishReason>, details: &Details, is_empty: bool) -> Option<&str> {
    let filtered = is_empty && reason == Some(FinishReason::ContentFilter);
    explanation(details).or(filtered.then_some(NOTE))
}

/// Rejects an answer that a content filter ended, in dialects that cannot report it otherwise.
///
/// # Errors
/// `InvalidInput` with the reason `ContentFilter`.
pub fn filtered(reason: Option<FinishReason>, details: &Details) -> Result<(), PredictError> {
    if reason != Some(FinishReason::ContentFilter) {
        return Ok(());
    }
    let why = match explanation(details) {
        Some(told) => format!(": {told}"),
        None => "; change the prompt".to_owned(),
    };
    let message = format!("the provider's content filter ended the answer{why}");
    Err(PredictError::invalid(message).with_reason(ErrorReason::ContentFilter))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_never_an_empty_answer() {
        let (plain, filter) = (Details::default(), Some(FinishReason::ContentFilter));
        let told = Details {
            stop_details: Some(json!({ "category": "cyber", "explanation": "No malware." })),
            ..Details::default()
        };
        assert_eq!(note(Some(FinishReason::Stop), &plain, true), None);
        assert_eq!(note(filter, &plain, false), None);
        assert_eq!(note(filter, &plain, true), Some(NOTE));
        assert_eq!(note(filter, &told, false), Some("No malware."));
        assert!(filtered(Some(FinishReason::Stop), &plain).is_ok());
        let error = filtered(filter, &told).unwrap_err();
        assert_eq!(error.reason, Some(ErrorReason::ContentFilter));
        assert!(error.message.ends_with(": No malware."), "{error}");
    }
}
