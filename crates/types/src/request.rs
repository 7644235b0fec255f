//! What every dialect decodes into.

use crate::checked::Checked;
use crate::continuation::Continuation;
use crate::deadline::Deadline;
use crate::ids::{ModelRef, RequestId, TenantId};
use crate::input::Input;
use crate::params::Parameters;
use crate::resolved::Resolved;
use crate::trace::TraceContext;

/// How urgent a request is. Where requests wait, the higher of one tenant goes first; low ones wait
/// for the others of all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Bulk work that may wait.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Somebody is waiting.
    High,
}

/// The interface that a request came by. Its parameters may have that interface's own names, which
/// a server of the same one understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Volley's own, or Arrow Flight: parameters are meant for the model, whatever it is.
    #[default]
    Own,
    /// OpenAI's chat and plain completions.
    OpenAi,
    /// OpenAI's responses.
    OpenAiResponses,
    /// Anthropic's messages.
    Anthropic,
    /// Cohere's chat.
    Cohere,
    /// Ollama's chat and generation.
    Ollama,
    /// Tensors of the Open Inference Protocol. Parameters that a tensor model does not know say
    /// nothing to it, as the protocol wants.
    OpenInference,
}

impl Dialect {
    /// Every dialect, for tables and tests.
    pub const ALL: [Self; 7] = [
        Self::Own,
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::Anthropic,
        Self::Cohere,
        Self::Ollama,
        Self::OpenInference,
    ];

    /// The stable name, used on the wire; empty for [`Dialect::Own`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own => "",
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::Cohere => "cohere",
            Self::Ollama => "ollama",
            Self::OpenInference => "open_inference",
        }
    }

    /// The dialect of that name; [`Dialect::Own`] for one that this version does not know.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == name);
        known.unwrap_or_default()
    }
}

/// One prediction, on its way to a model. Every hop receives and passes on this.
#[derive(Debug)]
pub struct PredictRequest {
    /// Which model.
    pub model: ModelRef,
    /// The id that logs, errors and every hop share.
    pub request_id: RequestId,
    /// By when the whole stream must be done.
    pub deadline: Option<Deadline>,
    /// The caller drops the stream at the deadline, so no step of this process sets a timer for it.
    pub caller_keeps_deadline: bool,
    /// The trace that this belongs to.
    pub trace: TraceContext,
    /// On whose behalf.
    pub tenant: TenantId,
    /// How urgent.
    pub priority: Priority,
    /// Requests of one session go to the same replica while they can.
    pub session: Option<String>,
    /// Sampling and other options, by name.
    pub parameters: Parameters,
    /// The interface that it came by.
    pub dialect: Dialect,
    /// The caller takes the whole answer at once: nobody reads its parts as they come.
    pub whole: bool,
    /// The hash of what requests stick together by, where an alias looks at it; see
    /// [`crate::registry::choice_hash`].
    pub affinity: Option<u64>,
    /// How a generation is drawn, and behind what it goes on; coordinators say this.
    pub continuation: Continuation,
    /// The model as this process resolved it; `None` where it has not yet. It never leaves the
    /// process.
    pub resolved: Option<Resolved>,
    /// The rows.
    pub input: Checked<Input>,
}

impl PredictRequest {
    /// A request with fresh ids, no deadline, no parameters.
    #[must_use]
    pub fn new(model: ModelRef, input: impl Into<Checked<Input>>) -> Self {
        Self {
            model,
            request_id: RequestId::random(),
            deadline: None,
            caller_keeps_deadline: false,
            trace: TraceContext::random(),
            tenant: TenantId::default(),
            priority: Priority::default(),
            session: None,
            parameters: Parameters::default(),
            dialect: Dialect::default(),
            whole: false,
            affinity: None,
            continuation: Continuation::default(),
            resolved: None,
            input: input.into(),
        }
    }

    /// The deadline, where this process has no timer for it yet.
    #[must_use]
    pub fn unkept_deadline(&self) -> Option<Deadline> {
        self.deadline.filter(|_| !self.caller_keeps_deadline)
    }

    /// A second copy for another try, where the input allows one.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        Some(Self {
            model: self.model.clone(),
            request_id: self.request_id.clone(),
            deadline: self.deadline,
            caller_keeps_deadline: self.caller_keeps_deadline,
            trace: self.trace,
            tenant: self.tenant.clone(),
            priority: self.priority,
            session: self.session.clone(),
            parameters: self.parameters.clone(),
            dialect: self.dialect,
            whole: self.whole,
            affinity: self.affinity,
            continuation: self.continuation.clone(),
            resolved: self.resolved.clone(),
            input: self.input.try_clone()?,
        })
    }
}
