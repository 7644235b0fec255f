//! A worker with real backends, and real heartbeat servers on loopback for its coordinators.

mod it {
    mod admission;
    mod drain;
    mod heartbeats;
    mod loads;
    mod memory;
    mod overcommit;
    mod replicas;
    mod support;
}
