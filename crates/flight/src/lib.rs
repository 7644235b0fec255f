//! The Flight contract: a client that is a [`volley_types::Predict`], a server over any
//! [`volley_types::Predict`], and protection of both against hostile and slow peers.
//!
//! The contract is documented in `docs/reference/flight.md`. Only this crate depends on
//! `arrow_flight`.
//!
//! Reading order: [`client`], [`server`], [`ingress`] (checks and decoding), [`egress`] (encoding),
//! [`status`] (errors on the wire), [`local`] (two processes of one machine).

pub mod client;
pub mod egress;
pub mod ingress;
pub mod local;
pub mod server;
pub mod status;
pub mod transport;

mod columns;
mod describe;
mod descriptor;
mod schema_cache;
mod small_buffer_codec;
mod udf;

/// The largest Flight message, in bytes, that either side sends or accepts.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The most rows in one message.
pub const MAX_ROWS: usize = 1 << 20;

/// The application metadata that marks the end of the input: on a message of its own with an
/// empty header, or on the last record batch.
pub const END: &[u8] = b"end";

/// The action with which a coordinator checks a connector on a worker. Its body is one byte, 1 for
/// a test call to the server, followed by the connector in the registry's format.
pub(crate) const CHECK_CONNECTOR: &str = "check_connector";

/// Header of a client that reads nothing before the first rows: the server delays the headers and
/// the schema for a moment to send them together.
pub(crate) const TOGETHER: &str = "volley-together";
