//! `docs/reference/cli.md` is generated from the arguments, and the keys that
//! `docs/reference/configuration.md` documents have an effect.

mod cli;
mod configuration;
#[path = "../../../../tests/reference/keys.rs"]
#[expect(dead_code, reason = "the page of the keys is written elsewhere")]
mod keys;
#[path = "../../../../tests/reference/page.rs"]
mod page;
