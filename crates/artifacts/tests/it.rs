//! Stories of models that are fetched: from real servers on this machine, which break as told.

#[path = "it/buckets.rs"]
mod buckets;
#[path = "it/fetches.rs"]
mod fetches;
#[path = "it/rules.rs"]
mod rules;
#[path = "it/server.rs"]
mod server;
#[path = "it/setup.rs"]
mod setup;
