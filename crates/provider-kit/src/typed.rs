//! Converts well-known parameters to the types that servers require, because some dialects send
//! every value as text.

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

use crate::reserved::{KEY_HEADER, PRICES, PROVIDER_TOOLS, STREAM_UPSTREAM};

/// Parameters of OpenAI, vLLM, SGLang and llama.cpp's server.
const NUMBERS: [&str; 11] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "repeat_penalty",
    "length_penalty",
    "dynatemp_range",
    "xtc_probability",
];
const COUNTS: [&str; 6] = [
    "max_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "min_tokens",
    "max_output_tokens",
    "top_logprobs",
];
const FLAGS: [&str; 9] = [
    "logprobs",
    "parallel_tool_calls",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "add_generation_prompt",
    "separate_reasoning",
    "cache_prompt",
];
/// Integers that may be negative; `top_k` is -1 for all tokens.
const WHOLE: [&str; 4] = ["seed", "top_k", "truncate_prompt_tokens", "dimensions"];
/// Parameters that may also be plain text, such as a stop sequence or `auto`.
const JSON: [&str; 20] = [
    "stop",
    "stop_sequences",
    "tools",
    "tool_choice",
    "response_format",
    "logit_bias",
    "thinking",
    "metadata",
    "stop_token_ids",
    "bad_words",
    "chat_template_kwargs",
    "structured_outputs",
    "guided_json",
    "guided_choice",
    "json_schema",
    "logit_processors",
    "reasoning",
    "text",
    "include",
    "lora",
];

/// Converts well-known `parameters` to their types. Others stay unchanged.
///
/// # Errors
/// `InvalidInput` naming a parameter with a value of the wrong type.
pub fn typed(parameters: &Parameters) -> Result<Parameters, PredictError> {
    let typed = parameters.iter().map(|(name, value)| {
        let known = one(parameters, name, value)?;
        Ok((name.to_owned(), known.unwrap_or_else(|| value.clone())))
    });
    typed.collect()
}

/// Converts one parameter; `None` if it stays unchanged.
fn one(
    parameters: &Parameters,
    name: &str,
    value: &ParamValue,
) -> Result<Option<ParamValue>, PredictError> {
    if let (true, ParamValue::Bool(_)) = (is_number(name), value) {
        let why = "must be a number, not true or false";
        return Err(PredictError::invalid(format!("parameter '{name}' {why}")));
    }
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
        ParamValue::Float(number) if WHOLE.contains(&name) && number.fract() == 0.0 => {
            Some(ParamValue::Int(whole(name, *number)?))
        }
        ParamValue::Text(text) if WHOLE.contains(&name) => {
            let whole = text.trim().parse().map(ParamValue::Int);
            Some(whole.map_err(|_| {
                PredictError::invalid(format!("parameter '{name}' must be a whole number"))
            })?)
        }
        ParamValue::Text(text) if JSON.contains(&name) && is_nested_json(text) => {
            Some(ParamValue::Json(text.clone()))
        }
        _ => None,
    })
}

/// Whether the parameter is a number.
fn is_number(name: &str) -> bool {
    NUMBERS.contains(&name) || COUNTS.contains(&name) || WHOLE.contains(&name)
}

/// Converts a number without a fraction.
fn whole(name: &str, number: f64) -> Result<i64, PredictError> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if (-END..END).contains(&number) {
        return Ok(number as i64);
    }
    Err(PredictError::invalid(format!(
        "parameter '{name}' is out of range: it must be a whole number from -2^63 to 2^63 - 1"
    )))
}

fn is_nested_json(text: &str) -> bool {
    text.trim_start().starts_with(['[', '{'])
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Parameters that are not sent to servers.
const NOT_SENT: [&str; 9] = [
    "raw",
    PRICES,
    KEY_HEADER,
    STREAM_UPSTREAM,
    PROVIDER_TOOLS,
    "response_filter",
    "pre_process_function",
    "post_process_function",
    "input_docs_processed_step_size",
];

/// All parameters as fields of a body, with unchanged names.
///
/// # Errors
/// `InvalidInput` naming a parameter with a value of the wrong type, or 'n' other than 1.
pub fn fields(parameters: &Parameters) -> Result<Map<String, Value>, PredictError> {
    let parameters = typed(parameters)?;
    let choices = parameters.unsigned("n")?;
    if choices.is_some_and(|choices| choices != 1) {
        return Err(PredictError::invalid(
            "parameter 'n' must be 1: a request to a remote model has one answer",
        ));
    }
    // `raw` concerns the chat template, which the upstream applies. The others configure the
    // connector.
    let given = parameters
        .iter()
        .filter(|(name, _)| !NOT_SENT.contains(name));
    let fields = given.map(|(name, value)| {
        let value = match name {
            "stop" => parameters.strings(name)?.into(),
            "n" => 1.into(),
            _ => json(value),
        };
        Ok((name.to_owned(), value))
    });
    fields.collect()
}

fn json(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => (*value).into(),
        ParamValue::Int(value) => (*value).into(),
        ParamValue::Float(value) => (*value).into(),
        ParamValue::Text(text) => text.as_str().into(),
        ParamValue::Json(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
    }
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
            ("top_k", text("-1"), ParamValue::Int(-1)),
            ("min_p", text("0.05"), ParamValue::Float(0.05)),
            ("ignore_eos", text("true"), ParamValue::Bool(true)),
            (
                "guided_choice",
                text("[\"a\"]"),
                ParamValue::Json("[\"a\"]".to_owned()),
            ),
            ("guided_regex", text("[ab]+"), text("[ab]+")),
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
        for (name, given) in [
            ("seed", ParamValue::Float(9_223_372_036_854_775_808.0)),
            ("top_k", ParamValue::Float(-1e30)),
            ("temperature", ParamValue::Bool(true)),
            ("max_tokens", ParamValue::Bool(true)),
            ("seed", ParamValue::Bool(false)),
        ] {
            let error = typed_one(name, given).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{name}");
        }
    }
}
