//! Volley telemetry.
