//! The rows of one call.

/// Rows that go into one call: of one query, or one kind of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// The query, for servers that rerank.
    pub query: Option<String>,
    /// What the texts are, in the words of the column `input_type`.
    pub kind: Option<String>,
    /// The texts, in the order of their rows.
    pub texts: Vec<String>,
}
