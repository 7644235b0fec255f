use std::time::{Duration, Instant};

use volley_types::registry::RegistryCommand;
use volley_types::{ErrorCode, ModelName, NodeId};

use crate::nodes::{PATIENCE, TestNode, Three, has, register};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_on_any_node_is_seen_on_every_node() {
    let three = Three::start().await;
    for (index, node) in three.nodes.iter().enumerate() {
        let name = format!("m{index}");
        let reply = node.cluster.write(register(&name)).await.unwrap();
        let here = node.cluster.registry().borrow().clone();
        assert!(
            has(&here, &name) && reply.revision <= here.revision,
            "its own node has it"
        );
        for other in &three.nodes {
            other
                .wait_until("the write is everywhere", |state| has(state, &name))
                .await;
        }
    }
    let unknown = RegistryCommand::Undeploy(ModelName::new("nobody").unwrap());
    for node in &three.nodes {
        let refused = node.cluster.write(unknown.clone()).await.unwrap_err();
        assert_eq!(
            refused.code,
            ErrorCode::NotFound,
            "a refusal keeps its code over the wire"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_resume_when_the_leader_stops_and_a_restart_of_all_loses_nothing() {
    let mut three = Three::start().await;
    three.nodes[0]
        .cluster
        .write(register("before"))
        .await
        .unwrap();
    let leader = three.leader();
    let stopped = three.nodes.remove(leader);
    let directory = three.directories.remove(leader);
    let (id, address) = (leader as u64 + 1, stopped.address.clone());
    stopped.stop().await;

    let started = Instant::now();
    while three.nodes[0]
        .cluster
        .write(register("after"))
        .await
        .is_err()
    {
        assert!(started.elapsed() < PATIENCE, "writes resume");
    }

    let mut restarts = vec![(id, directory, address)];
    for (node, directory) in three.nodes.drain(..).zip(three.directories.drain(..)) {
        let id = node.cluster.raft().borrow().id.0;
        restarts.push((id, directory, node.address.clone()));
        node.stop().await;
    }
    let mut nodes = Vec::new();
    for (id, directory, address) in &restarts {
        nodes.push(TestNode::start(*id, directory.path(), Some(address)).await);
    }
    for node in &nodes {
        node.wait_until("both writes survived", |state| {
            has(state, "before") && has(state, "after")
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_from_a_snapshot_and_leaves_again() {
    let three = Three::start().await;
    for index in 0..60 {
        three.nodes[0]
            .cluster
            .write(register(&format!("m{index}")))
            .await
            .unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let fourth = TestNode::start(4, directory.path(), None).await;
    let seeds = vec![three.nodes[1].address.clone()];
    tokio::time::timeout(PATIENCE, fourth.cluster.request_join(&seeds))
        .await
        .unwrap();
    let state = fourth
        .wait_until("the newcomer caught up", |state| has(state, "m59"))
        .await;
    assert_eq!(state.models.len(), 60);
    fourth
        .cluster
        .write(register("from-the-newcomer"))
        .await
        .unwrap();
    three.nodes[2]
        .wait_until("its writes count", |state| has(state, "from-the-newcomer"))
        .await;

    let other = three.nodes[0]
        .cluster
        .join(NodeId(4), "127.0.0.1:1".to_owned())
        .await;
    assert_eq!(
        other.unwrap_err().code,
        ErrorCode::Conflict,
        "an id keeps its address"
    );
    let members = three.nodes[2].cluster.leave(NodeId(4)).await.unwrap();
    assert_eq!(members.len(), 3);
    let gone = three.nodes[1].cluster.leave(NodeId(9)).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_writes_fail_in_time_and_the_registry_can_still_be_read() {
    let mut three = Three::start().await;
    three.nodes[0].cluster.write(register("m")).await.unwrap();
    let survivor = three.nodes.remove(0);
    survivor
        .wait_until("the write arrived", |state| has(state, "m"))
        .await;
    for node in three.nodes.drain(..) {
        node.stop().await;
    }
    let started = Instant::now();
    let error = survivor.cluster.write(register("lost")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(
        started.elapsed() < Duration::from_millis(2_500),
        "{:?}",
        started.elapsed()
    );
    assert!(has(&survivor.cluster.registry().borrow(), "m"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_outlives_its_caller() {
    let three = Three::start().await;
    let follower = &three.nodes[(three.leader() + 1) % 3];
    let cluster = follower.cluster.clone();
    let caller = tokio::spawn(async move { cluster.write(register("orphan")).await });
    tokio::task::yield_now().await;
    caller.abort();
    // Aborted before its first poll, nothing was begun; else the write must land.
    if caller.await.is_err_and(|error| error.is_cancelled()) {
        let _ = follower.cluster.write(register("next")).await.unwrap();
    }
    follower
        .wait_until("later writes land", |state| {
            has(state, "next") || has(state, "orphan")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_belongs_to_one_node() {
    let directory = tempfile::tempdir().unwrap();
    TestNode::start(1, directory.path(), None)
        .await
        .stop()
        .await;
    let config = volley_cluster::ClusterConfig::new(NodeId(2), directory.path(), "127.0.0.1:1");
    let Err(error) = volley_cluster::Cluster::start(config).await else {
        panic!("another node took the directory");
    };
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("node 1"), "{}", error.message);
}
