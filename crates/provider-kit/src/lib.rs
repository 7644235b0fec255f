//! Common parts of the providers of remote models: normalized parameters of requests, events of
//! answers and classes of errors. The crate refers to no provider, opens no connection and keeps no
//! state.
//!
//! Reading order: [`provider`] (what a provider defines), [`wire`] (request bodies and readers of
//! one connector), [`parameters`] (request parameters), [`step`] (events of answers), [`calls`] and
//! [`citations`] (state while an answer is read), [`rows`] (embedding and reranking).

pub mod blocks;
pub mod calls;
pub mod citations;
pub mod conversation;
pub mod effort;
pub mod fault;
pub mod framing;
pub mod hosted;
pub mod names;
pub mod native;
pub mod neutral;
pub mod normalize;
pub mod options;
pub mod parameters;
pub mod parts;
pub mod paths;
pub mod provider;
pub mod reserved;
pub mod rows;
pub mod step;
pub mod template;
pub mod tools;
pub mod typed;
pub mod wire;
