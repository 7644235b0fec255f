use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use volley_types::registry::RegistryCommand;
use volley_types::{ConnectorId, ErrorCode, ModelName, NodeId};

use crate::nodes::{PATIENCE, TestNode, Three, connector, has, members, register};

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
    let leader = three.leader().await;
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
    let mut three = Three::with_the_usual_write_timeout().await;
    three.write(register("m")).await;
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
        // The write timeout is two seconds; the rest is for a busy machine.
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
    assert!(has(&survivor.cluster.registry().borrow(), "m"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_outlives_its_caller() {
    let three = Three::start().await;
    let follower = &three.nodes[(three.leader().await + 1) % 3];
    {
        let write = std::pin::pin!(follower.cluster.write(register("orphan")));
        assert!(futures::poll!(write).is_pending(), "begun, not done");
    }
    for node in &three.nodes {
        node.wait_until("the orphan lands", |state| has(state, "orphan"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writes_that_contradict_each_other_one_wins_everywhere() {
    let three = Three::start().await;
    let id = ConnectorId::new("c").unwrap();
    for round in 0..5 {
        let writes = three.nodes.iter().enumerate().map(|(index, node)| {
            let url = format!("http://upstream-{round}-{index}/");
            node.cluster.write(connector(&id, &url))
        });
        let answers = futures::future::join_all(writes).await;
        let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "one connector of that id");
        for error in lost.into_iter().map(Result::unwrap_err) {
            assert_eq!(error.code, ErrorCode::Conflict);
        }
        let deletes = three.nodes.iter().map(|node| {
            node.cluster
                .write(RegistryCommand::DeleteConnector(id.clone()))
        });
        let answers = futures::future::join_all(deletes).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_registrations_get_versions_of_their_own() {
    let three = Three::start().await;
    let writes = (0..60).map(|turn| three.nodes[turn % 3].cluster.write(register("m")));
    let answers = futures::future::join_all(writes).await;
    let versions: BTreeSet<u32> = answers
        .into_iter()
        .map(|answer| answer.unwrap().version.unwrap().0)
        .collect();
    assert_eq!(versions, (1..=60).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_writes_than_a_node_holds_are_refused_at_once() {
    let three = Three::start().await;
    let node = &three.nodes[0];
    let writes = (0..600).map(|_| node.cluster.write(register("m")));
    let answers = futures::future::join_all(writes).await;
    let errors: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    let refused = errors
        .iter()
        .filter(|error| error.code == ErrorCode::Overloaded);
    assert!(0 < refused.clone().count());
    assert!(refused.clone().all(|error| error.retry_after.is_some()));
    // On a slow machine some of the held writes may time out.
    assert!(
        errors
            .iter()
            .all(|error| matches!(error.code, ErrorCode::Overloaded | ErrorCode::Unavailable))
    );
    node.cluster.write(register("after")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_too_large_for_the_log_is_refused_by_every_node() {
    let three = Three::start().await;
    let id = ConnectorId::new("c").unwrap();
    let url = "x".repeat(1 << 20);
    for node in &three.nodes {
        let refused = node.cluster.write(connector(&id, &url)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::TooLarge);
        let long = "x".repeat(16 << 10);
        let refused = node.cluster.write(connector(&id, &long)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::TooLarge, "kept over the wire");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrapping_again_changes_nothing_and_strangers_cannot_bootstrap() {
    let three = Three::start().await;
    three.nodes[0].cluster.write(register("m")).await.unwrap();
    let before = three.nodes[0].cluster.raft().borrow().members.clone();
    let mut members = members(&three.nodes);
    for node in &three.nodes {
        node.cluster.bootstrap(members.clone()).await.unwrap();
    }
    assert_eq!(three.nodes[0].cluster.raft().borrow().members, before);
    assert!(has(&three.nodes[0].cluster.registry().borrow(), "m"));
    members.remove(&NodeId(1));
    let refused = three.nodes[0].cluster.bootstrap(members).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_node_cluster_grows_and_its_leader_can_leave() {
    let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = TestNode::start(1, directories[0].path(), None).await;
    let alone = BTreeMap::from([(NodeId(1), first.address.clone())]);
    first.cluster.bootstrap(alone).await.unwrap();
    first.cluster.write(register("m")).await.unwrap();
    let last = first.cluster.leave(NodeId(1)).await.unwrap_err();
    assert_eq!(last.code, ErrorCode::Conflict, "somebody must stay");

    let seeds = vec![first.address.clone()];
    let second = TestNode::start(2, directories[1].path(), None).await;
    let third = TestNode::start(3, directories[2].path(), None).await;
    let joins = async {
        tokio::join!(
            second.cluster.request_join(&seeds),
            third.cluster.request_join(&seeds)
        )
    };
    tokio::time::timeout(PATIENCE, joins).await.unwrap();
    third
        .wait_until("the newcomer has it", |state| has(state, "m"))
        .await;

    let members = second.cluster.leave(NodeId(1)).await.unwrap();
    assert!(members.iter().all(|member| member.id != NodeId(1)));
    first.stop().await;
    let started = Instant::now();
    while second.cluster.write(register("after")).await.is_err() {
        assert!(started.elapsed() < PATIENCE, "writes resume");
    }
    third
        .wait_until("the others go on", |state| has(state, "after"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_belongs_to_one_node() {
    let directory = tempfile::tempdir().unwrap();
    // The directory has neither votes nor log entries, so it may change its owner.
    TestNode::start(7, directory.path(), None)
        .await
        .stop()
        .await;
    let first = TestNode::start(1, directory.path(), None).await;
    let alone = BTreeMap::from([(NodeId(1), first.address.clone())]);
    first.cluster.bootstrap(alone).await.unwrap();
    first.stop().await;
    let config = volley_cluster::ClusterConfig::new(NodeId(2), directory.path(), "127.0.0.1:1");
    let Err(error) = volley_cluster::Cluster::start(config).await else {
        panic!("another node took the directory");
    };
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("node 1"), "{}", error.message);
}
