//! Connectors: where a remote model is, and how its server is spoken to.

mod policy;

use std::collections::BTreeMap;

pub use self::policy::{ConnectorEndpoint, ConnectorPolicy};

use super::secret::SealedSecret;
use crate::ids::{ConnectorId, SecretName};
use crate::params::Parameters;

/// Whose wire format a remote model's server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// OpenAI chat completions, and every server compatible with it.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
    /// Cohere's chat, version 2.
    Cohere,
    /// Mistral's chat completions.
    Mistral,
    /// Ollama's chat.
    Ollama,
    /// Google Gemini, with a key.
    Gemini,
    /// Google Gemini on Vertex AI, with a token.
    Vertex,
    /// OpenAI's models at Azure.
    Azure,
    /// Text Generation Inference's own interface.
    Tgi,
    /// The Open Inference Protocol, version 2.
    OpenInference,
    /// Amazon Bedrock's Converse.
    Bedrock,
    /// OpenAI's responses.
    OpenAiResponses,
    /// Any HTTP server: the connector's template makes the body, and its paths find the answer.
    Http,
}

impl ProviderKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::OpenAi,
        Self::Anthropic,
        Self::Cohere,
        Self::Mistral,
        Self::Ollama,
        Self::Gemini,
        Self::Vertex,
        Self::Azure,
        Self::Tgi,
        Self::OpenInference,
        Self::Bedrock,
        Self::OpenAiResponses,
        Self::Http,
    ];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Cohere => "cohere",
            Self::Mistral => "mistral",
            Self::Ollama => "ollama",
            Self::Gemini => "gemini",
            Self::Vertex => "vertex",
            Self::Azure => "azure",
            Self::Tgi => "tgi",
            Self::OpenInference => "open_inference",
            Self::Bedrock => "bedrock",
            Self::OpenAiResponses => "openai_responses",
            Self::Http => "http",
        }
    }

    /// The kind of that name. OpenSearch calls Bedrock by how its requests are signed.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "aws_sigv4" {
            return Some(Self::Bedrock);
        }
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The header, in lower case, that carries the credential to such a server.
    #[must_use]
    pub fn key_header(self) -> &'static str {
        match self {
            Self::Anthropic => "x-api-key",
            Self::Gemini => "x-goog-api-key",
            Self::Azure => "api-key",
            _ => "authorization",
        }
    }

    /// The kind that a connector's URL tells of where it names none: by the path, which is each
    /// format's own, or the host. Any other URL is one of OpenAI's format.
    #[must_use]
    pub fn of_url(url: &str) -> Self {
        let url = url.split_once("://").map_or(url, |(_, rest)| rest);
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = url.split_once('/').unwrap_or((url, ""));
        let host = host.split(':').next().unwrap_or_default();
        let host = host.to_ascii_lowercase();
        let is_of = |domain: &str| {
            let before = host.strip_suffix(domain);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let methods = [
            "streamGenerateContent",
            "generateContent",
            "embedContent",
            "batchEmbedContents",
        ];
        let method = path.rsplit_once(':').map(|(_, method)| method);
        let of_google = method.is_some_and(|method| methods.contains(&method))
            || path.contains("/publishers/google/") && method == Some("predict");
        if of_google {
            // Vertex has a host for each region: `europe-west4-aiplatform.googleapis.com`.
            match host.ends_with("aiplatform.googleapis.com") {
                true => Self::Vertex,
                false => Self::Gemini,
            }
        } else if path.ends_with("/messages") {
            Self::Anthropic
        } else if path.ends_with("/converse-stream")
            || path.ends_with("/converse")
            || host.starts_with("bedrock-runtime")
        {
            Self::Bedrock
        } else if path.ends_with("v1/responses") {
            Self::OpenAiResponses
        } else if path.ends_with("v2/chat") {
            Self::Cohere
        } else if path.ends_with("api/chat") || path.ends_with("api/generate") {
            Self::Ollama
        } else if path.ends_with("generate_stream") {
            match path.starts_with("v2/models/") || path.contains("/v2/models/") {
                true => Self::OpenInference,
                false => Self::Tgi,
            }
        } else if path.starts_with("openai/deployments/") || is_of("openai.azure.com") {
            Self::Azure
        } else if is_of("mistral.ai") {
            Self::Mistral
        } else {
            Self::OpenAi
        }
    }

    /// The model that a connector's URL names, where such a server has it there.
    #[must_use]
    pub fn model_of_url(self, url: &str) -> Option<&str> {
        let url = url.split(['?', '#']).next()?;
        let (after, end) = match self {
            Self::Gemini | Self::Vertex => ("/models/", ':'),
            Self::Azure => ("/openai/deployments/", '/'),
            Self::OpenInference => ("/v2/models/", '/'),
            Self::Bedrock => ("/model/", '/'),
            // It serves one, and its OpenAI interface calls that so.
            Self::Tgi => return Some("tgi"),
            _ => return None,
        };
        let (_, named) = url.split_once(after)?;
        let (name, _) = named.split_once(end)?;
        Some(name).filter(|name| !name.is_empty())
    }
}

/// Where a secret is found. In clear it is never replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialRef {
    /// An environment variable of the worker's process: `env:NAME`.
    Env(String),
    /// A file on the worker, read at use, surrounding white space removed: `file:/path`.
    File(String),
    /// A secret that the registry holds sealed: `secret:NAME`.
    Secret(SecretName),
    /// The same as a worker gets it, which opens it with a master key of its own.
    Sealed(SecretName, Box<SealedSecret>),
}

impl ConnectorSpec {
    /// The credentials of the connector and of all its endpoints.
    pub fn credentials(&self) -> impl Iterator<Item = &CredentialRef> {
        let endpoints = self.policy.endpoints.iter();
        let endpoints = endpoints.filter_map(|endpoint| endpoint.credential.as_ref());
        self.credential.iter().chain(endpoints)
    }

    /// The same, to be changed.
    pub fn credentials_mut(&mut self) -> impl Iterator<Item = &mut CredentialRef> {
        let endpoints = self.policy.endpoints.iter_mut();
        let endpoints = endpoints.filter_map(|endpoint| endpoint.credential.as_mut());
        self.credential.iter_mut().chain(endpoints)
    }

    /// Whether it names the secret.
    #[must_use]
    pub fn names_secret(&self, secret: &SecretName) -> bool {
        let mut credentials = self.credentials();
        credentials
            .any(|credential| matches!(credential, CredentialRef::Secret(name) if name == secret))
    }
}

/// The definition of a remote model.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorSpec {
    /// The connector's id.
    pub id: ConnectorId,
    /// A name for people.
    pub name: String,
    /// Whose wire format.
    pub provider: ProviderKind,
    /// The full URL to POST to, for example `https://host/v1/chat/completions`.
    pub url: String,
    /// The model's name at the upstream.
    pub model: String,
    /// The credential, where one is needed.
    pub credential: Option<CredentialRef>,
    /// Headers to add; values hold no secrets.
    pub headers: BTreeMap<String, String>,
    /// Default request parameters; a request's own win.
    pub parameters: Parameters,
    /// A body template with `${parameters.x}`, where the provider's own body does not fit.
    pub request_body: Option<String>,
    /// How its servers are called, and what is done when they fail.
    pub policy: ConnectorPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for kind in ProviderKind::ALL {
            assert_eq!(ProviderKind::from_name(kind.as_str()), Some(kind));
        }
        assert_eq!(ProviderKind::from_name("acme"), None);
    }

    #[test]
    fn a_url_tells_the_format_and_at_times_the_model() {
        let gemini = "models/gemini-x:streamGenerateContent";
        let google = format!("https://generativelanguage.googleapis.com/v1beta/{gemini}?alt=sse");
        let vertex =
            format!("https://europe-west4-aiplatform.googleapis.com/v1/publishers/google/{gemini}");
        let azure =
            "https://us.openai.azure.com/openai/deployments/d/chat/completions?api-version=1";
        for (url, kind, model) in [
            (
                "https://llm.example/v1/chat/completions",
                ProviderKind::OpenAi,
                None,
            ),
            ("llm.example", ProviderKind::OpenAi, None),
            ("", ProviderKind::OpenAi, None),
            (
                "http://llm.example/v1/messages?x=1",
                ProviderKind::Anthropic,
                None,
            ),
            ("https://api.cohere.com/v2/chat", ProviderKind::Cohere, None),
            (
                "http://localhost:11434/api/chat",
                ProviderKind::Ollama,
                None,
            ),
            (
                "https://api.mistral.ai/v1/chat/completions",
                ProviderKind::Mistral,
                None,
            ),
            (
                "https://notmistral.ai/v1/chat/completions",
                ProviderKind::OpenAi,
                None,
            ),
            (&google, ProviderKind::Gemini, Some("gemini-x")),
            (&vertex, ProviderKind::Vertex, Some("gemini-x")),
            (
                "https://g.example/v1beta/models/e:batchEmbedContents",
                ProviderKind::Gemini,
                Some("e"),
            ),
            (
                "https://us-aiplatform.googleapis.com/v1/publishers/google/models/e:predict",
                ProviderKind::Vertex,
                Some("e"),
            ),
            (azure, ProviderKind::Azure, Some("d")),
            (
                "http://t/v2/models/llm/versions/1/generate_stream",
                ProviderKind::OpenInference,
                Some("llm"),
            ),
            (
                "https://bedrock-runtime.eu-west-1.amazonaws.com/model/acme.x-v1:0/converse-stream",
                ProviderKind::Bedrock,
                Some("acme.x-v1:0"),
            ),
            (
                "https://llm.example/v1/responses",
                ProviderKind::OpenAiResponses,
                None,
            ),
            ("http://t/generate_stream", ProviderKind::Tgi, Some("tgi")),
        ] {
            assert_eq!(ProviderKind::of_url(url), kind, "{url}");
            assert_eq!(kind.model_of_url(url), model, "{url}");
        }
    }
}
