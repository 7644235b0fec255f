//! What the decode thread sends to readers.

use volley_types::{GenerationChunk, PredictError};

/// Which answer of a request: the prompt that it is to, and which of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerIndex {
    pub(crate) item: u32,
    pub(crate) choice: u32,
}

/// What a reader is sent: a row of an answer, or why there will be no more of them.
pub(crate) type EngineEvent = (AnswerIndex, Result<GenerationChunk, PredictError>);
