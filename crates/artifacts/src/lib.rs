//! Models that are not on the worker yet: fetched from a URL, checked, and kept.
//!
//! Reading order: [`FetchingLoader`] (the seam), [`Artifacts`] (the walk), `plan` (what is
//! there), `fetch` (one file), `unpack` (archives), `cache` (what is kept), `store` (the only
//! place where `object_store`'s stores are made), `caller` (where those may call). Apart from
//! models, [`blob_store`] puts single files into the same stores; [`upload`] puts models there.

mod artifacts;
pub mod blob_store;
mod cache;
mod cancel;
mod config;
mod failure;
mod fetch;
mod hash;
mod http_client;
mod loader;
mod manifest;
mod options;
mod plan;
mod progress;
mod store;
mod unpack;
pub mod upload;

pub use artifacts::{ArtifactRequest, Artifacts, Lease};
pub use config::ArtifactConfig;
pub use loader::FetchingLoader;
pub use manifest::{MANIFEST, describe};
