//! What dialects share: requests made of bodies, and chunks rendered as responses.
//!
//! Reading order: [`requests`] (the model that a body means), [`answer`] and [`pieces`] (chunks
//! read), [`sse`] (chunks streamed), [`tensors`] (JSON to Arrow and back).

pub mod answer;
pub mod blocks;
pub mod catalogue;
pub mod chat;
pub mod citations;
pub mod clock;
pub mod envelope;
pub mod generation;
pub mod health;
pub mod inputs;
pub mod messages;
pub mod openai_error;
pub mod parameters;
pub mod peers;
pub mod pieces;
pub mod ranking;
pub mod requests;
pub mod rollout;
pub mod sse;
pub mod supplement;
pub mod tensors;
pub mod vectors;
