//! Tables of the store.

use redb::TableDefinition;
use volley_types::{ErrorCode, PredictError};

pub(crate) const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
pub(crate) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");

/// Version of the format of the tables.
pub(super) const FORMAT: &str = "1";

/// Error of reading or writing the store.
pub(super) type DiskError = Box<dyn std::error::Error + Send + Sync>;

/// Builds the error of a data directory with another format.
pub(super) fn other_format(found: &str) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!("the data directory has format '{found}'; this version of Volley reads '{FORMAT}'"),
    )
}

/// Builds the error of a data directory that cannot be used.
pub(super) fn unavailable(message: &str, source: DiskError) -> PredictError {
    PredictError::new(ErrorCode::Unavailable, message).with_source(source)
}
