//! What an external autoscaler needs to know to choose a number of workers.

/// The workers that the cluster has, and how many it could use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleSignal {
    /// Workers that are alive.
    pub workers: u32,
    /// Workers that would hold all that is deployed.
    pub desired_workers: u32,
    /// Replicas that no worker can take now.
    pub unschedulable_replicas: u32,
    /// Streams that run and wait over the places of all replicas, in percent.
    pub utilization_percent: u32,
    /// The longest queue wait of any replica of late.
    pub queue_wait_ms: u32,
}
