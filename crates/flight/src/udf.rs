//! Models as functions of SQL engines: RisingWave (Arrow UDF, version 2), Databend, and DuckDB's
//! Airport. One row of arguments returns one value.
//!
//! `docs/reference/sql-functions.md` documents the arguments and the result of a model as a
//! function, and `docs/reference/flight.md` how callers are distinguished. Reading order:
//! [`caller`] (detection of callers), [`function`] (models as functions), [`gather`] (responses as
//! columns), [`airport`] (DuckDB's catalogue).

pub(crate) mod airport;
pub(crate) mod caller;
pub(crate) mod function;
pub(crate) mod gather;
pub(crate) mod msgpack;
pub(crate) mod status;
pub(crate) mod types;
