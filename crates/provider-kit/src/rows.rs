//! Rows of servers that embed or rerank: how they are sent, and how the answer is read.

pub mod answer;
pub mod form;
pub mod google;
pub mod group;
pub mod pre;
