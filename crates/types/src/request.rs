//! The request type into which every dialect decodes.

use crate::checked::Checked;
use crate::continuation::Continuation;
use crate::deadline::Deadline;
use crate::ids::{ModelRef, RequestId, TenantId};
use crate::input::Input;
use crate::params::Parameters;
use crate::resolved::Resolved;
use crate::trace::TraceContext;

/// Priority of a request. In a queue, higher priorities of the same tenant go first; low-priority
/// requests wait for all other requests of all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Bulk work that may wait.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Interactive work.
    High,
}

/// The dialect of a request. Its parameters may have names of that dialect, which an upstream of
/// the same dialect supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Volley's own dialect, or Arrow Flight. All parameters are meant for the model.
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
    /// Text Generation Inference's generation, for an upstream with the same format. Nodes of
    /// versions without this name read it as [`Dialect::Own`], which such an upstream also takes.
    TextGeneration,
    /// Tensors of the Open Inference Protocol. Tensor models ignore unknown parameters, as the
    /// protocol requires.
    OpenInference,
}

impl Dialect {
    /// Every dialect, for tables and tests.
    pub const ALL: [Self; 8] = [
        Self::Own,
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::Anthropic,
        Self::Cohere,
        Self::Ollama,
        Self::TextGeneration,
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
            Self::TextGeneration => "tgi",
            Self::OpenInference => "open_inference",
        }
    }

    /// Parses a stable name. Returns [`Dialect::Own`] for a dialect that this version does not
    /// support.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == name);
        known.unwrap_or_default()
    }
}

/// One prediction request. Every hop receives and forwards this type.
#[derive(Debug)]
pub struct PredictRequest {
    /// The requested model.
    pub model: ModelRef,
    /// Id in the logs and errors of every hop.
    pub request_id: RequestId,
    /// Deadline of the complete stream.
    pub deadline: Option<Deadline>,
    /// Whether the caller drops the stream at the deadline, so that this process needs no timer for
    /// it.
    pub caller_keeps_deadline: bool,
    /// Trace context of the request.
    pub trace: TraceContext,
    /// Tenant that is charged.
    pub tenant: TenantId,
    /// Scheduling priority.
    pub priority: Priority,
    /// Session of the request. Requests of one session go to the same replica if possible.
    pub session: Option<String>,
    /// Sampling and other options, by name.
    pub parameters: Parameters,
    /// The dialect of the request.
    pub dialect: Dialect,
    /// Whether the caller reads only the complete response and does not stream it.
    pub whole: bool,
    /// Hash of the sticky value for aliases; see [`crate::registry::choice_hash`].
    pub affinity: Option<u64>,
    /// Sampling seed and continuation of a generation; set by coordinators.
    pub continuation: Continuation,
    /// The model as resolved by this process; `None` before that. Never sent to another process.
    pub resolved: Option<Resolved>,
    /// The rows.
    pub input: Checked<Input>,
}

impl PredictRequest {
    /// A request with a fresh id, no deadline and no parameters.
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

    /// The deadline, if this process needs a timer for it.
    #[must_use]
    pub fn unkept_deadline(&self) -> Option<Deadline> {
        self.deadline.filter(|_| !self.caller_keeps_deadline)
    }

    /// A copy for another attempt; `None` if the input is a stream.
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
