//! Volley backend-remote.
