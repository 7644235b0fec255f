//! Volley client.
