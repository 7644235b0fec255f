//! The rows of one call.

/// Rows of one call. They have the same query and the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// The query, for reranking.
    pub query: Option<String>,
    /// The kind of the texts, from the column `input_type`.
    pub kind: Option<String>,
    /// The texts, in the order of their rows.
    pub texts: Vec<String>,
}
