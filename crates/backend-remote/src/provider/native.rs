//! Requests that go to a server as their dialect has them, and parts of answers that only one
//! format knows. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use volley_types::registry::{ConnectorSpec, ProviderKind};
use volley_types::{Native, PredictError};

use crate::reserved;
use crate::wish::Wish;

/// The longest input of a part that is read piece by piece, in bytes.
const MAX_INPUT: usize = 4 << 20;

/// Fields of a body that are the worker's own to say.
const OURS: [&str; 3] = ["model", "stream", "stream_options"];

/// The forms in which servers of that provider take requests as they are.
pub(crate) fn forms(connector: &ConnectorSpec) -> &'static [&'static str] {
    if connector.request_body.is_some() {
        return &[];
    }
    match connector.provider {
        ProviderKind::Anthropic => &["anthropic"],
        ProviderKind::OpenAi | ProviderKind::Azure => &["openai"],
        ProviderKind::OpenAiResponses => &["openai_responses"],
        ProviderKind::Cohere => &["cohere"],
        ProviderKind::Ollama => &["ollama"],
        _ => &[],
    }
}

/// Whether that server is sent the images of messages.
pub(crate) fn takes_images(connector: &ConnectorSpec) -> bool {
    let texts_alone = [
        ProviderKind::Http,
        ProviderKind::Tgi,
        ProviderKind::OpenInference,
    ];
    connector.request_body.is_none() && !texts_alone.contains(&connector.provider)
}

/// Whether that server takes the request as it is.
///
/// # Errors
/// `InvalidInput` naming what the request's rows lack of it, where it does not.
pub(crate) fn fits(native: &Native, connector: &ConnectorSpec) -> Result<bool, PredictError> {
    let fits = forms(connector).contains(&native.format.as_str());
    match &native.lost {
        Some(lost) if !fits => Err(PredictError::invalid(format!(
            "{lost}: servers of the provider '{}' are not sent it",
            connector.provider.as_str()
        ))),
        _ => Ok(fits),
    }
}

/// The body of a request that is sent as it is, with the defaults of the connector and the model
/// for what it does not say.
pub(crate) fn body(native: &Native, connector: &ConnectorSpec, wish: &Wish, whole: bool) -> Value {
    let mut body = native.body.clone();
    let defaults = wish
        .fields
        .iter()
        .filter(|(name, _)| !wish.given.contains(*name) && !reserved::is_reserved(name));
    for (name, value) in defaults {
        body.entry(name.clone()).or_insert_with(|| value.clone());
    }
    body.insert("model".to_owned(), connector.model.as_str().into());
    body.insert("stream".to_owned(), (!whole).into());
    if connector.provider == ProviderKind::OpenAiResponses {
        body.entry("store").or_insert_with(|| false.into());
    }
    Value::Object(body)
}

/// Whether all of a body is in the request. That of a chat completion has only the messages, as its
/// other fields are parameters by their own names.
pub(crate) fn is_whole(native: &Native) -> bool {
    native.format != "openai"
}

/// Puts the fields of the request in place of those that were made of its rows.
pub(crate) fn overlay(body: &mut Map<String, Value>, native: &Native) {
    for (name, value) in &native.body {
        if !OURS.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        }
    }
}

/// Adds the headers of the request. A connector's own version wins; features are asked for
/// together.
pub(crate) fn headers(native: &Native, connector: &ConnectorSpec, headers: &mut HeaderMap) {
    let known = ["anthropic-version", "anthropic-beta"];
    for name in known {
        let Some(given) = native.headers.get(name) else {
            continue;
        };
        let mut own = connector.headers.iter();
        let own = own.find(|(own, _)| own.eq_ignore_ascii_case(name));
        let value = match own {
            Some(_) if name == "anthropic-version" => continue,
            Some((_, own)) => format!("{own},{given}"),
            None => given.clone(),
        };
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// What is kept of an answer in blocks while it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    /// One of a kind that only its server knows, with the pieces of its input.
    open: Option<(u64, Value, String)>,
    /// The usage as far as it was told: later numbers take the place of earlier ones.
    pub(super) usage: Map<String, Value>,
    /// Whether the block before was text.
    pub(super) after_text: bool,
    /// Inputs that came with the beginnings of calls.
    inputs: Vec<(u64, String)>,
}

impl Blocks {
    /// A block of a kind that only its server knows begins.
    pub(super) fn begin(&mut self, number: u64, block: Value) {
        self.open = Some((number, block, String::new()));
    }

    /// More of its input.
    pub(super) fn more(&mut self, number: u64, input: &str) {
        if let Some((open, _, given)) = &mut self.open
            && *open == number
            && given.len() + input.len() <= MAX_INPUT
        {
            given.push_str(input);
        }
    }

    /// It ends here.
    pub(super) fn end(&mut self, number: u64) -> Option<Value> {
        let (open, ..) = self.open.as_ref()?;
        if *open != number {
            return None;
        }
        let (_, mut block, input) = self.open.take()?;
        if let Ok(input) = serde_json::from_str::<Value>(&input) {
            block["input"] = input;
        }
        Some(block)
    }

    /// A call begins with this input, which counts where no pieces of one follow.
    pub(super) fn keep_input(&mut self, number: u64, input: &Value) {
        if input.as_object().is_some_and(|input| !input.is_empty()) {
            self.inputs.push((number, input.to_string()));
        }
    }

    /// The input with which the call of that number began.
    pub(super) fn take_input(&mut self, number: u64) -> Option<String> {
        let at = self.inputs.iter().position(|(known, _)| *known == number)?;
        Some(self.inputs.remove(at).1)
    }

    /// Takes in what is told of the usage; nulls say nothing.
    pub(super) fn count(&mut self, told: &Value) {
        for (name, value) in told.as_object().into_iter().flatten() {
            if !value.is_null() {
                self.usage.insert(name.clone(), value.clone());
            }
        }
    }
}
