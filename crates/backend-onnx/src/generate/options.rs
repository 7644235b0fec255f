//! What a request asks of its generation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use volley_types::{ParamValue, Parameters, PredictError};

use super::constraint::{self, Form};
use super::tools::Function;

/// Tokens generated where the caller does not say.
const DEFAULT_MAX_TOKENS: usize = 256;
/// The most stop strings, and the longest.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// The most answers to one prompt.
const MAX_CHOICES: u64 = 16;
/// The most alternatives of a token that are told.
const MAX_ALTERNATIVES: u64 = 20;
/// The most tokens with a bias.
const MAX_BIASES: usize = 1_024;

/// What a request asks of its generation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) max_tokens: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    /// The prompt is given to the model as it is, without its chat template.
    pub(crate) raw: bool,
    /// Answers to each prompt.
    pub(crate) choices: u32,
    /// Whether each token's probability is told, and with how many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// The form that the answer must have.
    pub(crate) form: Option<Form>,
    /// What the model may call: a JSON array in OpenAI's form.
    pub(crate) tools: Option<Arc<Value>>,
}

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// 0 means the most likely token, always.
    pub(crate) temperature: f32,
    /// 0 means all.
    pub(crate) top_k: usize,
    /// 1 means all.
    pub(crate) top_p: f32,
    /// The least probability, as a share of the likeliest token's; 0 means any.
    pub(crate) min_p: f32,
    /// 1 means none.
    pub(crate) repetition_penalty: f32,
    /// Taken from the logits of tokens that the answer has already; 0 means none.
    pub(crate) presence_penalty: f32,
    /// Taken as often as the answer has the token; 0 means none.
    pub(crate) frequency_penalty: f32,
    pub(crate) seed: Option<u64>,
    /// Added to the logits of these tokens.
    pub(crate) bias: Arc<[(u32, f32)]>,
}

impl Options {
    /// Reads and checks a request's parameters. Sampling is on when any of `temperature`,
    /// `top_k`, `top_p`, `min_p` and `seed` is given (and `temperature` is not 0), else greedy.
    ///
    /// # Errors
    /// `InvalidInput` naming the parameter and its range.
    pub(crate) fn read(parameters: &Parameters, context: usize) -> Result<Self, PredictError> {
        let names = ["max_tokens", "max_completion_tokens", "max_new_tokens"];
        let mut max_tokens = DEFAULT_MAX_TOKENS.min(context);
        for name in names {
            if let Some(given) = parameters.unsigned(name)? {
                let given = usize::try_from(given).unwrap_or(usize::MAX);
                if given == 0 || context < given {
                    return Err(range(name, &format!("1 to {context}, the model's context")));
                }
                max_tokens = given;
                break;
            }
        }
        let stop = parameters.strings("stop")?;
        let fits = |text: &String| !text.is_empty() && text.len() <= MAX_STOP_BYTES;
        if MAX_STOPS < stop.len() || !stop.iter().all(fits) {
            return Err(range(
                "stop",
                &format!("at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes"),
            ));
        }
        let tools = Tools::read(parameters)?;
        let form = match tools.call {
            Some(call) => Some(call),
            None => Form::read(parameters)?,
        };
        Ok(Self {
            max_tokens,
            sampling: Sampling::read(parameters)?,
            stop,
            ignore_eos: parameters.boolean("ignore_eos")?.unwrap_or(false),
            raw: parameters.boolean("raw")?.unwrap_or(false),
            choices: choices(parameters)?,
            logprobs: logprobs(parameters)?,
            form,
            tools: tools.list,
        })
    }
}

impl Options {
    /// How many alternatives of each token are told.
    pub(crate) fn alternatives(&self) -> usize {
        self.logprobs.unwrap_or(0)
    }

    /// Refuses tokens that a vocabulary of this size does not have.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), PredictError> {
        let unknown = |(id, _): &&(u32, f32)| vocabulary <= *id as usize;
        match self.sampling.bias.iter().find(unknown) {
            Some((id, _)) => Err(PredictError::invalid(format!(
                "parameter 'logit_bias' has token {id}, and the model has {vocabulary} tokens"
            ))),
            None => Ok(()),
        }
    }

    /// With a seed where the request has none. What is not sampled stays so.
    pub(crate) fn or_seed(mut self, seed: Option<u64>) -> Self {
        self.sampling.seed = self.sampling.seed.or(seed);
        self
    }

    /// Of several answers to one prompt, each draws for itself.
    pub(crate) fn of_choice(&self, choice: u32) -> Self {
        let mut options = self.clone();
        let seed = &mut options.sampling.seed;
        *seed = seed.map(|seed| seed.wrapping_add(u64::from(choice)));
        options
    }
}

fn choices(parameters: &Parameters) -> Result<u32, PredictError> {
    match parameters.unsigned("n")? {
        Some(choices) if choices == 0 || MAX_CHOICES < choices => {
            Err(range("n", &format!("1 to {MAX_CHOICES}")))
        }
        choices => Ok(choices.map_or(1, |choices| choices as u32)),
    }
}

/// How many alternatives of each token are told; `None` when no probability is.
fn logprobs(parameters: &Parameters) -> Result<Option<usize>, PredictError> {
    let told = parameters.boolean("logprobs")?.unwrap_or(false);
    match parameters.unsigned("top_logprobs")? {
        Some(count) if MAX_ALTERNATIVES < count => {
            Err(range("top_logprobs", &format!("0 to {MAX_ALTERNATIVES}")))
        }
        Some(count) if 0 < count => Ok(Some(count as usize)),
        _ => Ok(told.then_some(0)),
    }
}

/// What may be called, and the call that the answer must be.
#[derive(Default)]
struct Tools {
    list: Option<Arc<Value>>,
    call: Option<Form>,
}

impl Tools {
    fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let choice = parameters.text("tool_choice");
        let choice = choice.as_deref().unwrap_or("auto");
        let list = match choice {
            "none" => None,
            _ => constraint::short(parameters, "tools")?,
        };
        let list = list.map(|text| tools(&text)).transpose()?.flatten();
        let functions = || {
            let tools = list
                .as_ref()
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            tools.map(Function::of).collect::<Option<Vec<_>>>().ok_or_else(|| {
                PredictError::invalid(
                    "parameter 'tools' must list functions with a 'name' and, as 'parameters', a \
                     schema",
                )
            })
        };
        let call = match choice {
            "auto" | "none" => None,
            "required" => Some(functions()?),
            choice => {
                let name = chosen(choice)?;
                Some(
                    functions()?
                        .into_iter()
                        .filter(|function| function.name == name)
                        .collect(),
                )
            }
        };
        if call.as_ref().is_some_and(Vec::is_empty) {
            return Err(PredictError::invalid(
                "parameter 'tool_choice' asks for a function that 'tools' does not have",
            ));
        }
        if call.is_some() && constraint::is_guided(parameters) {
            return Err(PredictError::invalid(
                "an answer that must be a call has the form of one: leave 'guided_json', \
                 'guided_regex' and 'guided_grammar' out, or 'tool_choice'",
            ));
        }
        Ok(Self {
            list: list.map(Arc::new),
            call: call.map(Form::Call),
        })
    }
}

/// The function that a `tool_choice` of JSON names.
fn chosen(choice: &str) -> Result<String, PredictError> {
    let choice: Option<Value> = serde_json::from_str(choice).ok();
    let name = choice
        .as_ref()
        .and_then(|choice| choice.pointer("/function/name"));
    name.and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| {
            PredictError::invalid(
                "parameter 'tool_choice' must be 'auto', 'none', 'required', or \
             {\"type\": \"function\", \"function\": {\"name\": …}}",
            )
        })
}

/// The tools of a JSON list; `None` where it has none.
fn tools(text: &str) -> Result<Option<Value>, PredictError> {
    let tools: Value = serde_json::from_str(text)
        .map_err(|error| PredictError::invalid(format!("parameter 'tools' is no JSON: {error}")))?;
    match tools.as_array() {
        Some(list) if list.is_empty() => Ok(None),
        Some(list) if list.iter().all(Value::is_object) => Ok(Some(tools)),
        _ => Err(PredictError::invalid(
            "parameter 'tools' must be a list of objects",
        )),
    }
}

/// What is added to the logits of some tokens, by their ids.
fn bias(parameters: &Parameters) -> Result<Arc<[(u32, f32)]>, PredictError> {
    let wrong = || {
        range(
            "logit_bias",
            &format!(
                "an object of at most {MAX_BIASES} tokens, by their ids, with numbers from -100 to \
                 100"
            ),
        )
    };
    let Some(text) = parameters.text("logit_bias") else {
        return Ok(Arc::default());
    };
    let biases: BTreeMap<u32, f32> = serde_json::from_str(&text).map_err(|_| wrong())?;
    let fits = biases.values().all(|bias| (-100.0..=100.0).contains(bias));
    if !fits || MAX_BIASES < biases.len() {
        return Err(wrong());
    }
    Ok(biases.into_iter().collect())
}

/// Seeds may be negative, for some callers draw them from all 64 bits.
fn seed(parameters: &Parameters) -> Result<Option<u64>, PredictError> {
    match parameters.get("seed") {
        Some(ParamValue::Int(seed)) => Ok(Some(seed.cast_unsigned())),
        _ => parameters.unsigned("seed"),
    }
}

impl Sampling {
    fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let temperature = number(parameters, "temperature", 0.0, 100.0)?;
        let top_p = number(parameters, "top_p", 0.0, 1.0)?;
        let min_p = number(parameters, "min_p", 0.0, 1.0)?;
        let penalty = number(parameters, "repetition_penalty", 0.01, 100.0)?;
        let presence = number(parameters, "presence_penalty", -2.0, 2.0)?;
        let frequency = number(parameters, "frequency_penalty", -2.0, 2.0)?;
        let top_k = parameters.unsigned("top_k")?;
        let seed = seed(parameters)?;
        let sampled = top_p.is_some() || min_p.is_some() || top_k.is_some() || seed.is_some();
        Ok(Self {
            temperature: temperature.unwrap_or(if sampled { 1.0 } else { 0.0 }),
            top_k: top_k.map_or(0, |top_k| usize::try_from(top_k).unwrap_or(usize::MAX)),
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            repetition_penalty: penalty.unwrap_or(1.0),
            presence_penalty: presence.unwrap_or(0.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            seed,
            bias: bias(parameters)?,
        })
    }
}

fn number(
    parameters: &Parameters,
    name: &str,
    low: f64,
    high: f64,
) -> Result<Option<f32>, PredictError> {
    match parameters.float(name)? {
        Some(value) if value < low || high < value => Err(range(name, &format!("{low} to {high}"))),
        value => Ok(value.map(|value| value as f32)),
    }
}

fn range(name: &str, allowed: &str) -> PredictError {
    PredictError::invalid(format!("parameter '{name}' must be {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, ParamValue)]) -> Result<Options, PredictError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        Options::read(&pairs.collect(), 1_000)
    }

    #[test]
    fn nothing_given_is_greedy_and_anything_of_sampling_turns_it_on() {
        assert!(read(&[]).unwrap().sampling.temperature.abs() < f32::EPSILON);
        for (name, value) in [
            ("top_p", ParamValue::Float(0.9)),
            ("seed", ParamValue::Int(7)),
        ] {
            let sampling = read(&[(name, value)]).unwrap().sampling;
            assert!((sampling.temperature - 1.0).abs() < f32::EPSILON);
        }
        let both = read(&[
            ("temperature", ParamValue::Int(0)),
            ("seed", ParamValue::Int(7)),
        ]);
        assert!(both.unwrap().sampling.temperature.abs() < f32::EPSILON);
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (name, value) in [
            ("max_tokens", ParamValue::Int(0)),
            ("max_tokens", ParamValue::Int(1_001)),
            ("temperature", ParamValue::Float(-0.1)),
            ("top_p", ParamValue::Float(1.1)),
            ("min_p", ParamValue::Float(-0.5)),
            ("repetition_penalty", ParamValue::Int(0)),
            ("top_logprobs", ParamValue::Int(21)),
            ("logit_bias", ParamValue::Json(r#"{"1": 101}"#.into())),
            ("logit_bias", ParamValue::Json(r#"{"fox": 1}"#.into())),
            ("tool_choice", ParamValue::Text("required".into())),
            ("tool_choice", ParamValue::Text("perhaps".into())),
            ("stop", ParamValue::Text(String::new())),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.message.contains(name), "{}", error.message);
        }
    }
}
