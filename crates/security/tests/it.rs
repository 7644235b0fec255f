//! Connections between nodes over real sockets, with certificates made for each test.

#[path = "it/certificates.rs"]
mod certificates;
#[path = "it/nodes.rs"]
mod nodes;
