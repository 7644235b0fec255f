//! Records of tasks of one coordinator, such as batches, and their results. The response stays on
//! that coordinator; the record survives it.

use crate::ids::{ModelName, NodeId, TenantId};

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Running.
    Running,
    /// Completed, with a response.
    Completed,
    /// Failed, with the public reason.
    Failed(String),
    /// Cancelled by a caller.
    Cancelled,
}

impl TaskState {
    /// The stable name.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses a stable name, with the reason `why` for a failed task; `None` if the name is
    /// unknown.
    #[must_use]
    pub fn from_name(name: &str, why: String) -> Option<Self> {
        Some(match name {
            "running" => Self::Running,
            "completed" => Self::Completed,
            "failed" => Self::Failed(why),
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }
}

/// The replicated record of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// The coordinator that runs it and keeps its response.
    pub node: NodeId,
    /// The model, alias or pipeline that it calls.
    pub model: ModelName,
    /// Its tenant; `None` if callers have no tenants.
    pub tenant: Option<TenantId>,
    /// Start time in milliseconds since 1970.
    pub created_ms: u64,
    /// Time of the last change in milliseconds since 1970.
    pub updated_ms: u64,
    /// The state.
    pub state: TaskState,
    /// Expiry time of the record, in milliseconds since 1970.
    pub forget_ms: u64,
}

impl TaskRecord {
    /// Whether both records are about the same task, given that they have the same id.
    #[must_use]
    pub fn is_same_task(&self, other: &Self) -> bool {
        let about = |it: &Self| (it.node, it.model.clone(), it.tenant.clone());
        about(self) == about(other)
    }
}
