//! Tests of fetching models from real servers on this machine, which fail on command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/buckets.rs"]
mod buckets;
#[path = "it/fetches.rs"]
mod fetches;
#[path = "it/rules.rs"]
mod rules;
#[path = "it/server.rs"]
mod server;
#[path = "it/setup.rs"]
mod setup;
