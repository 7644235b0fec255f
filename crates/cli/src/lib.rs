//! Volley cli.
