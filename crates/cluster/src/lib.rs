//! Volley cluster.
