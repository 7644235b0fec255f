//! What is measured, one file each.

pub(crate) mod cpu;
pub(crate) mod decode;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod start;
