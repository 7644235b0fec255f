//! Input for an external autoscaler of workers.

/// Current and desired number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleSignal {
    /// Workers that are alive.
    pub workers: u32,
    /// Number of workers that could hold all deployed replicas.
    pub desired_workers: u32,
    /// Replicas that no worker can hold now.
    pub unschedulable_replicas: u32,
    /// (running + queued streams) / capacity of all replicas, in percent.
    pub utilization_percent: u32,
    /// Longest recent queue wait of any replica, in milliseconds.
    pub queue_wait_ms: u32,
}
