//! Scenarios with the real binary: arguments, files, processes and signals.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "../../security/tests/it/certificates.rs"]
mod certificates;
#[path = "it/commands.rs"]
mod commands;
#[path = "it/config.rs"]
mod config;
#[path = "it/inspect.rs"]
mod inspect;
#[path = "it/isolation.rs"]
mod isolation;
#[path = "../../backend-onnx/tests/it/mutants.rs"]
mod mutants;
#[path = "it/nodes.rs"]
mod nodes;
#[path = "it/rollouts.rs"]
mod rollouts;
#[path = "it/safety.rs"]
mod safety;
#[path = "it/security.rs"]
mod security;
#[path = "it/streamed_rows.rs"]
mod streamed_rows;
#[path = "it/support.rs"]
mod support;
