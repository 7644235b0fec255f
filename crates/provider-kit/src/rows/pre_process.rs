//! How rows become requests, by OpenSearch's names of functions.

use crate::rows::google::Google;

/// How rows become a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreProcess {
    /// `input`, a list.
    Input,
    /// `texts`, a list, and `input_type`.
    Texts,
    /// `inputText`, one.
    InputText,
    /// `query` and `documents`.
    Documents,
    /// `query` and `texts`.
    QueryTexts,
    /// `queries` and `sources`.
    Sources,
    /// One of Google's; a template has `texts`.
    Google(Google),
}

impl PreProcess {
    /// The form of OpenSearch's function of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("connector.pre_process.")? {
            "openai.embedding" | "default.embedding" => Self::Input,
            "cohere.embedding" => Self::Texts,
            "bedrock.embedding" => Self::InputText,
            "cohere.rerank" => Self::Documents,
            "default.rerank" => Self::QueryTexts,
            "bedrock.rerank" => Self::Sources,
            _ => return None,
        })
    }

    /// Whether rows are a query and documents.
    #[must_use]
    pub fn is_rerank(self) -> bool {
        matches!(self, Self::Documents | Self::QueryTexts | Self::Sources)
    }
}
