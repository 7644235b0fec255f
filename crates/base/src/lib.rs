//! What every other type of Volley is made of: errors, ids, deadlines, traces, addresses, and the
//! memory for bodies. It depends on no other crate of the workspace; [`volley_types`] exports all
//! of it again.
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
