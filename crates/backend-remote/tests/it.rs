//! Remote models against servers on loopback: scripted ones that misbehave in every way, and a
//! real LLM proxy.

#[path = "it/litellm.rs"]
mod litellm;
#[path = "it/server.rs"]
mod server;
#[path = "it/stories.rs"]
mod stories;
