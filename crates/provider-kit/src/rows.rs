//! Rows of servers that embed or rerank: how they are sent, and how the answer is read.

pub mod format;
pub mod google;
pub mod group;
pub mod post_process;
pub mod pre_process;
