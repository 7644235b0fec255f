//! Model groups, for users and searches.

use crate::ids::ModelGroupId;

/// A named group of models. Each model stores its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelGroup {
    /// Its id.
    pub id: ModelGroupId,
    /// Its unique name.
    pub name: String,
    /// Description for users, one sentence.
    pub description: String,
    /// Creation time in milliseconds since 1970, by the clock of the coordinator that accepted the
    /// request.
    pub created_ms: u64,
    /// Time of the last change in milliseconds since 1970, by the same rule.
    pub updated_ms: u64,
}
