//! Tests of remote models against servers on loopback: scripted ones with all kinds of faults, and
//! a real LLM proxy.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/anything.rs"]
mod anything;
#[path = "it/bedrock.rs"]
mod bedrock;
#[path = "it/litellm.rs"]
mod litellm;
#[path = "it/providers.rs"]
mod providers;
#[path = "it/resilience.rs"]
mod resilience;
#[path = "it/rows.rs"]
mod rows;
#[path = "it/server.rs"]
mod server;
#[path = "it/stories.rs"]
mod stories;
#[path = "it/transcripts.rs"]
mod transcripts;
#[path = "it/whole.rs"]
mod whole;
