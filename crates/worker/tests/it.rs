//! A worker with real backends, and real heartbeat servers on loopback for its coordinators.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

mod it {
    mod admission;
    mod drain;
    mod heartbeats;
    mod loads;
    mod memory;
    mod overcommit;
    mod replicas;
    mod support;
}
