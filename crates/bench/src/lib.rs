//! Volley bench.
