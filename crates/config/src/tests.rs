//! `docs/reference/configuration.md` is generated from the structs that read the files.

#[path = "../../../tests/reference/keys.rs"]
mod keys;
#[path = "../../../tests/reference/page.rs"]
mod page;
mod reference;
mod round_trip;
