//! The Flight contract over loopback: a real server, a real client, a scripted model.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

mod it {
    mod contract;
    mod forms;
    mod functions;
    mod hostile;
    mod keys;
    mod outside;
    mod plain;
    mod revoked;
    mod support;
    mod trouble;
}
