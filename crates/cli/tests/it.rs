//! Stories with the real binary: arguments, files, processes and signals.

#[path = "it/commands.rs"]
mod commands;
#[path = "it/nodes.rs"]
mod nodes;
#[path = "it/support.rs"]
mod support;
