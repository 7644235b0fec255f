//! How one server is spoken to: its provider's format, or what its connector says.

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;
use volley_backend::items::Item;
use volley_types::PredictError;
use volley_types::registry::ConnectorSpec;

use crate::calls::ToolCallAccumulator;
use crate::conversation::{messages, openai_messages};
use crate::framing::{BodyFraming, StreamEnd};
use crate::options::RequestOptions;
use crate::parameters::RequestFields;
use crate::provider::{Provider, ReadAnswer};
use crate::step::{Delta, Step};
use crate::{neutral, reserved, template};

/// How the answers of one server are read: its provider's format, or what its connector says.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Whose format.
    pub provider: &'static Provider,
    reader: Option<Arc<dyn ReadAnswer>>,
}

impl From<&'static Provider> for Wire {
    fn from(provider: &'static Provider) -> Self {
        Self {
            provider,
            reader: None,
        }
    }
}

impl Wire {
    /// That of a connector's server.
    ///
    /// # Errors
    /// `InvalidInput` where the connector does not say how its server is spoken to, and has to.
    pub fn of(
        provider: &'static Provider,
        connector: &ConnectorSpec,
    ) -> Result<Self, PredictError> {
        let reader = provider.configure.map(|configure| configure(connector));
        Ok(Self {
            provider,
            reader: reader.transpose()?,
        })
    }

    /// How a body of that media type is cut; `None` where it cannot be an answer.
    pub fn shape(&self, media: &str) -> Option<BodyFraming> {
        let provider = self.provider;
        match (&self.reader, media) {
            (Some(reader), media) => reader.shape(media),
            (None, "application/json") => Some(BodyFraming::Whole),
            (None, media) => {
                (media == provider.media).then_some(BodyFraming::Stream(provider.framing))
            }
        }
    }

    /// How a good answer ends.
    pub fn ending(&self) -> StreamEnd {
        let reader = self.reader.as_ref().map(|reader| reader.ending());
        reader.unwrap_or(self.provider.ending)
    }

    /// Whether an answer with nothing in it tells that the connector is wrong.
    pub fn is_custom(&self) -> bool {
        self.reader.is_some()
    }

    /// Reads an event's data.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format; never with what the event says.
    pub fn read(&self, data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        let data = data.trim();
        if data.is_empty() {
            return Ok(Step::Delta(Delta::default()));
        }
        match &self.reader {
            Some(reader) => reader.read(data, calls),
            None => (self.provider.read)(data, calls),
        }
    }

    /// Reads an answer that is one whole JSON object, from a server that does not stream.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format.
    pub fn read_whole(&self, body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        match &self.reader {
            Some(reader) => reader.read_whole(body, calls),
            None => (self.provider.read_whole)(body, calls),
        }
    }
}

/// Where to call: what the connector says, with what the provider needs to be asked for a stream.
#[must_use]
pub fn url(provider: &Provider, mut url: Url) -> Url {
    let Some((name, value)) = provider.stream_query else {
        return url;
    };
    let streams = provider
        .whole_route
        .is_none_or(|(streamed, _)| url.path().ends_with(streamed));
    if streams && !url.query_pairs().any(|(given, _)| given == name) {
        url.query_pairs_mut().append_pair(name, value);
    }
    url
}

/// The same, where the answer is asked for whole.
#[must_use]
pub fn whole_url(provider: &Provider, mut url: Url) -> Url {
    let Some((streamed, whole)) = provider.whole_route else {
        return url;
    };
    if let Some(before) = url.path().strip_suffix(streamed) {
        let path = format!("{before}{whole}");
        url.set_path(&path);
        let of_streams = provider.stream_query.map(|(name, _)| name);
        let others = url.query_pairs();
        let others = others.filter(|(name, _)| Some(name.as_ref()) != of_streams);
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
    provider: &Provider,
    connector: &ConnectorSpec,
    item: &Item,
    options: &RequestOptions,
    whole: bool,
) -> Result<Value, PredictError> {
    let fields = &options.fields;
    let mut body = match &connector.request_body {
        Some(template) => {
            placed(template, options)?;
            template::fill(template, |name| {
                template_value(connector, item, fields, name)
            })?
        }
        None => {
            let request = RequestFields::new(provider.parameters, options, &connector.headers)?;
            (provider.body)(&connector.model, item, request)?
        }
    };
    if let Value::Object(fields) = &mut body {
        match provider.stream_field {
            // Whatever the caller or a template says: this worker knows what it reads.
            Some(true) => _ = fields.insert("stream".to_owned(), (!whole).into()),
            Some(false) => _ = fields.remove("stream"),
            None => {}
        }
        if whole {
            fields.remove("stream_options");
            (provider.make_whole)(fields);
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
fn placed(template: &str, options: &RequestOptions) -> Result<(), PredictError> {
    let has_place = |name: &str| {
        let place = format!("${{parameters.{name}");
        let mut found = template.match_indices(&place);
        found.any(|(at, _)| {
            let after = &template[at + place.len()..];
            after.starts_with('}') || after.starts_with(":-")
        })
    };
    let mut given = options
        .fields
        .iter()
        .filter(|(name, _)| options.given.contains(*name));
    let lost = given.find(|(name, value)| {
        name.as_str() != "stream" && !neutral::is_neutral(name, value) && !has_place(name)
    });
    match lost {
        Some((name, _)) => Err(PredictError::invalid(format!(
            "parameter '{}' is not used in the request body of the model's connector; leave it out",
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
