//! Stories of whole clusters: real processes, real clients, real faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "whole/aliases.rs"]
mod aliases;
#[path = "whole/bad_input.rs"]
mod bad_input;
#[path = "whole/batches.rs"]
mod batches;
#[path = "whole/browser.rs"]
mod browser;
#[path = "whole/clients.rs"]
mod clients;
#[path = "whole/compressed.rs"]
mod compressed;
#[path = "whole/connectors.rs"]
mod connectors;
#[path = "whole/continued.rs"]
mod continued;
#[path = "whole/dialects.rs"]
mod dialects;
#[path = "whole/documented.rs"]
mod documented;
#[path = "whole/drains.rs"]
mod drains;
#[path = "whole/encoders.rs"]
mod encoders;
#[path = "whole/evaluated.rs"]
mod evaluated;
#[path = "whole/faults.rs"]
mod faults;
#[path = "whole/fidelity.rs"]
mod fidelity;
#[path = "whole/foreign_pages.rs"]
mod foreign_pages;
#[path = "whole/life.rs"]
mod life;
#[path = "whole/logged_once.rs"]
mod logged_once;
#[path = "whole/lost_disks.rs"]
mod lost_disks;
#[path = "whole/membership.rs"]
mod membership;
#[path = "whole/memory.rs"]
mod memory;
#[path = "whole/mixed.rs"]
mod mixed;
#[path = "whole/moves.rs"]
mod moves;
#[path = "whole/operations.rs"]
mod operations;
#[path = "whole/overload.rs"]
mod overload;
#[path = "whole/pipelines.rs"]
mod pipelines;
#[path = "whole/placement.rs"]
mod placement;
#[path = "whole/prerequisites.rs"]
mod prerequisites;
#[path = "whole/python_backend.rs"]
mod python_backend;
#[path = "whole/python_client.rs"]
mod python_client;
#[path = "whole/python_models.rs"]
mod python_models;
#[path = "whole/quotas.rs"]
mod quotas;
#[path = "whole/redaction.rs"]
mod redaction;
#[path = "whole/repositories.rs"]
mod repositories;
#[path = "whole/resumed.rs"]
mod resumed;
#[path = "whole/round_trips.rs"]
mod round_trips;
#[path = "whole/secrets.rs"]
mod secrets;
#[path = "whole/sources.rs"]
mod sources;
#[path = "whole/starts.rs"]
mod starts;
#[path = "whole/structured.rs"]
mod structured;
#[path = "whole/tables.rs"]
mod tables;
#[path = "whole/tenants.rs"]
mod tenants;
#[path = "whole/traces.rs"]
mod traces;
#[path = "whole/udf.rs"]
mod udf;
#[path = "whole/upgrades.rs"]
mod upgrades;
#[path = "whole/upstreams.rs"]
mod upstreams;
#[path = "whole/versions.rs"]
mod versions;
