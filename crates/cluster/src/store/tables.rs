//! The tables of the file that a node keeps everything in.

use redb::TableDefinition;
use volley_types::{ErrorCode, PredictError};

pub(crate) const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
pub(crate) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");

/// The version of what stands in them.
pub(super) const FORMAT: &str = "1";

/// Why the file was not read or written.
pub(super) type DiskError = Box<dyn std::error::Error + Send + Sync>;

/// The error of a data directory that cannot be used.
pub(super) fn unavailable(message: &str, source: DiskError) -> PredictError {
    PredictError::new(ErrorCode::Unavailable, message).with_source(source)
}
