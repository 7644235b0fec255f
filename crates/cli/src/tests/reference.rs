//! `docs/reference/cli.md` and `docs/reference/configuration.md` are generated from the arguments
//! and from the keys of the configuration files.

mod cli;
mod configuration;
#[path = "../../../../tests/reference/page.rs"]
mod page;
