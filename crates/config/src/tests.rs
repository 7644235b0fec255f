//! `docs/reference/configuration.md` and `docs/reference/limits.md` are generated from the structs
//! that read the files.

#[path = "../../../tests/reference/keys.rs"]
mod keys;
mod limits;
mod migrated;
#[path = "../../../tests/reference/page.rs"]
mod page;
mod reference;
mod round_trip;
