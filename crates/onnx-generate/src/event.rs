//! Events that the decode thread sends to readers.

use volley_types::{GenerationChunk, PredictError};

/// Index of an answer in its request: the prompt, and the choice among several answers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerIndex {
    pub(crate) item: u32,
    pub(crate) choice: u32,
}

/// A row of an answer, or the error that ends it.
pub(crate) type EngineEvent = (AnswerIndex, Result<GenerationChunk, PredictError>);
