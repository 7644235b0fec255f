//! Definition of a provider: its name, the addresses and bodies of requests, and the readers of
//! answers.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use volley_backend::items::Item;
use volley_types::PredictError;
use volley_types::registry::{ConnectorSpec, ProviderName};

use crate::calls::ToolCallAccumulator;
use crate::framing::{BodyFraming, Framing, StreamEnd};
use crate::hosted;
use crate::names::NameRules;
use crate::parameters::{ParameterTable, RequestFields};
use crate::rows::post_process::PostProcess;
use crate::rows::pre_process::PreProcess;
use crate::step::Step;

/// A provider of remote models. Each module of `volley-providers` defines one; other code uses it
/// only through the list of that crate.
pub struct Provider {
    /// The name in connectors, metrics and documentation.
    pub name: ProviderName,
    /// Other names for connectors.
    pub aliases: &'static [&'static str],
    /// The provider's row in the connector reference.
    pub page: Page,
    /// The path of the route. `{model}` stands for the model's name.
    pub route: &'static str,
    /// Whether a server's only route may be at the root.
    pub at_root: bool,
    /// Suffixes of other routes of the server, and whether a connector's own request body makes
    /// them readable. Requests or answers have another format there.
    pub other_routes: &'static [(&'static str, bool)],
    /// Whether a connector's URL belongs to this provider.
    pub recognizes: fn(&Address<'_>) -> bool,
    /// The model in a URL, for servers with the model in the path.
    pub model_of_url: fn(&str) -> Option<&str>,
    /// Header with the credential, in lower case.
    pub key_header: &'static str,
    /// Prefix of the key in the header.
    pub key_prefix: &'static str,
    /// Headers that the server requires. A connector may override them.
    pub headers: &'static [(&'static str, &'static str)],
    /// The AWS service whose requests are signed (Signature Version 4). A bearer token is sent
    /// unsigned.
    pub signing_service: Option<&'static str>,
    /// How streams are split into events.
    pub framing: Framing,
    /// The media type of streams.
    pub media: &'static str,
    /// How streaming is requested: `Some(true)` sets the field `stream` in the body, `Some(false)`
    /// removes it because the route or a query parameter decides, `None` leaves it to the
    /// connector's template.
    pub stream_field: Option<bool>,
    /// Query parameter of the streaming route.
    pub stream_query: Option<(&'static str, &'static str)>,
    /// Suffixes of the streaming route and the route for whole answers, if they differ.
    pub whole_route: Option<(&'static str, &'static str)>,
    /// Suffixes of the route of conversations and the one that takes a prompt without a template,
    /// for Ollama's `raw`.
    pub raw_route: Option<(&'static str, &'static str)>,
    /// Adapts the body of a request for a whole answer, besides `stream`.
    pub make_whole: fn(&mut Map<String, Value>),
    /// How a complete answer ends.
    pub ending: StreamEnd,
    /// The request parameters that the server supports.
    pub parameters: &'static ParameterTable,
    /// Dialects whose requests the server accepts unchanged.
    pub native: &'static [&'static str],
    /// Defaults of fields in a forwarded request.
    pub native_defaults: &'static [(&'static str, bool)],
    /// Whether the server accepts images in messages.
    pub takes_images: bool,
    /// Whether the server accepts conversations. Otherwise only prompts.
    pub takes_messages: bool,
    /// Whether parameters are fields of the body with the same names.
    pub flat_body: bool,
    /// The format of whole answers, if clients of OpenSearch expect it.
    pub answer_form: Option<AnswerForm>,
    /// Whether the server honors `parallel_tool_calls`. If not, answers are checked.
    pub limits_calls: bool,
    /// Whether answers always match the schema. If not, they are checked.
    pub keeps_schemas: bool,
    /// Whether system messages after the first turn are moved to the front.
    pub hoists_system: bool,
    /// The names of tools and ids of calls that the server accepts, if it checks them.
    pub names: Option<NameRules>,
    /// Whether citations count bytes instead of characters.
    pub counts_bytes: bool,
    /// The type of a tool that runs at the provider; `None` for a tool that runs at the caller.
    pub hosted_tool: fn(&Value) -> Option<&str>,
    /// The row format of a URL that only this provider uses for embedding or reranking.
    pub rows: fn(&ConnectorSpec) -> Option<(PreProcess, PostProcess)>,
    /// Creates a reader from the connector's description of its server, for providers without a
    /// fixed format.
    pub configure: Option<Configure>,
    /// Builds the body of a request.
    pub body: MakeBody,
    /// Reads the data of one event. The error describes what is malformed.
    pub read: fn(&str, &mut ToolCallAccumulator) -> Result<Step, String>,
    /// Reads a whole answer. The error describes what is malformed.
    pub read_whole: fn(&[u8], &mut ToolCallAccumulator) -> Result<Step, String>,
}

/// Builds the body of a request from a model name, an item and its parameters.
pub type MakeBody = fn(&str, &Item, RequestFields<'_>) -> Result<Value, PredictError>;

/// Creates the reader of one connector's answers.
pub type Configure = fn(&ConnectorSpec) -> Result<Arc<dyn ReadAnswer>, PredictError>;

/// The tool whose input is the answer, for models without another way to set the format of answers.
pub const ANSWER_TOOL: &str = "answer_in_json";

impl Provider {
    /// Creates a provider with the common defaults: `stream` in the body, server-sent events, a
    /// bearer token, and a final event.
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
            other_routes: &[],
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
            raw_route: None,
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
            hoists_system: false,
            names: None,
            counts_bytes: false,
            hosted_tool: hosted::of_type,
            rows: |_| None,
            configure: None,
            body,
            read: |_, _| Err("a provider without a format of events".to_owned()),
            read_whole: |_, _| Err("a provider without a format of answers".to_owned()),
        }
    }

    /// Whether the connector describes the server's format.
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

/// A provider's row in the connector reference, in Markdown.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The endpoint in a connector's URL.
    pub endpoint: &'static str,
    /// How the credential is sent.
    pub key: &'static str,
    /// The part of a URL that identifies the provider.
    pub url: &'static str,
}

impl Page {
    /// A row without content.
    pub const NONE: Self = Self {
        endpoint: "",
        key: "`Authorization: Bearer`",
        url: "never",
    };
}

/// The host and path of a connector's URL, for [`Provider::recognizes`].
#[derive(Clone, Debug)]
pub struct Address<'a> {
    /// The host, in lower case and without a port.
    pub host: String,
    /// The path, without the leading `/` and the query.
    pub path: &'a str,
}

impl<'a> Address<'a> {
    /// Parses a URL. An invalid URL yields an empty host or path.
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

    /// Whether the host is `domain` or a subdomain of it.
    #[must_use]
    pub fn is_of(&self, domain: &str) -> bool {
        let before = self.host.strip_suffix(domain);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    }
}

/// The part of a URL's path between `after` and the next `end`; `None` if it is empty.
#[must_use]
pub fn part_of_url<'a>(url: &'a str, after: &str, end: char) -> Option<&'a str> {
    let url = url.split(['?', '#']).next()?;
    let (_, named) = url.split_once(after)?;
    let (name, _) = named.split_once(end)?;
    Some(name).filter(|name| !name.is_empty())
}

/// A format of whole answers that OpenSearch clients expect from a server.
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
    /// The framing of a media type; `None` if it cannot be an answer.
    fn shape(&self, media: &str) -> Option<BodyFraming>;

    /// How a complete answer ends.
    fn ending(&self) -> StreamEnd;

    /// Reads the data of one event.
    ///
    /// # Errors
    /// A description of what is malformed, without the event's content.
    fn read(&self, data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String>;

    /// Reads a whole answer.
    ///
    /// # Errors
    /// A description of what is malformed.
    fn read_whole(&self, body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String>;
}
