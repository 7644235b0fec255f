//! The HTTP edge of a node: sockets, limits, compression, who may call, and what every request
//! carries. It knows no route and no dialect.
//!
//! Reading order: [`serve`] (connections), [`precheck`] and [`hosts`] (what every request has to
//! pass), [`context`] (what it carries), [`auth`] (who may call), [`routes`] (how a dialect lists
//! its routes), [`edge`] (what handlers are given), [`body`] and [`extract`] (what they read),
//! [`error`] (how they fail), [`dialect`] (the seam).

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

/// The web framework: dialects name it through this crate alone.
pub use axum;
