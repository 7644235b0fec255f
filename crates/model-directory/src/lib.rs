//! Detects the kind of model in a directory, and reads what its files declare.
//!
//! Only reads files; does not load models. Sources in order of precedence: the registration of the
//! version ([`registered`]), `model.toml` ([`overrides`]), Triton's `config.pbtxt` ([`triton`]),
//! the files of the model's own format ([`layout`]).

pub mod layout;
pub mod overrides;
pub mod registered;
pub mod triton;
