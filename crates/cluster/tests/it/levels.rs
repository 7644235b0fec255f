//! Coordinators of two feature levels in one cluster.

use volley_cluster::{Cluster, ClusterConfig};
use volley_types::registry::{Drain, LEVEL, RegistryCommand};
use volley_types::{ErrorCode, NodeId, NodeIdentity, WorkerId};

use crate::nodes::{PATIENCE, TestNode, Three, has, register};

fn drain(worker: &str) -> RegistryCommand {
    let worker = NodeIdentity::Worker(WorkerId::new(worker).unwrap());
    RegistryCommand::Drain(worker, Drain::default())
}

/// Waits until a node has stopped to take part in the cluster.
async fn stopped(cluster: &Cluster) {
    let by = tokio::time::Instant::now() + PATIENCE;
    while cluster.healthy() {
        assert!(tokio::time::Instant::now() < by, "it goes on");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_new_waits_for_the_last_of_them_and_then_nobody_goes_back() {
    let mut three = Three::start_at(1).await;
    three.nodes[0].cluster.write(register("a")).await.unwrap();
    for turn in 0..3 {
        for node in &three.nodes {
            let refused = node.cluster.write(drain("w")).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::Conflict, "{refused:?}");
            let said = &refused.message;
            assert!(said.contains("finish the upgrade first"), "{said}");
            assert!(said.contains("runs at level 1"), "{said}");
        }
        // The next node is upgraded: it keeps its directory and its address.
        let old = three.nodes.remove(turn);
        let address = old.address.clone();
        let _ = old.cluster.transfer_leadership(None).await;
        old.stop().await;
        let directory = three.directories[turn].path();
        let new = TestNode::start_at(turn as u64 + 1, directory, Some(&address), LEVEL).await;
        three.nodes.insert(turn, new);
        for node in &three.nodes {
            node.wait_for_leader().await;
        }
        let written = format!("turn-{turn}");
        three.write(register(&written)).await;
        for node in &three.nodes {
            node.wait_until("old and new apply the same", |state| has(state, &written))
                .await;
        }
    }
    three.write(drain("w")).await;
    for node in &three.nodes {
        let state = node
            .wait_until("all have it", |state| !state.drains.is_empty())
            .await;
        assert_eq!(state.level, 2);
    }

    // A node with a lower level cannot join.
    let directory = tempfile::tempdir().unwrap();
    let late = TestNode::start_at(4, directory.path(), None, 1).await;
    let address = late.address.clone();
    let refused = three.nodes[0].cluster.join(NodeId(4), address).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("level 1"), "{refused:?}");
    late.stop().await;

    // A downgraded node stops at an entry that it cannot read, before it applies anything.
    let follower = (three.leader().await + 1) % 3;
    let node = three.nodes.remove(follower);
    let address = node.address.clone();
    node.stop().await;
    let directory = three.directories[follower].path();
    let mut config = ClusterConfig::new(NodeId(follower as u64 + 1), directory, address);
    config.level = 1;
    match Cluster::start(config).await {
        Err(refused) => eprintln!("refused at its start: {}", refused.chain()),
        Ok(back) => {
            stopped(&back).await;
            assert!(back.registry().borrow().drains.is_empty());
            back.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_that_is_not_spoken_is_refused_at_the_start() {
    for level in [0, LEVEL + 1] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = ClusterConfig::new(NodeId(1), directory.path(), "127.0.0.1:1");
        config.level = level;
        let refused = Cluster::start(config).await.map(drop);
        assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidInput);
    }
}
