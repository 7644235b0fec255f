//! Converts rows to requests in the formats of OpenSearch's functions.

use crate::rows::google::Google;

/// The format of a request for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreProcess {
    /// `input`, a list of texts.
    Input,
    /// `inputs`, a list of texts, as in Text Embeddings Inference.
    Inputs,
    /// `texts`, a list, and `input_type`.
    Texts,
    /// `inputText`, one text.
    InputText,
    /// `query` and `documents`.
    Documents,
    /// `query` and `texts`.
    QueryTexts,
    /// `queries` and `sources`.
    Sources,
    /// A format of Google. Templates use `texts`.
    Google(Google),
}

impl PreProcess {
    /// The format of an OpenSearch function.
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

    /// Whether rows have a query and a document.
    #[must_use]
    pub fn is_rerank(self) -> bool {
        matches!(self, Self::Documents | Self::QueryTexts | Self::Sources)
    }
}
