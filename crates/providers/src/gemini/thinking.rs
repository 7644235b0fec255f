//! Reasoning options of Google's models: newer ones have levels, older ones a token budget. Pure.

use serde_json::{Value, json};
use volley_provider_kit::effort::{self, Effort, Thinking};
use volley_provider_kit::parameters::RequestFields;
use volley_types::PredictError;

/// Converts the reasoning options of a request; `None` if it has none.
///
/// # Errors
/// `InvalidInput` for malformed options.
pub(super) fn of(
    model: &str,
    request: &mut RequestFields<'_>,
) -> Result<Option<Value>, PredictError> {
    let Some(thinking) = effort::take(request)? else {
        return Ok(None);
    };
    Ok(Some(match (has_levels(model), thinking) {
        // These models always reason: use the lowest level and hide the reasoning.
        (true, Thinking::Off) => {
            let least = if model.contains("flash") {
                "MINIMAL"
            } else {
                "LOW"
            };
            json!({ "thinkingLevel": least, "includeThoughts": false })
        }
        (false, Thinking::Off) => json!({ "thinkingBudget": 0 }),
        (_, Thinking::On) => json!({ "includeThoughts": true }),
        (true, thinking) => {
            let level = match thinking.level().unwrap_or(Effort::Medium) {
                Effort::Minimal => "MINIMAL",
                Effort::Low => "LOW",
                Effort::Medium => "MEDIUM",
                Effort::High => "HIGH",
                Effort::Xhigh | Effort::Max => "XHIGH",
            };
            json!({ "thinkingLevel": level, "includeThoughts": true })
        }
        (false, thinking) => {
            json!({ "thinkingBudget": thinking.budget(), "includeThoughts": true })
        }
    }))
}

/// Whether the model has levels, as since the third generation. A name without a version counts as
/// the newest model.
fn has_levels(model: &str) -> bool {
    let Some((_, version)) = model.split_once("gemini-") else {
        return true;
    };
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u32>().map_or(true, |major| 3 <= major)
}

/// Whether the server rejects calls in a conversation that have no signature, as since the third
/// generation of Gemini.
pub(super) fn needs_signatures(model: &str) -> bool {
    model.contains("gemini-") && has_levels(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemini::request::PARAMETERS;
    use crate::tests::asking;

    #[test]
    fn each_generation_is_told_in_its_own_way() {
        let of = |model: &str, effort: &str| {
            let fields = json!({ "reasoning_effort": effort });
            let fields = fields.as_object().cloned().unwrap();
            asking(&PARAMETERS, fields, |mut request| {
                super::of(model, &mut request)
            })
            .unwrap()
            .unwrap()
        };
        for (model, effort, expected) in [
            (
                "gemini-2.5-pro",
                "low",
                json!({ "thinkingBudget": 1024, "includeThoughts": true }),
            ),
            ("gemini-2.5-flash", "none", json!({ "thinkingBudget": 0 })),
            (
                "gemini-3-pro-preview",
                "high",
                json!({ "thinkingLevel": "HIGH", "includeThoughts": true }),
            ),
            (
                "gemini-3-pro",
                "none",
                json!({ "thinkingLevel": "LOW", "includeThoughts": false }),
            ),
            (
                "gemini-3.5-flash",
                "none",
                json!({ "thinkingLevel": "MINIMAL", "includeThoughts": false }),
            ),
        ] {
            assert_eq!(of(model, effort), expected, "{model} {effort}");
        }
    }
}
