//! The OpenSearch ML dialect (`/_plugins/_ml`): the bodies, events and errors that clients of the
//! ml-commons plugin send and expect.

pub mod batch;
pub(crate) mod column_events;
pub(crate) mod connectors;
pub(crate) mod defaults;
mod deployment;
pub mod dialect;
pub(crate) mod events;
pub(crate) mod groups;
pub(crate) mod model_config;
pub(crate) mod models;
pub(crate) mod operations;
pub(crate) mod predict;
pub(crate) mod prediction;
pub(crate) mod request;
pub mod rows;
pub(crate) mod search;
pub(crate) mod settings;
pub mod state;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod texts;
pub(crate) mod upstream_dialect;
