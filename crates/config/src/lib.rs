//! Configuration files of nodes: their format version, their values, and their keys.
//!
//! A file is TOML. Its first key is `version`. Every key is known; `parse` rejects any other one
//! with the nearest name. [`migrate`] rewrites a file from before [`FORMAT_VERSION`] and keeps its
//! comments.

mod artifacts;
pub mod coordinator;
mod error;
mod kind;
mod migrate;
mod otlp;
mod parse;
mod renames;
mod schema;
mod security;
mod unknown;
mod values;
mod version;
pub mod worker;

pub use artifacts::ArtifactsSection;
pub use error::ConfigError;
pub use kind::FileKind;
pub use migrate::{Migration, migrate};
pub use otlp::OtlpSection;
pub use renames::{Rename, renames};
pub use schema::Schema;
pub use security::{Certificate, CoordinatorSecurity, Issuer, NodeCertificate, WorkerSecurity};
pub use values::{Count, Size, TimeSpan};
pub use version::{FORMAT_VERSION, FormatVersion};

#[cfg(test)]
mod tests;
