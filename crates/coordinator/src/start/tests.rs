use std::collections::BTreeSet;
use std::sync::Arc;

use volley_types::registry::{CoordinatorMember, Deployment, ModelEntry};
use volley_types::{ModelName, ModelVersion, Revision, WorkerId};

use super::*;
use crate::config::LivenessConfig;

fn status(members: u64, leader: Option<u64>, applied: u64) -> RaftStatus {
    RaftStatus {
        id: NodeId(1),
        role: "follower",
        leader: leader.map(NodeId),
        term: 3,
        last_log_index: Some(20),
        last_applied: Some(applied),
        members: (1..=members)
            .map(|id| CoordinatorMember {
                id: NodeId(id),
                address: format!("10.0.0.{id}:8421"),
                voter: true,
            })
            .collect(),
    }
}

/// What nodes said that they have applied.
fn reports(applied: &[(u64, Option<u64>)]) -> BTreeMap<NodeId, CoordinatorReport> {
    let report = |last_applied| CoordinatorReport {
        level: 2,
        version: "0.1.0".to_owned(),
        active_streams: 0,
        last_applied,
    };
    applied
        .iter()
        .map(|(node, applied)| (NodeId(*node), report(*applied)))
        .collect()
}

#[test]
fn a_registry_is_as_new_as_the_newest_that_another_had() {
    let others = reports(&[(1, Some(5)), (2, Some(20)), (3, Some(18))]);
    assert!(!caught_up(&status(3, Some(2), 19), &others));
    assert!(caught_up(&status(3, Some(2), 20), &others));
    assert!(!caught_up(&status(3, None, 20), &others), "nobody leads");
    // Nobody else was asked yet, or nobody answers.
    assert!(!caught_up(&status(3, Some(2), 20), &reports(&[])));
    assert!(!caught_up(
        &status(3, Some(2), 20),
        &reports(&[(1, Some(20))])
    ));
    // Versions before this one do not tell.
    assert!(caught_up(&status(3, Some(2), 7), &reports(&[(2, None)])));
}

#[test]
fn a_coordinator_alone_has_applied_its_own_log() {
    assert!(!caught_up(
        &status(1, Some(1), 19),
        &reports(&[(1, Some(19))])
    ));
    assert!(caught_up(&status(1, Some(1), 20), &reports(&[])));
}

#[test]
fn workers_that_shall_hold_something_are_waited_for() {
    let raft = status(1, Some(1), 20);
    let live = LiveWorkers::new(LivenessConfig::default());
    let mut registry = RegistryState::default();
    assert!(knows(&raft, &registry, &BTreeMap::new(), &live));
    let worker = WorkerId::new("w").unwrap();
    let model = ModelName::new("m").unwrap();
    let entry = ModelEntry {
        name: model.clone(),
        versions: BTreeMap::new(),
        deployment: Some(Deployment::new(ModelVersion(1), 1, Revision(4))),
        placement: vec![worker],
        ever_deployed: true,
        group: None,
        deleted_tasks: BTreeSet::new(),
    };
    registry.models.insert(model, Arc::new(entry));
    assert!(!knows(&raft, &registry, &BTreeMap::new(), &live));
}
