//! A wire format each: how a request is written, and what its events mean. Pure.
//!
//! A new one is a file with its [`Format`] and a line in [`format`].

pub(crate) mod anthropic;
mod azure;
mod bedrock;
mod calls;
mod citations;
mod cohere;
mod conversation;
mod custom;
mod effort;
mod gemini;
pub(crate) mod hosted;
mod mistral;
pub(crate) mod native;
mod neutral;
mod ollama;
mod open_inference;
pub(crate) mod openai;
mod responses;
pub(crate) mod takes;
pub(crate) mod tgi;
mod tidy;
mod typed;

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;
use volley_backend::items::Item;
use volley_types::registry::{ConnectorSpec, ProviderKind};
use volley_types::{
    Citation, Details, ErrorCode, FinishReason, ParamValue, Parameters, PredictError, Usage,
};

pub(crate) use self::calls::{Calls, deltas};
pub(crate) use self::citations::Passages;
pub(crate) use self::conversation::{messages, openai_messages};
use self::custom::Custom;
pub(crate) use self::custom::Shape;
use self::takes::{Asked, Takes};
use crate::account;
use crate::sse::Framing;
use crate::wish::Wish;
use crate::{reserved, template};

/// A provider's wire format.
pub(crate) struct Format {
    pub(crate) framing: Framing,
    /// The media type of its streams.
    pub(crate) media: &'static str,
    /// What stands before the key in its header.
    pub(crate) key_prefix: &'static str,
    /// Headers that the server demands; a connector may have others in their place.
    pub(crate) headers: &'static [(&'static str, &'static str)],
    /// Whether `stream` is a field of the body, always true. Where it is none, something else asks
    /// for a stream; where neither is said, the connector's template does.
    pub(crate) stream_field: Option<bool>,
    /// How a good answer ends.
    pub(crate) ending: Ending,
    /// What its server takes of a request's parameters.
    pub(crate) takes: &'static Takes,
    /// The body of a request for that model.
    pub(crate) body: MakeBody,
    /// Reads the data of an event.
    pub(crate) read: fn(&str, &mut Calls) -> Result<Step, String>,
    /// Reads a whole answer.
    pub(crate) read_whole: fn(&[u8], &mut Calls) -> Result<Step, String>,
}

/// The parameter of a connector that names the header of its key.
pub(crate) const KEY_HEADER: &str = "credential_header";

/// How a good answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an event that says so.
    Event,
    /// With its body, once it has told why it ends.
    BodyAfterReason,
    /// With its body, where HTTP tells a whole one from one that was cut.
    WholeBody,
}

type MakeBody = fn(&str, &Item, Asked<'_>) -> Result<Value, PredictError>;

/// The tool whose input is the answer, for models that are told the form of one in no other way.
pub(crate) const ANSWER_TOOL: &str = "answer_in_json";

/// The format of that provider.
pub(crate) fn format(provider: ProviderKind) -> &'static Format {
    match provider {
        ProviderKind::OpenAi => &openai::FORMAT,
        ProviderKind::Anthropic => &anthropic::FORMAT,
        ProviderKind::Cohere => &cohere::FORMAT,
        ProviderKind::Mistral => &mistral::FORMAT,
        ProviderKind::Ollama => &ollama::FORMAT,
        ProviderKind::Gemini => &gemini::FORMAT,
        ProviderKind::Vertex => &gemini::ON_VERTEX,
        ProviderKind::Azure => &azure::FORMAT,
        ProviderKind::Tgi => &tgi::FORMAT,
        ProviderKind::OpenInference => &open_inference::FORMAT,
        ProviderKind::Bedrock => &bedrock::FORMAT,
        ProviderKind::OpenAiResponses => &responses::FORMAT,
        ProviderKind::Http => &custom::FORMAT,
    }
}

/// How the answers of one server are read: its provider's format, or what its connector says.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) provider: ProviderKind,
    custom: Option<Arc<Custom>>,
}

impl From<ProviderKind> for Wire {
    fn from(provider: ProviderKind) -> Self {
        Self {
            provider,
            custom: None,
        }
    }
}

impl Wire {
    /// That of a connector's server.
    ///
    /// # Errors
    /// `InvalidInput` where the connector does not say how its server is spoken to, and has to.
    pub(crate) fn of(connector: &ConnectorSpec) -> Result<Self, PredictError> {
        let is_custom = connector.provider == ProviderKind::Http;
        if is_custom && connector.request_body.is_none() {
            return Err(custom::no_template());
        }
        let custom = is_custom.then(|| Custom::of(&connector.parameters));
        Ok(Self {
            provider: connector.provider,
            custom: custom.transpose()?.map(Arc::new),
        })
    }

    /// How a body of that media type is cut; `None` where it cannot be an answer.
    pub(crate) fn shape(&self, media: &str) -> Option<Shape> {
        let format = format(self.provider);
        match (&self.custom, media) {
            (Some(custom), media) => custom.shape(media),
            (None, "application/json") => Some(Shape::Whole),
            (None, media) => (media == format.media).then_some(Shape::Stream(format.framing)),
        }
    }

    /// How a good answer ends.
    pub(crate) fn ending(&self) -> Ending {
        let custom = self.custom.as_ref().map(|custom| custom.ending());
        custom.unwrap_or(format(self.provider).ending)
    }

    /// Whether an answer with nothing in it tells that the connector is wrong.
    pub(crate) fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Reads an event's data.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format; never with what the event says.
    pub(crate) fn read(&self, data: &str, calls: &mut Calls) -> Result<Step, String> {
        let data = data.trim();
        if data.is_empty() {
            return Ok(Step::Delta(Delta::default()));
        }
        match &self.custom {
            Some(custom) => custom.read(data, calls),
            None => (format(self.provider).read)(data, calls),
        }
    }

    /// Reads an answer that is one whole JSON object, from a server that does not stream.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format.
    pub(crate) fn read_whole(&self, body: &[u8], calls: &mut Calls) -> Result<Step, String> {
        match &self.custom {
            Some(custom) => custom.read_whole(body, calls),
            None => (format(self.provider).read_whole)(body, calls),
        }
    }
}

/// What an event brings. Empty where it brings nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    /// A JSON array of tool-call deltas.
    pub(crate) tool_calls: Option<String>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
    /// Those of the prompt that a cache had.
    pub(crate) cached_tokens: Option<u32>,
    /// Those of the prompt that were written to a cache.
    pub(crate) cache_write_tokens: Option<u32>,
    /// Those of the completion that were reasoning.
    pub(crate) reasoning_tokens: Option<u32>,
    /// The probabilities of the text's tokens, as a JSON array in OpenAI's form.
    pub(crate) logprobs: Option<String>,
    /// What the text refers to; an empty list where a passage begins of which that is told later.
    pub(crate) citations: Option<Vec<Citation>>,
    /// What only some dialects have a place for.
    pub(crate) details: Option<Box<Details>>,
    /// What is told of that with the answer's end.
    pub(crate) end: Option<Box<Details>>,
}

impl Delta {
    /// Whether it counts any tokens.
    pub(crate) fn has_usage(&self) -> bool {
        self.prompt_tokens.is_some() || self.completion_tokens.is_some()
    }

    /// Details beside the rest.
    pub(crate) fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Details for the answer's end.
    pub(crate) fn end(&mut self) -> &mut Details {
        self.end.get_or_insert_default()
    }

    /// Whether it has something for the caller by itself.
    pub(crate) fn has_content(&self) -> bool {
        let some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        some(&self.text)
            || some(&self.thinking)
            || some(&self.tool_calls)
            || some(&self.logprobs)
            || self.citations.is_some()
            || self.details.is_some()
    }
}

/// What came of one event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// It brings something, or nothing.
    Delta(Delta),
    /// It brings something, and is the answer's own end.
    Last(Delta),
    /// It brings these, one after the other.
    All(Vec<Delta>),
    /// It is the answer's own end.
    End,
    /// The server says that it failed; its message.
    Failed(String),
    /// The server says that it does not do it, and whose fault that is; its message.
    Refused(ErrorCode, String),
}

/// Where to call: what the connector says, with what the format needs to be asked for a stream.
pub(crate) fn url(provider: ProviderKind, mut url: Url) -> Url {
    let gemini = matches!(provider, ProviderKind::Gemini | ProviderKind::Vertex);
    let stream = gemini && url.path().ends_with(":streamGenerateContent");
    if stream && !url.query_pairs().any(|(name, _)| name == "alt") {
        url.query_pairs_mut().append_pair("alt", "sse");
    }
    url
}

/// The same, where the answer is asked for whole.
pub(crate) fn whole_url(provider: ProviderKind, mut url: Url) -> Url {
    let (streamed, whole) = match provider {
        ProviderKind::Gemini | ProviderKind::Vertex => {
            (":streamGenerateContent", ":generateContent")
        }
        ProviderKind::Bedrock => ("/converse-stream", "/converse"),
        ProviderKind::Tgi | ProviderKind::OpenInference => ("/generate_stream", "/generate"),
        _ => return url,
    };
    if let Some(before) = url.path().strip_suffix(streamed) {
        let path = format!("{before}{whole}");
        url.set_path(&path);
        let others = url.query_pairs().filter(|(name, _)| name != "alt");
        let others: Vec<(String, String)> = others
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
    }
    url
}

/// The body of a request, for an answer that is streamed or `whole`.
///
/// # Errors
/// `InvalidInput` when a template lacks a parameter or makes no JSON object, or the server cannot
/// do what a parameter asks for.
pub(crate) fn body(
    connector: &ConnectorSpec,
    item: &Item,
    wish: &Wish,
    whole: bool,
) -> Result<Value, PredictError> {
    let format = format(connector.provider);
    let fields = &wish.fields;
    let mut body = match &connector.request_body {
        Some(template) => {
            placed(template, wish)?;
            template::fill(template, |name| {
                template_value(connector, item, fields, name)
            })?
        }
        None => {
            let asked = Asked::new(format.takes, wish, &connector.headers)?;
            (format.body)(&connector.model, item, asked)?
        }
    };
    if let Value::Object(fields) = &mut body {
        match format.stream_field {
            // Whatever the caller or a template says: this worker knows what it reads.
            Some(true) => _ = fields.insert("stream".to_owned(), (!whole).into()),
            Some(false) => _ = fields.remove("stream"),
            None => {}
        }
        if whole {
            fields.remove("stream_options");
            // Some backends of this protocol are told among the parameters.
            let told = fields
                .get_mut("parameters")
                .and_then(|given| given.get_mut("stream"));
            if let Some(told) = told.filter(|_| connector.provider == ProviderKind::OpenInference) {
                *told = false.into();
            }
        } else if connector.url.starts_with(OPENAI) && connector.request_body.is_none() {
            unpadded(fields);
        }
    }
    Ok(body)
}

/// Whether each parameter of the request has a place in the connector's template.
///
/// # Errors
/// `InvalidInput` naming one that has none.
fn placed(template: &str, wish: &Wish) -> Result<(), PredictError> {
    let has_place = |name: &str| {
        let place = format!("${{parameters.{name}");
        let mut found = template.match_indices(&place);
        found.any(|(at, _)| {
            let after = &template[at + place.len()..];
            after.starts_with('}') || after.starts_with(":-")
        })
    };
    let mut given = wish
        .fields
        .iter()
        .filter(|(name, _)| wish.given.contains(*name));
    let lost = given.find(|(name, value)| {
        name.as_str() != "stream" && !neutral::is_neutral(name, value) && !has_place(name)
    });
    match lost {
        Some((name, _)) => Err(PredictError::invalid(format!(
            "parameter '{}' has no place in the request body of the model's connector; leave it \
             out",
            reserved::shown(name)
        ))),
        None => Ok(()),
    }
}

/// OpenAI's own servers, which alone know the next.
const OPENAI: &str = "https://api.openai.com/";

/// Asks for events without their random padding, which makes each unlike the one before.
fn unpadded(body: &mut Map<String, Value>) {
    let options = body.entry("stream_options");
    let options = options.or_insert_with(|| Map::new().into());
    if let Value::Object(options) = options {
        options
            .entry("include_obfuscation")
            .or_insert_with(|| false.into());
    }
}

fn template_value(
    connector: &ConnectorSpec,
    item: &Item,
    fields: &Map<String, Value>,
    name: &str,
) -> Option<Value> {
    let given = fields.get(name).cloned();
    given.or_else(|| match (name, item) {
        ("model", _) => Some(connector.model.clone().into()),
        ("prompt" | "inputs", Item::Prompt(prompt)) => Some(prompt.clone().into()),
        ("messages", item) => Some(Value::Array(openai_messages(&messages(item)))),
        _ => None,
    })
}

/// The parameters that say nothing to a server.
const NOT_SENT: [&str; 9] = [
    "raw",
    account::PRICES,
    KEY_HEADER,
    reserved::STREAM_UPSTREAM,
    reserved::PROVIDER_TOOLS,
    "response_filter",
    "pre_process_function",
    "post_process_function",
    "input_docs_processed_step_size",
];

/// All parameters as fields of a body. Names are the server's business.
///
/// # Errors
/// `InvalidInput` naming a parameter that is known and is not of its type.
pub(crate) fn fields(parameters: &Parameters) -> Result<Map<String, Value>, PredictError> {
    let parameters = typed::typed(parameters)?;
    let choices = parameters.unsigned("n")?;
    if choices.is_some_and(|choices| choices != 1) {
        return Err(PredictError::invalid(
            "parameter 'n' must be 1: a request to a remote model has one answer",
        ));
    }
    // `raw` is about chat templates, which are the upstream's business; the others are about the
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

/// Adds what is known of the usage.
pub(crate) fn usage(total: &mut Usage, delta: &Delta) {
    total.prompt_tokens = delta.prompt_tokens.unwrap_or(total.prompt_tokens);
    total.completion_tokens = delta.completion_tokens.unwrap_or(total.completion_tokens);
    total.cached_tokens = delta.cached_tokens.unwrap_or(total.cached_tokens);
    total.cache_write_tokens = delta.cache_write_tokens.unwrap_or(total.cache_write_tokens);
    total.reasoning_tokens = delta.reasoning_tokens.unwrap_or(total.reasoning_tokens);
}

#[cfg(test)]
mod tests;
