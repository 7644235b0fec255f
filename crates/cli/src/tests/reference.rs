//! Generates `docs/reference/cli.md` from the arguments, and checks that every key in
//! `docs/reference/configuration.md` has an effect.

mod cli;
mod configuration;
#[path = "../../../../tests/reference/keys.rs"]
#[expect(dead_code, reason = "the page of the keys is written elsewhere")]
mod keys;
#[path = "../../../../tests/reference/page.rs"]
mod page;
