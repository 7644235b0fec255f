//! The known parameters of a generation. Unknown parameters are rejected by name, because an
//! ignored parameter would silently change the meaning of a request.

use volley_types::params::{COUNT_TOKENS, DETOKENIZE, ECHO, TOKEN_INPUTS, TOKENIZE};
use volley_types::{ParamValue, Parameters, PredictError, unknown_parameter};

/// Parameters that affect the generation.
const HONOURED: [&str; 60] = [
    COUNT_TOKENS,
    DETOKENIZE,
    ECHO,
    TOKEN_INPUTS,
    TOKENIZE,
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "chat_template_kwargs",
    "continue_final_message",
    "frequency_penalty",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "ignore_eos",
    "include_stop_str_in_output",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_new_tokens",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "n_predict",
    "parallel_tool_calls",
    "presence_penalty",
    "raw",
    "reasoning_effort",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "return_token_strs",
    "seed",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    // Parameters that are accepted and do not affect the answer.
    "cache_prompt",
    "cache_salt",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "user",
];

/// Parameters of other servers that are not supported, with the values that have no effect and are
/// therefore accepted.
const NEUTRAL: [(&str, &[Neutral]); 45] = [
    ("audio", &[]),
    ("best_of", &[Neutral::Number(1.0)]),
    ("cache_control", &[]),
    ("chat_template", &[]),
    ("container", &[]),
    ("context_management", &[]),
    ("detokenize_strings", &[]),
    ("documents", &[]),
    ("dry_multiplier", &[Neutral::Number(0.0)]),
    ("dynatemp_range", &[Neutral::Number(0.0)]),
    ("early_stopping", &[Neutral::No]),
    ("exclude_input_in_output", &[Neutral::Yes]),
    ("function_call", &[]),
    ("functions", &[]),
    ("guided_structural_tag", &[]),
    ("inference_geo", &[]),
    ("kv_transfer_params", &[]),
    ("length_penalty", &[Neutral::Number(1.0)]),
    ("logits_processors", &[]),
    ("lora", &[]),
    ("mcp_servers", &[]),
    ("mirostat", &[Neutral::Number(0.0)]),
    ("mm_processor_kwargs", &[]),
    ("modalities", &[Neutral::Text(r#"["text"]"#)]),
    ("moderation", &[]),
    ("n_keep", &[Neutral::Number(0.0)]),
    ("n_probs", &[Neutral::Number(0.0)]),
    ("prediction", &[]),
    ("prompt_logprobs", &[]),
    ("return_token_ids", &[Neutral::No]),
    ("return_tokens", &[Neutral::No]),
    ("return_tokens_as_token_ids", &[Neutral::No]),
    ("safe_prompt", &[Neutral::No]),
    ("samplers", &[]),
    ("skip_special_tokens", &[Neutral::Yes]),
    ("spaces_between_special_tokens", &[Neutral::Yes]),
    ("speed", &[]),
    ("store", &[Neutral::No, Neutral::Yes]),
    ("suffix", &[Neutral::Text("")]),
    ("tfs_z", &[Neutral::Number(1.0)]),
    ("typical_p", &[Neutral::Number(1.0)]),
    ("use_beam_search", &[Neutral::No]),
    ("verbosity", &[Neutral::Text("medium")]),
    ("web_search_options", &[]),
    ("xtc_probability", &[Neutral::Number(0.0)]),
];

/// A value without effect.
#[derive(Clone, Copy)]
enum Neutral {
    Yes,
    No,
    Number(f64),
    Text(&'static str),
}

impl Neutral {
    fn is(self, value: &ParamValue) -> bool {
        match (self, value) {
            (Self::Yes, ParamValue::Bool(value)) => *value,
            (Self::No, ParamValue::Bool(value)) => !*value,
            (Self::Number(number), ParamValue::Int(value)) => {
                (*value as f64 - number).abs() < f64::EPSILON
            }
            (Self::Number(number), ParamValue::Float(value)) => {
                (*value - number).abs() < f64::EPSILON
            }
            (Self::Text(text), ParamValue::Text(value) | ParamValue::Json(value)) => text == value,
            _ => false,
        }
    }
}

/// Rejects unknown and unsupported parameters. `template` is the model's chat template, if there is
/// one.
///
/// # Errors
/// `InvalidInput` with the parameter and the most similar known one.
pub(crate) fn check_names(
    parameters: &Parameters,
    template: Option<&str>,
) -> Result<(), PredictError> {
    for (name, value) in parameters.iter() {
        if let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) {
            if neutral.iter().any(|neutral| neutral.is(value)) {
                continue;
            }
            return Err(PredictError::invalid(format!(
                "parameter '{name}' is not supported by local models; leave it out"
            )));
        }
        match name {
            "reasoning_effort" => known_to(template, name, "reasoning_effort")?,
            "thinking" if asks_to_think(value) => known_to(template, name, "thinking")?,
            _ if HONOURED.contains(&name) => {}
            _ => return Err(unknown(name)),
        }
    }
    Ok(())
}

/// Whether the value requests thinking: `{"type": "enabled"}`.
fn asks_to_think(value: &ParamValue) -> bool {
    let ParamValue::Json(text) = value else {
        return true;
    };
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    !matches!(value["type"].as_str(), Some("disabled" | "adaptive"))
}

fn known_to(template: Option<&str>, name: &str, word: &str) -> Result<(), PredictError> {
    if template.is_some_and(|template| template.contains(word)) {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "parameter '{name}' is not a variable of this model's chat template; leave it out"
    )))
}

fn unknown(name: &str) -> PredictError {
    let names = HONOURED.iter().copied();
    unknown_parameter(name, names.chain(NEUTRAL.iter().map(|(name, _)| *name)))
}
