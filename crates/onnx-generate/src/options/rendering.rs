//! The options for rendering prompts.

use std::sync::Arc;

use serde_json::{Map, Value};
use volley_chat_template::{OWN, Rendering};
use volley_constraints::short;
use volley_types::{Parameters, PredictError};

use super::range;

/// Reads and validates the options.
///
/// # Errors
/// `InvalidInput` with the parameter.
pub(crate) fn read(parameters: &Parameters) -> Result<Rendering, PredictError> {
    let continues = parameters.boolean("continue_final_message")?;
    let continues = continues.unwrap_or(false);
    let invites = parameters.boolean("add_generation_prompt")?;
    if continues && invites == Some(true) {
        return Err(PredictError::invalid(
            "parameter 'continue_final_message' needs 'add_generation_prompt' to be false",
        ));
    }
    let truncated = match parameters.unsigned("truncate_prompt_tokens")? {
        Some(0) => return Err(range("truncate_prompt_tokens", "at least 1")),
        count => count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
    };
    Ok(Rendering {
        special_tokens: parameters.boolean("add_special_tokens")?,
        invites: invites.unwrap_or(!continues),
        continues,
        variables: Arc::new(variables(parameters)?),
        truncated,
    })
}

fn variables(parameters: &Parameters) -> Result<Map<String, Value>, PredictError> {
    let name = "chat_template_kwargs";
    let wrong = || {
        range(
            name,
            "an object of the chat template's variables, without the built-in ones",
        )
    };
    let given = short(parameters, name)?;
    let given = given.map(|text| serde_json::from_str::<Map<String, Value>>(&text));
    let mut given = given.transpose().map_err(|_| wrong())?.unwrap_or_default();
    if OWN.iter().any(|own| given.contains_key(*own)) {
        return Err(wrong());
    }
    if let Some(effort) = parameters.text("reasoning_effort") {
        given.insert("reasoning_effort".to_owned(), effort.into());
    }
    if let Some(thinking) = parameters.text("thinking") {
        let thinking: Value = serde_json::from_str(&thinking).unwrap_or_default();
        let enabled = match thinking["type"].as_str() {
            Some("enabled") => Some(true),
            Some("disabled") => Some(false),
            Some("adaptive") => None,
            _ => {
                return Err(range(
                    "thinking",
                    "an object with the 'type' 'enabled', 'disabled' or 'adaptive'",
                ));
            }
        };
        if let Some(enabled) = enabled {
            // The names of this variable in chat templates.
            for name in ["enable_thinking", "thinking"] {
                given.entry(name).or_insert(enabled.into());
            }
        }
    }
    Ok(given)
}
