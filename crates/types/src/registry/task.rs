//! Tasks that one coordinator runs, such as batches: that they are there, and how they ended. The
//! answer stays with that coordinator; what is here outlives it.

use crate::ids::{ModelName, NodeId, TenantId};

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It runs.
    Running,
    /// It has its answer.
    Completed,
    /// It has none, for this reason, which is public.
    Failed(String),
    /// Somebody ended it.
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

    /// The state of that name; `why` is for one that failed.
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

/// What everybody knows of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// The coordinator that runs it, and has its answer.
    pub node: NodeId,
    /// The model, alias or pipeline that it calls.
    pub model: ModelName,
    /// Whose it is; `None` where callers have no tenant.
    pub tenant: Option<TenantId>,
    /// When it began, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it last changed, in milliseconds since 1970.
    pub updated_ms: u64,
    /// How far it is.
    pub state: TaskState,
    /// From when on nobody asks for it any more, in milliseconds since 1970.
    pub forget_ms: u64,
}
