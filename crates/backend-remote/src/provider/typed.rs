//! Parameters that both formats know, brought to the type that servers demand. Dialects that
//! turn every value into text would otherwise have them refused.

use volley_types::{ParamValue, Parameters, PredictError};

const NUMBERS: [&str; 4] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
];
const COUNTS: [&str; 5] = [
    "max_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "top_k",
    "top_logprobs",
];
const FLAGS: [&str; 2] = ["logprobs", "parallel_tool_calls"];
/// These may be plain text as well, as a stop sequence or `auto`.
const JSON: [&str; 8] = [
    "stop",
    "stop_sequences",
    "tools",
    "tool_choice",
    "response_format",
    "logit_bias",
    "thinking",
    "metadata",
];

/// `parameters`, with those that are known in their own type and all others as they are.
///
/// # Errors
/// `InvalidInput` naming a parameter that is not of its type.
pub(super) fn typed(parameters: &Parameters) -> Result<Parameters, PredictError> {
    let typed = parameters.iter().map(|(name, value)| {
        let known = one(parameters, name, value)?;
        Ok((name.to_owned(), known.unwrap_or_else(|| value.clone())))
    });
    typed.collect()
}

/// One parameter in its own type; `None` where it is as good as it is.
fn one(
    parameters: &Parameters,
    name: &str,
    value: &ParamValue,
) -> Result<Option<ParamValue>, PredictError> {
    if NUMBERS.contains(&name) {
        return Ok(parameters.float(name)?.map(ParamValue::Float));
    }
    if COUNTS.contains(&name) {
        let count = parameters.unsigned(name)?.map(i64::try_from);
        return count
            .transpose()
            .map(|count| count.map(ParamValue::Int))
            .map_err(|_| PredictError::invalid(format!("parameter '{name}' is too large")));
    }
    if FLAGS.contains(&name) {
        return Ok(parameters.boolean(name)?.map(ParamValue::Bool));
    }
    Ok(match value {
        // Seeds may be negative, which counts may not.
        ParamValue::Text(text) if name == "seed" => {
            let seed = text.trim().parse().map(ParamValue::Int);
            Some(
                seed.map_err(|_| PredictError::invalid("parameter 'seed' must be a whole number"))?,
            )
        }
        ParamValue::Text(text) if JSON.contains(&name) && is_nested_json(text) => {
            Some(ParamValue::Json(text.clone()))
        }
        _ => None,
    })
}

fn is_nested_json(text: &str) -> bool {
    text.trim_start().starts_with(['[', '{'])
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed_one(name: &str, value: ParamValue) -> Result<ParamValue, PredictError> {
        let parameters: Parameters = [(name.to_owned(), value)].into_iter().collect();
        Ok(typed(&parameters)?.get(name).unwrap().clone())
    }

    fn text(text: &str) -> ParamValue {
        ParamValue::Text(text.to_owned())
    }

    #[test]
    fn text_becomes_the_type_that_the_server_demands() {
        for (name, given, expected) in [
            ("temperature", text("0.7"), ParamValue::Float(0.7)),
            ("max_tokens", text(" 64 "), ParamValue::Int(64)),
            ("max_tokens", ParamValue::Float(64.0), ParamValue::Int(64)),
            ("seed", text("-3"), ParamValue::Int(-3)),
            ("logprobs", text("true"), ParamValue::Bool(true)),
            ("tools", text("[{}]"), ParamValue::Json("[{}]".to_owned())),
            ("tool_choice", text("auto"), text("auto")),
            ("stop", text("[END"), text("[END")),
            ("stop", text("0.5"), text("0.5")),
            ("of_the_servers_own", text("0.7"), text("0.7")),
        ] {
            assert_eq!(typed_one(name, given).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn what_is_not_of_its_type_is_named() {
        for (name, given) in [
            ("temperature", "warm"),
            ("top_p", "NaN"),
            ("max_tokens", "-1"),
            ("max_tokens", "18446744073709551615"),
            ("seed", "lucky"),
            ("logprobs", "perhaps"),
        ] {
            let error = typed_one(name, text(given)).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{name}");
        }
    }
}
