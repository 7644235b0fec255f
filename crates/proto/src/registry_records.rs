//! Registry records and commands ⇄ [`volley_types::registry`].
