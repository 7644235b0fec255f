//! Calls to the servers of remote models over HTTP: the clients and where they may go, credentials
//! and signatures, limits and retries, and the cutting of a body into events. The only crate that
//! names the signing and framing libraries of Amazon.

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
