//! Volley worker.
