//! Tests with real models on the real library.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/columns.rs"]
mod columns;
#[path = "it/continued.rs"]
mod continued;
#[path = "it/crowd.rs"]
mod crowd;
#[path = "it/decoders.rs"]
mod decoders;
#[path = "it/encoder_tokens.rs"]
mod encoder_tokens;
#[path = "it/encoders.rs"]
mod encoders;
#[path = "it/faults.rs"]
mod faults;
#[path = "it/forms.rs"]
mod forms;
#[path = "it/generate.rs"]
mod generate;
#[path = "it/hostile.rs"]
mod hostile;
#[path = "it/mutants.rs"]
mod mutants;
#[path = "it/neighbours.rs"]
mod neighbours;
#[path = "it/prefixes.rs"]
mod prefixes;
#[path = "it/prompt_tokens.rs"]
mod prompt_tokens;
#[path = "it/reasoned.rs"]
mod reasoned;
#[path = "it/served.rs"]
mod served;
#[path = "it/setup.rs"]
mod setup;
#[path = "it/tables.rs"]
mod tables;
#[path = "it/tensors.rs"]
mod tensors;
#[path = "it/texts.rs"]
mod texts;
#[path = "it/triton.rs"]
mod triton;
