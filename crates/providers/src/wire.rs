//! How one server is spoken to: its provider's format, or what its connector says.

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;
use volley_backend::items::Item;
use volley_provider_kit::calls::Calls;
use volley_provider_kit::conversation::{messages, openai_messages};
use volley_provider_kit::framing::{Ending, Shape};
use volley_provider_kit::step::{Delta, Step};
use volley_provider_kit::takes::Asked;
use volley_provider_kit::wish::Wish;
use volley_provider_kit::{neutral, reserved, template};
use volley_types::PredictError;
use volley_types::registry::{ConnectorSpec, ProviderKind};

use crate::custom::{self, Custom};
use crate::format;

/// How the answers of one server are read: its provider's format, or what its connector says.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Whose format.
    pub provider: ProviderKind,
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
    pub fn of(connector: &ConnectorSpec) -> Result<Self, PredictError> {
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
    pub fn shape(&self, media: &str) -> Option<Shape> {
        let format = format(self.provider);
        match (&self.custom, media) {
            (Some(custom), media) => custom.shape(media),
            (None, "application/json") => Some(Shape::Whole),
            (None, media) => (media == format.media).then_some(Shape::Stream(format.framing)),
        }
    }

    /// How a good answer ends.
    pub fn ending(&self) -> Ending {
        let custom = self.custom.as_ref().map(|custom| custom.ending());
        custom.unwrap_or(format(self.provider).ending)
    }

    /// Whether an answer with nothing in it tells that the connector is wrong.
    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Reads an event's data.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format; never with what the event says.
    pub fn read(&self, data: &str, calls: &mut Calls) -> Result<Step, String> {
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
    pub fn read_whole(&self, body: &[u8], calls: &mut Calls) -> Result<Step, String> {
        match &self.custom {
            Some(custom) => custom.read_whole(body, calls),
            None => (format(self.provider).read_whole)(body, calls),
        }
    }
}

/// Where to call: what the connector says, with what the format needs to be asked for a stream.
pub fn url(provider: ProviderKind, mut url: Url) -> Url {
    let gemini = matches!(provider, ProviderKind::Gemini | ProviderKind::Vertex);
    let stream = gemini && url.path().ends_with(":streamGenerateContent");
    if stream && !url.query_pairs().any(|(name, _)| name == "alt") {
        url.query_pairs_mut().append_pair("alt", "sse");
    }
    url
}

/// The same, where the answer is asked for whole.
pub fn whole_url(provider: ProviderKind, mut url: Url) -> Url {
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
pub fn body(
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
