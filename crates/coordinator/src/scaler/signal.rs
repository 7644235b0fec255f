//! The desired number of workers. Pure.

use volley_types::control::Liveness;
use volley_types::registry::{RegistryState, ReplicaState};
use volley_types::scale::ScaleSignal;

use crate::live::LiveWorkers;

/// Percentage of the workers' memory that may be used before more workers are requested, because
/// free memory is fragmented.
const FILL_PERCENT: u64 = 80;

/// The signal for an external autoscaler, from the registry and the last heartbeats.
#[must_use]
pub fn signal(state: &RegistryState, live: &LiveWorkers) -> ScaleSignal {
    let mut signal = ScaleSignal::default();
    let (mut budget, mut demand, mut capacity) = (0_u64, 0_u64, 0_u64);
    let alive = live
        .iter()
        .filter(|(_, worker)| worker.liveness == Liveness::Alive);
    for (_, worker) in alive {
        signal.workers += 1;
        budget = budget.saturating_add(worker.report.memory_budget_bytes);
        for replica in &worker.report.replicas {
            if replica.state == ReplicaState::Ready {
                demand += u64::from(replica.active) + u64::from(replica.queued);
                capacity += u64::from(replica.capacity);
                signal.queue_wait_ms = signal.queue_wait_ms.max(replica.queue_wait_ms);
            }
        }
    }
    let percent = demand.saturating_mul(100) / capacity.max(1);
    signal.utilization_percent = u32::try_from(percent).unwrap_or(u32::MAX);
    let wants = wants(state, live);
    signal.unschedulable_replicas = wants.unschedulable;
    let each = budget / u64::from(signal.workers.max(1)) / 100 * FILL_PERCENT;
    let by_memory = if each == 0 {
        0
    } else {
        wants.bytes.div_ceil(each)
    };
    let by_memory = u32::try_from(by_memory).unwrap_or(u32::MAX);
    // Replicas of one model need separate workers.
    let enough = by_memory.max(wants.most_replicas);
    let more = signal.workers.saturating_add(wants.most_unschedulable);
    signal.desired_workers = if wants.unschedulable == 0 {
        enough
    } else {
        enough.max(more)
    };
    signal
}

#[derive(Default)]
struct Demand {
    bytes: u64,
    most_replicas: u32,
    unschedulable: u32,
    most_unschedulable: u32,
}

fn wants(state: &RegistryState, live: &LiveWorkers) -> Demand {
    let mut wants = Demand::default();
    for entry in state.models.values() {
        let Some(deployment) = &entry.deployment else {
            continue;
        };
        // During a rollout, unplaced replicas wait for the rollout.
        let placed = match &deployment.rollout {
            Some(rollout) if deployment.options.keep_previous == 0 => {
                entry.placement.len().max(rollout.previous.len())
            }
            Some(_) => entry.placement.len(),
            None => entry.placement.len(),
        };
        let placed = u32::try_from(placed).unwrap_or(u32::MAX);
        let unschedulable = deployment.replicas.saturating_sub(placed);
        wants.unschedulable += unschedulable;
        wants.most_unschedulable = wants.most_unschedulable.max(unschedulable);
        wants.most_replicas = wants.most_replicas.max(deployment.replicas);
        let size = match deployment.options.memory_bytes {
            0 => live
                .replicas(&entry.name)
                .map(|(_, replica)| replica.memory_bytes)
                .max()
                .unwrap_or(0),
            bytes => bytes,
        };
        let bytes = if deployment.overcommit {
            0
        } else {
            size.saturating_mul(u64::from(deployment.replicas))
        };
        wants.bytes = wants.bytes.saturating_add(bytes);
    }
    wants
}
