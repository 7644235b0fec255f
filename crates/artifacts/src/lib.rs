//! Fetches models from URLs, verifies them, and caches them on the worker.
//!
//! Reading order: [`FetchingLoader`] (the connection to backends), [`Artifacts`] (a complete
//! fetch), `plan` (the list of files), `fetch` (one file), `unpack` (archives), `cache`, `store`
//! (the only place that creates `object_store` stores), `http_client` (addresses that stores may
//! call). In addition, [`blob_store`] reads and writes single files in the same stores, and
//! [`upload`] writes models to them.

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
