//! Volley api.
