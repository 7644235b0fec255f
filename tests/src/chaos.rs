//! Faults by plan: a cluster of real processes, each in a network namespace of its own, under
//! writers and streaming clients, while a seeded nemesis kills, freezes, cuts off and starves its
//! nodes. What clients saw is checked afterwards: see [`history`] and [`streams`].
//!
//! Needs root, for namespaces and file systems of its own; nothing outside them is touched.

mod directories;
pub mod disk;
pub mod history;
pub mod load;
pub mod nemesis;
pub mod net;
pub mod proxy;
pub mod report;
pub mod streams;
pub mod test_bed;
