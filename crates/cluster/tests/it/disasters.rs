//! Losses of coordinators: leadership transfer, replacement, backups, recovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use volley_cluster::Cluster;
use volley_cluster::backup::{self, ClusterSeed};
use volley_types::{ErrorCode, NodeId, PredictError};

use crate::nodes::{PATIENCE, TestNode, Three, has, register};

/// Writes through every node in turn until stopped. Returns the names of the acknowledged models,
/// the number of rejected writes, and the longest duration of a write.
fn keep_writing(
    clusters: Vec<Cluster>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
) -> tokio::task::JoinHandle<(Vec<String>, usize, Duration)> {
    tokio::spawn(async move {
        let (mut written, mut refused, mut slowest) = (Vec::new(), 0, Duration::ZERO);
        for turn in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let cluster = &clusters[turn % clusters.len()];
            let began = Instant::now();
            let name = format!("w{turn}");
            match cluster.write(register(&name)).await {
                Ok(_) => {
                    written.push(name);
                    acknowledged.store(written.len(), Ordering::Relaxed);
                }
                Err(_) => refused += 1,
            }
            slowest = slowest.max(began.elapsed());
        }
        (written, refused, slowest)
    })
}

/// Repeats a request until there is a leader: on a busy machine it may be missing for a moment.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, PredictError>) -> Result<T, PredictError> {
    let by = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(error) if error.code == ErrorCode::Unavailable && Instant::now() < by => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answered => return answered,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_hands_over_and_no_acknowledged_write_is_lost() {
    let three = Three::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let clusters = three.nodes.iter().map(|node| node.cluster.clone());
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let writer = keep_writing(clusters.collect(), stop.clone(), acknowledged.clone());
    let mut led = Vec::new();
    for round in 0..3 {
        let leader = three.leader().await;
        let to = NodeId((leader as u64 + 1) % 3 + 1);
        // Any coordinator accepts the request.
        let asked = &three.nodes[round % 3].cluster;
        let transfer_leadership = async || asked.transfer_leadership(Some(to)).await;
        assert_eq!(answered(transfer_leadership).await.unwrap(), to);
        assert_eq!(
            answered(transfer_leadership).await.unwrap(),
            to,
            "it leads already"
        );
        for node in &three.nodes {
            let mut raft = node.cluster.raft();
            let follows = raft.wait_for(|status| status.leader == Some(to));
            tokio::time::timeout(PATIENCE, follows)
                .await
                .unwrap()
                .unwrap();
        }
        // Writes succeed under each leader, however long they waited for it.
        let before = acknowledged.load(Ordering::Relaxed);
        let by = Instant::now() + PATIENCE;
        while acknowledged.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < by, "no write under {to}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        led.push(to);
    }
    stop.store(true, Ordering::Relaxed);
    let (written, refused, slowest) = writer.await.unwrap();
    let count = written.len();
    eprintln!("{count} writes through {led:?}, {refused} refused, the slowest took {slowest:?}");
    assert!(3 <= count, "{count} writes");
    for node in &three.nodes {
        node.wait_until("every acknowledged write is there", |state| {
            written.iter().all(|name| has(state, name))
        })
        .await;
    }
    let first = &three.nodes[0].cluster;
    let unknown = answered(async || first.transfer_leadership(Some(NodeId(9))).await).await;
    assert_eq!(unknown.unwrap_err().code, ErrorCode::NotFound);

    // A retired coordinator no longer leads and rejects the leadership.
    let leader = three.leader().await;
    three.nodes[leader].cluster.retire().await;
    let next = three.leader().await;
    assert_ne!(next, leader);
    let back = three.nodes[next]
        .cluster
        .transfer_leadership(Some(NodeId(leader as u64 + 1)));
    assert_eq!(back.await.unwrap_err().code, ErrorCode::Unavailable);
    let last = &three.nodes[next].cluster;
    last.write(register("after"))
        .await
        .expect("it goes on as the leader");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_coordinator_is_replaced_by_a_new_id_in_one_change() {
    let mut three = Three::start().await;
    let leader = three.leader().await;
    let dead = (leader + 1) % 3;
    let (dead_id, alive) = (NodeId(dead as u64 + 1), NodeId(leader as u64 + 1));
    three.nodes.remove(dead).stop().await;
    let directory = tempfile::tempdir().unwrap();
    let fourth = TestNode::start(4, directory.path(), None).await;
    let asked = &three.nodes[0].cluster;
    let replace = async |old, new| asked.replace(old, new, fourth.address.clone()).await;
    let same = answered(async || replace(dead_id, dead_id).await).await;
    assert_eq!(same.unwrap_err().code, ErrorCode::InvalidInput);
    for _ in 0..2 {
        // The second call finds nothing to do.
        let members = answered(async || replace(dead_id, NodeId(4)).await).await;
        let members = members.unwrap();
        let ids: Vec<_> = members
            .iter()
            .map(|member| (member.id, member.voter))
            .collect();
        assert_eq!(ids.len(), 3);
        assert!(
            ids.contains(&(NodeId(4), true)) && ids.contains(&(alive, true)),
            "{ids:?}"
        );
        assert!(!ids.contains(&(dead_id, true)), "{ids:?}");
    }
    answered(async || fourth.cluster.write(register("after")).await)
        .await
        .unwrap();
    let unknown = answered(async || replace(NodeId(8), NodeId(9)).await).await;
    assert_eq!(unknown.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_survivor_becomes_a_cluster_and_the_lost_ones_cannot_come_back_into_it() {
    let mut three = Three::start().await;
    for name in ["one", "two"] {
        three.nodes[0].cluster.write(register(name)).await.unwrap();
        for node in &three.nodes {
            node.wait_until("it is everywhere", |state| has(state, name))
                .await;
        }
    }
    let mut addresses = Vec::new();
    for node in three.nodes.drain(..) {
        addresses.push(node.address.clone());
        node.stop().await;
    }
    let old = three.directories[0].path();
    let survivor = backup::examine(old).unwrap();
    assert_eq!((survivor.node, survivor.models), (NodeId(1), 2));

    // The new coordinator gets a new id and a directory of its own.
    let directory = tempfile::tempdir().unwrap();
    let mut beginning = ClusterSeed {
        data_dir: directory.path(),
        node: NodeId(1),
        advertise: addresses[0].clone(),
    };
    let reused = backup::recover(old, &beginning).unwrap_err();
    assert_eq!(reused.code, ErrorCode::InvalidInput);
    beginning.node = NodeId(11);
    assert_eq!(backup::recover(old, &beginning).unwrap(), survivor);
    let again = backup::recover(old, &beginning).unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict, "nothing is overwritten");

    // It continues from the state of the survivor, alone.
    let alone = TestNode::start(11, directory.path(), Some(&addresses[0])).await;
    let known = BTreeMap::from([(NodeId(11), addresses[0].clone())]);
    alone.cluster.bootstrap(known).await.unwrap();
    assert_eq!(alone.wait_for_leader().await, NodeId(11));
    alone.cluster.write(register("three")).await.unwrap();
    let state = alone.cluster.registry().borrow().clone();
    assert!(["one", "two", "three"].iter().all(|name| has(&state, name)));

    // A new coordinator joins it and adopts its epoch.
    let fresh = tempfile::tempdir().unwrap();
    let twelfth = TestNode::start(12, fresh.path(), None).await;
    let seeds = vec![addresses[0].clone()];
    tokio::time::timeout(PATIENCE, twelfth.cluster.request_join(&seeds))
        .await
        .unwrap();
    twelfth
        .wait_until("it has all", |state| has(state, "three"))
        .await;

    // The two lost coordinators return. They agree among themselves, and call the address of the
    // first coordinator.
    let second = TestNode::start(2, three.directories[1].path(), Some(&addresses[1])).await;
    let third = TestNode::start(3, three.directories[2].path(), Some(&addresses[2])).await;
    let mut raft = second.cluster.raft();
    let led = raft.wait_for(|status| {
        status
            .leader
            .is_some_and(|leader| [NodeId(2), NodeId(3)].contains(&leader))
    });
    tokio::time::timeout(PATIENCE, led).await.unwrap().unwrap();
    second.cluster.write(register("stale")).await.unwrap();
    third
        .wait_until("they go on", |state| has(state, "stale"))
        .await;
    let reply = twelfth.cluster.write(register("four")).await.unwrap();
    let state = alone
        .wait_until("the new cluster goes on", |state| {
            reply.revision <= state.revision
        })
        .await;
    assert!(has(&state, "four") && !has(&state, "stale"));

    // The same holds after a restart.
    let address = twelfth.address.clone();
    twelfth.stop().await;
    let twelfth = TestNode::start(12, fresh.path(), Some(&address)).await;
    let state = twelfth
        .wait_until("it is back", |state| has(state, "three"))
        .await;
    assert!(!has(&state, "stale"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_becomes_a_cluster_that_others_join() {
    let first = tempfile::tempdir().unwrap();
    let node = TestNode::start(1, first.path(), None).await;
    let members = BTreeMap::from([(NodeId(1), node.address.clone())]);
    node.cluster.bootstrap(members).await.unwrap();
    node.wait_for_leader().await;
    for index in 0..30 {
        node.cluster
            .write(register(&format!("m{index}")))
            .await
            .unwrap();
    }
    let before = node.cluster.registry().borrow().clone();
    let kept = backup::encode(&before, 7);
    node.stop().await;

    let second = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let beginning = ClusterSeed {
        data_dir: second.path(),
        node: NodeId(5),
        advertise: address.clone(),
    };
    let head = backup::restore(&kept, &beginning).unwrap();
    assert_eq!((head.models, head.revision), (30, before.revision.0));
    let restored = TestNode::start(5, second.path(), Some(&address)).await;
    restored.wait_for_leader().await;
    assert_eq!(
        **restored.cluster.registry().borrow(),
        *before,
        "to the letter"
    );
    let third = tempfile::tempdir().unwrap();
    let joiner = TestNode::start(6, third.path(), None).await;
    let joining = joiner.cluster.request_join(std::slice::from_ref(&address));
    tokio::time::timeout(PATIENCE, joining).await.unwrap();
    joiner.cluster.write(register("more")).await.unwrap();
    let state = restored
        .wait_until("it goes on", |state| has(state, "more"))
        .await;
    assert_eq!(state.models.len(), 31);
}
