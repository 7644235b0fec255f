//! What a coordinator keeps on disk: its id, vote, log and newest snapshot, in one redb file.
//!
//! All writes go through one thread ([`disk`]), which puts whatever is waiting into one
//! transaction: at most one fsync at a time, shared by all that waited for it. The log is also
//! held in memory ([`log`]) — snapshots keep it short — so that reading it never touches the
//! disk. The registry itself ([`machine`]) lives in memory and is rebuilt from the snapshot and
//! the log.

pub(crate) mod disk;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod seed;

#[cfg(test)]
mod tests;
