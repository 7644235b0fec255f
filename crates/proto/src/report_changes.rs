//! Incremental heartbeats: only the changes since the previous heartbeat on the same stream.

use volley_types::{PredictError, WorkerReport};

use crate::worker::v1 as wire;
use crate::worker_report::{report_from_wire, report_to_wire};

/// Converts a heartbeat for a coordinator that has received `before` on the same stream. It
/// contains only the changed replicas, unless the list of replicas or the labels differ.
#[must_use]
pub fn changes_to_wire(before: Option<&WorkerReport>, report: &WorkerReport) -> wire::WorkerReport {
    let same_list = |before: &&WorkerReport| {
        let pairs = before.replicas.iter().zip(&report.replicas);
        let mut same = pairs.map(|(was, is)| was.model == is.model && was.version == is.version);
        before.replicas.len() == report.replicas.len()
            && before.labels == report.labels
            && same.all(|same| same)
    };
    let Some(before) = before.filter(same_list) else {
        return report_to_wire(report);
    };
    let pairs = before.replicas.iter().zip(&report.replicas);
    let changed = pairs
        .filter(|(was, is)| was != is)
        .map(|(_, is)| is.clone());
    let part = WorkerReport {
        id: report.id.clone(),
        address: report.address.clone(),
        labels: std::collections::BTreeMap::new(),
        replicas: changed.collect(),
        gpus: report.gpus.clone(),
        ..*report
    };
    wire::WorkerReport {
        partial: true,
        ..report_to_wire(&part)
    }
}

/// Restores a full heartbeat from the wire and from the previous heartbeat on the same stream.
///
/// # Errors
/// `InvalidInput` when a field is malformed, when there is no previous heartbeat, or when an
/// unknown replica changes.
pub fn changes_from_wire(
    before: Option<WorkerReport>,
    report: wire::WorkerReport,
) -> Result<WorkerReport, PredictError> {
    if !report.partial {
        return report_from_wire(report);
    }
    let part = report_from_wire(report)?;
    let Some(before) = before.filter(|before| before.id == part.id) else {
        return Err(PredictError::invalid(
            "a heartbeat of changes has no full heartbeat before it",
        ));
    };
    let mut replicas = before.replicas;
    for changed in part.replicas {
        let same = |replica: &&mut volley_types::ReplicaReport| {
            replica.model == changed.model && replica.version == changed.version
        };
        match replicas.iter_mut().find(same) {
            Some(replica) => *replica = changed,
            None => {
                return Err(PredictError::invalid(
                    "a heartbeat changes an unknown replica",
                ));
            }
        }
    }
    Ok(WorkerReport {
        labels: before.labels,
        replicas,
        ..part
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use volley_types::registry::ReplicaState;
    use volley_types::{Incarnation, ModelName, ModelVersion, ReplicaReport, Signature, WorkerId};

    use super::*;

    fn report(replicas: &[(u8, u32, bool)], zone: u8) -> WorkerReport {
        let replicas: BTreeMap<_, _> = replicas.iter().map(|it| (it.0, it)).collect();
        let replica = |(model, active, ready): &(u8, u32, bool)| ReplicaReport {
            model: ModelName::new(format!("m{model}")).unwrap(),
            version: ModelVersion(1),
            state: if *ready {
                ReplicaState::Ready
            } else {
                ReplicaState::Loading
            },
            active: *active,
            queued: 0,
            capacity: 4,
            queue_wait_ms: 0,
            idle_since_ms: 5,
            fetch: None,
            signature: ready.then(Signature::generation),
            evicted: false,
            memory_bytes: 7,
        };
        WorkerReport {
            id: WorkerId::new("w").unwrap(),
            incarnation: Incarnation(1),
            address: "host:1".to_owned(),
            labels: BTreeMap::from([("zone".to_owned(), zone.to_string())]),
            replicas: replicas.into_values().map(replica).collect(),
            draining: false,
            active: 1,
            queued: 2,
            memory_bytes: 3,
            memory_budget_bytes: 4,
            uptime_ms: 9,
            gpus: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn a_stream_of_changes_tells_the_same_as_whole_reports(
            story in proptest::collection::vec(
                (proptest::collection::vec((0_u8..4, 0_u32..3, any::<bool>()), 0..5), 0_u8..2), 1..12),
        ) {
            let (mut said, mut heard) = (None, None);
            for (replicas, zone) in story {
                let report = report(&replicas, zone);
                let wire = changes_to_wire(said.as_ref(), &report);
                let whole = changes_from_wire(heard.take(), wire).unwrap();
                prop_assert_eq!(&whole, &report);
                (said, heard) = (Some(report), Some(whole));
            }
        }
    }

    #[test]
    fn changes_without_what_they_change_are_refused() {
        let (empty, one) = (report(&[], 0), report(&[(1, 0, true)], 0));
        let mut idle = one.clone();
        idle.active = 0;
        let part = changes_to_wire(Some(&one), &idle);
        assert!(part.partial && part.replicas.is_empty());
        assert!(changes_from_wire(None, part.clone()).is_err());
        let mut busy = one.clone();
        busy.replicas[0].active = 3;
        let part = changes_to_wire(Some(&one), &busy);
        assert!(changes_from_wire(Some(empty), part).is_err());
    }
}
