//! Volley coordinator.
