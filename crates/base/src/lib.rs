//! The base types of Volley: errors, ids, deadlines, traces, addresses, and the memory limit of
//! request bodies. This crate depends on no other crate of the workspace. [`volley_types`]
//! re-exports it.
//!
//! [`volley_types`]: ../volley_types/index.html

pub mod address;
pub mod deadline;
pub mod egress;
pub mod error;
pub mod ids;
pub mod intake;
pub mod nearest;
pub mod trace;

pub use deadline::Deadline;
pub use error::{ErrorCode, ErrorOrigin, ErrorReason, PredictError};
pub use intake::{Intake, Share};
pub use trace::TraceContext;
