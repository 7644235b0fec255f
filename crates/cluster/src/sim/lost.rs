//! Members that return with another disk: empty, older, truncated, or used twice. These scenarios
//! are scripted, because random ones rarely depend on the result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use volley_sim_kit::process::on_simulated_time;
use volley_sim_kit::trace::Trace;
use volley_types::NodeId;

use super::net::address;
use super::scripted::{begin, ms, stands};
use super::users::Users;
use super::world::{Coordinators, NodeProcess, cut};
use crate::identity::ExpectedNode;

/// Longer than the interval at which coordinators describe themselves to each other.
const TOLD: Duration = ms(2_500);
/// Longer than any election takes.
const LONG: Duration = ms(15_000);

async fn three() -> (Coordinators, Users) {
    let world = Coordinators::new(1, 1_000, Trace::new(false));
    begin(&world, 3).await;
    world.run(ms(3_000)).await.unwrap();
    let users = Users::new(&world);
    (world, users)
}

/// Bootstraps a cluster as the process of `node` does when it starts.
fn bootstrap(world: &Coordinators, node: u64) {
    let running = world.running(node).expect("it runs");
    let members = (1..=3).map(|node| (NodeId(node), address(node)));
    let members: BTreeMap<_, _> = members.collect();
    let cluster = running.cluster.clone();
    running
        .life
        .spawn(async move { cluster.bootstrap(members).await.is_ok() });
}

/// Writes until ten writes are acknowledged, and returns their marks.
async fn ten(world: &Coordinators, users: &Users, through: u64, name: &str) -> Vec<String> {
    let mut marks = Vec::new();
    for attempt in 0..1_000 {
        let running = world.running(through).expect("it runs");
        let mark = format!("{name}-{attempt}");
        if users.write_through(&running, "m", mark.clone()).await {
            marks.push(mark);
        }
        if marks.len() == 10 {
            return marks;
        }
        world.run(ms(20)).await.unwrap();
    }
    panic!("no ten writes");
}

fn has_all(running: &NodeProcess, marks: &[String]) -> bool {
    marks.iter().all(|mark| stands(running, mark) == 1)
}

/// Runs the world until a process has failed, and returns the reason.
async fn fails(world: &Coordinators, running: &NodeProcess) -> Arc<str> {
    let failure = running.cluster.failure();
    for _ in 0..400 {
        if let Some(reason) = failure.borrow().clone() {
            return reason;
        }
        world.run(ms(50)).await.unwrap();
    }
    panic!("{} takes part", running.life.node());
}

/// One of three coordinators dies. The others acknowledge ten writes and die, and one of them loses
/// its disk. The wiped and the stale coordinator are a majority without the ten writes.
#[test]
fn a_wiped_member_and_a_stale_one_elect_nobody() {
    on_simulated_time(7, async {
        let (world, users) = three().await;
        world.crash(1, false, None);
        let marks = ten(&world, &users, 3, "acknowledged").await;
        world.crash(2, false, None);
        world.crash(3, false, None);
        world.wipe(2);
        // A call in flight when its sender died would warn the wiped coordinator at once.
        world.run(LONG).await.unwrap();
        world.start(2).await.unwrap();
        bootstrap(&world, 2);
        let wiped = world.running(2).unwrap();
        // Without a peer to ask, it waits and founds nothing.
        world.run(LONG).await.unwrap();
        assert_eq!(*wiped.cluster.failure().borrow(), None);
        assert!(wiped.cluster.raft().borrow().members.is_empty());

        world.start(1).await.unwrap();
        let reason = fails(&world, &wiped).await;
        assert!(
            reason.contains("volley cluster replace 2 4 n2:1"),
            "{reason}"
        );
        world.run(LONG).await.unwrap();
        let stale = world.running(1).unwrap();
        // A coordinator that led before its restart leads again, but can acknowledge nothing.
        let written = users.write_through(&stale, "m", "lost".to_owned());
        assert!(!written.await, "a minority has acknowledged a write");
        world.start(3).await.unwrap();
        world.run(LONG).await.unwrap();
        let whole = world.running(3).unwrap();
        assert!(whole.cluster.is_leader() && has_all(&whole, &marks));
        assert!(has_all(&world.running(1).unwrap(), &marks));
        world.end();
    });
}

/// A call carries the highest id of the membership, from which a wiped member learns the free id.
#[test]
fn a_restarted_member_knows_the_highest_id_before_it_calls_anybody() {
    on_simulated_time(7, async {
        let (world, _) = three().await;
        world.crash(1, false, None);
        world.start(1).await.unwrap();
        let restarted = world.running(1).unwrap();
        let mut metadata = tonic::metadata::MetadataMap::new();
        restarted.cluster.0.identity.address(2, &mut metadata);
        let expected = ExpectedNode::read(&metadata).unwrap().unwrap();
        assert_eq!((expected.node, expected.highest), (2, 3));
        world.end();
    });
}

/// A wiped coordinator that contacts no other one receives a call for the incarnation that it lost.
#[test]
fn a_wiped_member_that_asks_nobody_fails_when_it_is_called() {
    on_simulated_time(7, async {
        let (world, users) = three().await;
        world.run(TOLD).await.unwrap();
        world.wipe(2);
        world.start(2).await.unwrap();
        let reason = fails(&world, &world.running(2).unwrap()).await;
        assert!(
            reason.contains("volley cluster replace 2 4 n2:1"),
            "{reason}"
        );
        ten(&world, &users, 1, "after").await;
        world.end();
    });
}

/// A disk of an earlier start, one of the same start, and one with a truncated log.
#[test]
fn an_older_disk_and_a_cut_log_are_refused() {
    for story in 0..3 {
        on_simulated_time(7, async {
            let (world, users) = three().await;
            if story == 0 {
                world.crash(2, false, None);
                let image = world.image(2);
                world.start(2).await.unwrap();
                world.run(TOLD).await.unwrap();
                world.crash(2, false, None);
                world.put_back(2, image);
            } else {
                ten(&world, &users, 2, "before").await;
                let image = world.image(2);
                let marks = ten(&world, &users, 2, "acknowledged").await;
                world.run(TOLD).await.unwrap();
                assert!(has_all(&world.running(2).unwrap(), &marks));
                world.crash(2, true, None);
                let now = world.image(2);
                world.put_back(2, if story == 1 { image } else { cut(now, 5) });
            }
            world.start(2).await.unwrap();
            let reason = fails(&world, &world.running(2).unwrap()).await;
            assert!(
                reason.contains("is older than its last vote"),
                "{story}: {reason}"
            );
            ten(&world, &users, 1, "after").await;
            world.end();
        });
    }
}

/// An honest member that was killed or lost power passes the identity checks, even if all members
/// crash together.
#[test]
fn members_that_only_crashed_come_back() {
    on_simulated_time(7, async {
        let (world, users) = three().await;
        for round in 0..12 {
            ten(&world, &users, 1 + round % 3, &format!("round-{round}")).await;
            let struck = if round % 4 == 3 {
                1..=3
            } else {
                1 + round % 3..=1 + round % 3
            };
            for node in struck.clone() {
                world.crash(node, round % 2 == 0, None);
            }
            for node in struck {
                world.start(node).await.unwrap();
            }
            world.run(ms(3_000)).await.unwrap();
            let running = world.all_running();
            assert!(running.len() == 3 && running.iter().all(|one| one.cluster.healthy()));
        }
        world.end();
    });
}

#[test]
fn of_two_processes_over_copies_of_one_disk_the_later_one_ends() {
    on_simulated_time(7, async {
        let (world, users) = three().await;
        let marks = ten(&world, &users, 2, "before").await;
        world.run(TOLD).await.unwrap();
        let image = world.image(2);
        world.start_copy(12, 2, image).await.unwrap();
        let (first, second) = (world.running(2).unwrap(), world.running(12).unwrap());
        let reason = fails(&world, &second).await;
        assert!(
            reason.contains("another process runs as coordinator 2"),
            "{reason}"
        );
        world.crash(12, false, None);
        assert!(first.cluster.healthy() && has_all(&first, &marks));
        ten(&world, &users, 2, "after").await;
        world.end();
    });
}
