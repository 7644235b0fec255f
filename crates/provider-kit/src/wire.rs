//! Request bodies, URLs and readers of answers for one connector's server.

use std::sync::Arc;

use serde_json::{Map, Value};
use url::Url;
use volley_backend::items::Item;
use volley_types::PredictError;
use volley_types::registry::ConnectorSpec;

use crate::calls::ToolCallAccumulator;
use crate::conversation::{messages, openai_messages};
use crate::framing::{BodyFraming, StreamEnd};
use crate::names::NameRules;
use crate::options::RequestOptions;
use crate::parameters::RequestFields;
use crate::provider::{Address, Provider, ReadAnswer};
use crate::step::{Delta, Step};
use crate::{names, neutral, reserved, template};

/// Reads the answers of one server, in the provider's format or as the connector describes it.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The provider.
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
    /// Creates the reader for a connector's server.
    ///
    /// # Errors
    /// `InvalidInput` if the provider needs a description of the server, and the connector's is
    /// missing or malformed.
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

    /// The framing of a media type; `None` if it cannot be an answer.
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

    /// How a complete answer ends.
    pub fn ending(&self) -> StreamEnd {
        let reader = self.reader.as_ref().map(|reader| reader.ending());
        reader.unwrap_or(self.provider.ending)
    }

    /// Whether the connector describes the format. An empty answer then indicates a wrong
    /// description.
    pub fn is_custom(&self) -> bool {
        self.reader.is_some()
    }

    /// Reads the data of one event. Blank data yield an empty delta.
    ///
    /// # Errors
    /// A description of what is malformed, without the event's content.
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

    /// Reads a whole answer, one JSON object, from a server that does not stream.
    ///
    /// # Errors
    /// A description of what is malformed.
    pub fn read_whole(&self, body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        match &self.reader {
            Some(reader) => reader.read_whole(body, calls),
            None => (self.provider.read_whole)(body, calls),
        }
    }
}

/// The URL for a streamed answer: the connector's, with the provider's query parameter for streams.
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

/// The URL for a whole answer.
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

/// The rules for names at the connector's server; `None` if it does not check names.
#[must_use]
pub fn name_rules(provider: &Provider, connector: &ConnectorSpec) -> Option<NameRules> {
    let address = Address::of(&connector.url);
    let is_of = |domain: &&str| address.is_of(domain);
    provider
        .names
        .filter(|_| connector.request_body.is_none())
        .filter(|rules| rules.domains.is_empty() || rules.domains.iter().any(is_of))
}

/// Builds the body of a request for a streamed or a `whole` answer.
///
/// # Errors
/// `InvalidInput` if a template lacks a parameter or does not yield a JSON object, or naming a
/// parameter that the server does not support.
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
            unrendered(provider, connector, options)?;
            let rules = name_rules(provider, connector);
            let fitted = rules.and_then(|rules| names::fitted(rules, item, options));
            let (item, options) = fitted
                .as_ref()
                .map_or((item, options), |(item, options)| (item, options));
            let request = RequestFields::new(provider.parameters, options, &connector.headers)?;
            (provider.body)(&connector.model, item, request)?
        }
    };
    if let Value::Object(fields) = &mut body {
        if connector.request_body.is_none()
            && (connector.url.starts_with(OPENAI) || provider.name.as_str() == "azure")
        {
            without_reasoning(fields);
        }
        match provider.stream_field {
            // Overrides callers and templates, because the reader depends on the field.
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

/// The URL for a prompt that the server must not put into its template, if it has such a route.
#[must_use]
pub fn raw_url(provider: &Provider, url: &Url) -> Option<Url> {
    let (template, raw) = provider.raw_route?;
    let before = url.path().strip_suffix(template)?;
    let path = format!("{before}{raw}");
    let mut url = url.clone();
    url.set_path(&path);
    Some(url)
}

/// Rejects an explicit `raw` where the server would apply its chat template to the prompt.
fn unrendered(
    provider: &Provider,
    connector: &ConnectorSpec,
    options: &RequestOptions,
) -> Result<(), PredictError> {
    let has_route = || {
        let url = Url::parse(&connector.url).ok();
        url.is_some_and(|url| raw_url(provider, &url).is_some())
    };
    if !options.is_raw() || !provider.takes_messages || has_route() {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "parameter 'raw' is not supported by {}: the server applies its own chat template; leave \
         it out",
        provider.parameters.server
    )))
}

/// Checks that the connector's template uses each parameter of the request.
///
/// # Errors
/// `InvalidInput` naming an unused parameter.
pub(crate) fn placed(template: &str, options: &RequestOptions) -> Result<(), PredictError> {
    let has_place = |name: &str| template::has_place(template, name);
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

/// OpenAI's own servers. Only they support `include_obfuscation`.
const OPENAI: &str = "https://api.openai.com/";

/// Removes the reasoning of earlier answers. OpenAI's chat completions do not return any, and reject
/// that of other servers.
fn without_reasoning(body: &mut Map<String, Value>) {
    let turns = body.get_mut("messages").and_then(Value::as_array_mut);
    for turn in turns.into_iter().flatten() {
        turn.as_object_mut()
            .map(|turn| turn.remove("reasoning_content"));
    }
}

/// Disables the random padding of events, which would defeat the delta template.
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
