//! Integration tests of real clusters: several nodes in one process, with real sockets and files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/disasters.rs"]
mod disasters;
#[path = "it/drains.rs"]
mod drains;
#[path = "it/levels.rs"]
mod levels;
#[path = "it/names.rs"]
mod names;
#[path = "it/nodes.rs"]
mod nodes;
#[path = "it/records.rs"]
mod records;
#[path = "it/secrets.rs"]
mod secrets;
#[path = "it/stories.rs"]
mod stories;
#[path = "it/tasks.rs"]
mod tasks;
#[path = "it/visibility.rs"]
mod visibility;
