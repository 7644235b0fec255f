//! What a provider is: its name, how its servers are addressed and asked, and how their answers are
//! read.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use volley_backend::items::Item;
use volley_types::PredictError;
use volley_types::registry::{ConnectorSpec, ProviderName};

use crate::calls::ToolCallAccumulator;
use crate::framing::{BodyFraming, Framing, StreamEnd};
use crate::hosted;
use crate::parameters::{ParameterTable, RequestFields};
use crate::rows::post_process::PostProcess;
use crate::rows::pre_process::PreProcess;
use crate::step::Step;

/// A provider of remote models. A file of `volley-providers` has one, and nothing outside of that
/// file and the list names it.
pub struct Provider {
    /// The name in a connector, in metrics and in documents.
    pub name: ProviderName,
    /// Other names that a connector may give it.
    pub aliases: &'static [&'static str],
    /// Its row in the reference of connectors.
    pub page: Page,
    /// The path of the route that is called, with `{model}` where the model's name stands in it.
    pub route: &'static str,
    /// Whether servers may have their only route at the root.
    pub at_root: bool,
    /// Whether a connector's URL tells that its server is of this provider.
    pub recognizes: fn(&Address<'_>) -> bool,
    /// The model that a URL names, where servers have it there.
    pub model_of_url: fn(&str) -> Option<&str>,
    /// The header, in lower case, that carries the credential.
    pub key_header: &'static str,
    /// What stands before the key in its header.
    pub key_prefix: &'static str,
    /// Headers that the server demands; a connector may have others in their place.
    pub headers: &'static [(&'static str, &'static str)],
    /// The service of Amazon's for which requests are signed, unless the credential is one token.
    pub signing_service: Option<&'static str>,
    /// How streams are cut into events.
    pub framing: Framing,
    /// The media type of its streams.
    pub media: &'static str,
    /// Whether `stream` is a field of the body, always true. Where it is none, something else asks
    /// for a stream; where neither is said, the connector's template does.
    pub stream_field: Option<bool>,
    /// The query parameter that a streaming route demands beside its path's ending.
    pub stream_query: Option<(&'static str, &'static str)>,
    /// The endings of a streaming route and of the route for whole answers, where they differ.
    pub whole_route: Option<(&'static str, &'static str)>,
    /// Changes the body of a request for a whole answer, beyond `stream`.
    pub make_whole: fn(&mut Map<String, Value>),
    /// How a good answer ends.
    pub ending: StreamEnd,
    /// The request parameters that its server takes.
    pub parameters: &'static ParameterTable,
    /// The dialects whose requests its server takes as they are.
    pub native: &'static [&'static str],
    /// Fields of a request that is sent as it is, unless the request has them.
    pub native_defaults: &'static [(&'static str, bool)],
    /// Whether the server is sent the images of messages.
    pub takes_images: bool,
    /// Whether the server takes conversations, and not prompts alone.
    pub takes_messages: bool,
    /// Whether the fields of its body are parameters under the same names.
    pub flat_body: bool,
    /// The form of its whole answers, where OpenSearch's clients know it.
    pub answer_form: Option<AnswerForm>,
    /// Whether its server keeps to `parallel_tool_calls`; answers of others are checked.
    pub limits_calls: bool,
    /// Whether its server keeps to all of a schema; answers of others are checked.
    pub keeps_schemas: bool,
    /// Whether its citations count the bytes of the text, and not the characters.
    pub counts_bytes: bool,
    /// The type of a tool that runs at the provider; `None` for one that runs at the caller.
    pub hosted_tool: fn(&Value) -> Option<&str>,
    /// How rows are sent to servers that embed or rerank, where the URL tells in a way that only
    /// this provider has.
    pub rows: fn(&ConnectorSpec) -> Option<(PreProcess, PostProcess)>,
    /// Reads what the connector says of its server, where that is for the connector to say.
    pub configure: Option<Configure>,
    /// Makes the body of a request for a model.
    pub body: MakeBody,
    /// Reads the data of an event.
    pub read: fn(&str, &mut ToolCallAccumulator) -> Result<Step, String>,
    /// Reads a whole answer.
    pub read_whole: fn(&[u8], &mut ToolCallAccumulator) -> Result<Step, String>,
}

/// Makes the body of a request: for a model, of an item and its parameters.
pub type MakeBody = fn(&str, &Item, RequestFields<'_>) -> Result<Value, PredictError>;

/// Makes the reader of the answers of one connector's server.
pub type Configure = fn(&ConnectorSpec) -> Result<Arc<dyn ReadAnswer>, PredictError>;

/// The tool whose input is the answer, for models that are told the form of one in no other way.
pub const ANSWER_TOOL: &str = "answer_in_json";

impl Provider {
    /// A provider with what each must have. It speaks as most do: `stream` in the body, server-sent
    /// events, a bearer token, and an event that ends the answer.
    #[must_use]
    pub const fn new(
        name: &'static str,
        parameters: &'static ParameterTable,
        body: MakeBody,
    ) -> Self {
        Self {
            name: ProviderName::from_static(name),
            aliases: &[],
            page: Page::NONE,
            route: "/",
            at_root: false,
            recognizes: |_| false,
            model_of_url: |_| None,
            key_header: "authorization",
            key_prefix: "Bearer ",
            headers: &[],
            signing_service: None,
            framing: Framing::Sse,
            media: "text/event-stream",
            stream_field: Some(true),
            stream_query: None,
            whole_route: None,
            make_whole: |_| {},
            ending: StreamEnd::Event,
            parameters,
            native: &[],
            native_defaults: &[],
            takes_images: true,
            takes_messages: true,
            flat_body: false,
            answer_form: None,
            limits_calls: true,
            keeps_schemas: true,
            counts_bytes: false,
            hosted_tool: hosted::of_type,
            rows: |_| None,
            configure: None,
            body,
            read: |_, _| Err("a provider without a format of events".to_owned()),
            read_whole: |_, _| Err("a provider without a format of answers".to_owned()),
        }
    }

    /// Whether the connector describes its server, and this provider leaves that to it.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.configure.is_some()
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Provider").field(&self.name).finish()
    }
}

/// A provider's row in the reference of connectors, in Markdown.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The endpoint that a connector's URL names.
    pub endpoint: &'static str,
    /// How the key is sent.
    pub key: &'static str,
    /// What in a URL tells that it is of this provider.
    pub url: &'static str,
}

impl Page {
    /// A row that is still to be written.
    pub const NONE: Self = Self {
        endpoint: "",
        key: "`Authorization: Bearer`",
        url: "never",
    };
}

/// Where a connector's URL leads, for telling the provider of its server.
#[derive(Clone, Debug)]
pub struct Address<'a> {
    /// The host, in lower case and without a port.
    pub host: String,
    /// The path, without the `/` that it begins with and without a query.
    pub path: &'a str,
}

impl<'a> Address<'a> {
    /// Reads a URL; what is none has an empty host or path.
    #[must_use]
    pub fn of(url: &'a str) -> Self {
        let url = url.split_once("://").map_or(url, |(_, rest)| rest);
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = url.split_once('/').unwrap_or((url, ""));
        let host = host.split(':').next().unwrap_or_default();
        Self {
            host: host.to_ascii_lowercase(),
            path,
        }
    }

    /// Whether the host is of that domain.
    #[must_use]
    pub fn is_of(&self, domain: &str) -> bool {
        let before = self.host.strip_suffix(domain);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    }
}

/// The part of a URL's path between `after` and the next `end`; `None` where that is empty.
#[must_use]
pub fn part_of_url<'a>(url: &'a str, after: &str, end: char) -> Option<&'a str> {
    let url = url.split(['?', '#']).next()?;
    let (_, named) = url.split_once(after)?;
    let (name, _) = named.split_once(end)?;
    Some(name).filter(|name| !name.is_empty())
}

/// A form of whole answers that OpenSearch's clients know by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// OpenAI's chat completions.
    OpenAi,
    /// Bedrock's Converse.
    Converse,
    /// Gemini's `generateContent`.
    Gemini,
    /// Anthropic's messages.
    Anthropic,
}

/// Reads the answers of one connector's server, as the connector describes them.
pub trait ReadAnswer: fmt::Debug + Send + Sync {
    /// How a body of that media type is cut; `None` where it cannot be an answer.
    fn shape(&self, media: &str) -> Option<BodyFraming>;

    /// How a good answer ends.
    fn ending(&self) -> StreamEnd;

    /// Reads the data of an event.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format; never with what the event says.
    fn read(&self, data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String>;

    /// Reads a whole answer.
    ///
    /// # Errors
    /// `Err` with what is wrong when it is not of the format.
    fn read_whole(&self, body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String>;
}
