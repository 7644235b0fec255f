//! Administration of a cluster over REST (`/_volley`): its state, nodes, named objects and keys.
//! Also the OpenAPI document of all routes.

mod admin;
pub mod admin_dialect;
mod admin_operations;
pub mod admin_state;
mod aliases;
mod drains;
mod keys;
mod metrics;
pub mod openapi;
pub mod ops;
mod pipelines;
mod secrets;
