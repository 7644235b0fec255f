//! Model groups, for users and searches.

use crate::ids::ModelGroupId;

/// A named group of models. A model names its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelGroup {
    /// Its id.
    pub id: ModelGroupId,
    /// Its unique name.
    pub name: String,
    /// A sentence for people.
    pub description: String,
    /// When it was made, in milliseconds since 1970 (by the clock of the coordinator that took
    /// the request).
    pub created_ms: u64,
    /// When it was last changed, likewise.
    pub updated_ms: u64,
}
