//! Recognition of a model's directory: which kind of model its files make, and what they declare.
//!
//! Pure apart from reading files; no model is loaded. The order of precedence, from the strongest:
//! what a version was registered with ([`registered`]), `model.toml` ([`overrides`]), Triton's
//! `config.pbtxt` ([`triton`]), the files of the model's format ([`layout`]).

pub mod layout;
pub mod overrides;
pub mod registered;
pub mod triton;
