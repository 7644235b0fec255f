//! Measures a Volley cluster: starts its processes, loads them, and prints what they cost.
mod load;
mod process;
mod report;
mod standin;
mod stats;

fn main() {}
