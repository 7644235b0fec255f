//! The HTTP edge of a node: sockets, limits, compression, authorization and request context. It has
//! no routes and no dialects.
//!
//! Reading order: [`serve`] (connections), [`precheck`] and [`hosts`] (checks of every request),
//! [`context`] (request context), [`auth`] (authorization), [`routes`] (route tables of dialects),
//! [`edge`] (state of handlers), [`body`] and [`extract`] (input of handlers), [`error`] (errors),
//! [`dialect`] (the interface of dialects).

pub mod auth;
pub mod body;
pub mod compact;
pub mod config;
pub mod connection_limits;
pub mod context;
pub mod dialect;
pub mod edge;
pub mod encoding;
pub mod error;
pub mod extract;
pub mod handshake;
pub mod hosts;
pub mod idle;
pub mod inference;
pub mod intake;
pub mod operation;
pub mod origins;
pub mod paths;
pub mod precheck;
pub mod routes;
pub mod serve;
pub mod stall;
pub mod watch;

/// The web framework. Dialects import it only from this crate.
pub use axum;
