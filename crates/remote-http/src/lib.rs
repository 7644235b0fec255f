//! HTTP calls to the servers of remote models: clients, egress checks, credentials, signatures,
//! limits, retries and the splitting of bodies into events. No other crate uses the AWS libraries
//! for signing and framing.
//!
//! Reading order: [`config`], [`client`] and [`egress`] (connections), [`credential`] and
//! [`signing`] (credentials), [`limits`], [`retry`] and [`budget`] (whether and when to call),
//! [`body`], [`sse`], [`frames`] and [`event`] (answers), [`upstream`] and [`upstream_error`]
//! (errors).

pub mod body;
pub mod budget;
pub mod client;
pub mod config;
pub mod credential;
pub mod egress;
pub mod event;
pub mod frames;
pub mod limits;
pub mod naming;
pub mod retry;
pub mod signing;
pub mod sse;
pub mod upstream;
pub mod upstream_error;
