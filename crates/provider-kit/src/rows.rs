//! Requests and answers of servers that embed or rerank rows.

pub mod format;
pub mod google;
pub mod group;
mod parameters;
pub mod post_process;
pub mod pre_process;
