//! The Flight contract: a client that is a [`volley_types::Predict`], a server over any
//! [`volley_types::Predict`], and what both need to live with hostile and slow peers.
//!
//! The contract itself is written up in `docs/reference/flight.md`. This is the only crate that
//! names `arrow_flight`.
//!
//! Reading order: [`client`], [`server`], [`ingress`] (what is checked before a message is
//! decoded), [`egress`] (how rows become messages), [`status`] (errors on the wire), [`local`]
//! (between two processes of one machine).

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
mod small_buffer_codec;
mod udf;

/// The largest Flight message, in bytes, that either side sends or takes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The most rows in one message.
pub const MAX_ROWS: usize = 1 << 20;

/// The application metadata that marks the end of the input: on a message of its own with an
/// empty header, or on the last record batch.
pub const END: &[u8] = b"end";

/// The action by which a coordinator asks a worker whether a connector works from there. Its body
/// is a byte, 1 where the server is to be called too, and the connector as the registry has it.
pub(crate) const CHECK_CONNECTOR: &str = "check_connector";

/// The header of a client that reads nothing before the first rows: the headers and the schema
/// wait for them a moment.
pub(crate) const TOGETHER: &str = "volley-together";
