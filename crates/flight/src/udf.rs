//! Models as functions of SQL engines: RisingWave (Arrow UDF, version 2), Databend, and DuckDB's
//! Airport. One row of arguments gives one value.
//!
//! `docs/reference/sql-functions.md` says which arguments and result a model has as a function, and
//! `docs/reference/flight.md` how callers are told apart. Reading order: [`caller`] (who calls),
//! [`function`] (what a model is as a function), [`gather`] (its answer as a column),
//! [`airport`] (the catalogue that DuckDB reads).

pub(crate) mod airport;
pub(crate) mod caller;
pub(crate) mod function;
pub(crate) mod gather;
pub(crate) mod msgpack;
pub(crate) mod status;
pub(crate) mod types;
