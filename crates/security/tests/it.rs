//! Connections between nodes over real sockets, with certificates made for each test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/certificates.rs"]
mod certificates;
#[path = "it/nodes.rs"]
mod nodes;
