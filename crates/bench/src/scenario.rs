//! The scenarios, one module each.

pub(crate) mod cpu;
pub(crate) mod decode;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod start;
