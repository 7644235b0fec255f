//! Scripted scenarios, each for an event that random ones rarely produce.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::sleep;
use volley_sim_kit::network::NetworkConditions;
use volley_sim_kit::process::on_simulated_time;
use volley_sim_kit::trace::Trace;
use volley_types::NodeId;

use super::history::WriteOutcome;
use super::net::address;
use super::users::Users;
use super::world::{Coordinators, NodeProcess};

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a cluster of `count` coordinators with a leader.
async fn cluster(count: u64) -> (Coordinators, Users) {
    let world = Coordinators::new(1, 1_000, Trace::new(false));
    begin(&world, count).await;
    world.run(ms(3_000)).await.unwrap();
    let users = Users::new(&world);
    (world, users)
}

/// Starts and bootstraps `count` coordinators.
pub(super) async fn begin(world: &Coordinators, count: u64) {
    for node in 1..=count {
        world.start(node).await.unwrap();
    }
    let members = (1..=count).map(|node| (NodeId(node), address(node)));
    let members: std::collections::BTreeMap<_, _> = members.collect();
    for running in world.all_running() {
        let made = running.cluster.bootstrap(members.clone());
        running.life.part(made).await.unwrap();
    }
}

/// Cuts the links in both directions, or restores them.
fn part(world: &Coordinators, one: u64, others: &[u64], parted: bool) {
    for other in others {
        for (from, to) in [(one, *other), (*other, one)] {
            match parted {
                true => world.net().cut(from, to),
                false => world.net().join(from, to),
            }
        }
    }
}

async fn leads(running: &NodeProcess) {
    for _ in 0..1_000 {
        if running.cluster.is_leader() {
            return;
        }
        sleep(ms(1)).await;
    }
    panic!("{} does not lead", running.life.node());
}

fn elect(running: &NodeProcess) {
    let cluster = running.cluster.clone();
    let asked = async move { cluster.raft_node().trigger().elect().await.is_ok() };
    running.life.spawn(asked);
}

/// Returns the leader and the others.
fn roles(world: &Coordinators) -> (NodeProcess, Vec<NodeProcess>) {
    let (leaders, others): (Vec<_>, Vec<_>) = world
        .all_running()
        .into_iter()
        .partition(|running| running.cluster.is_leader());
    let leader = leaders.into_iter().next().expect("one leads");
    (leader, others)
}

/// Returns how often a mark occurs in the registry of `running`.
pub(super) fn stands(running: &NodeProcess, mark: &str) -> usize {
    let registry = running.cluster.registry().borrow().clone();
    let versions = registry
        .models
        .values()
        .flat_map(|model| model.versions.values());
    versions.filter(|spec| spec.description == mark).count()
}

/// An entry is in two logs of five. A leader without the entry truncates it from one of them, and
/// dies before anything is committed. Then the other of the two leads and commits the entry.
#[test]
fn a_write_that_was_cut_off_one_log_and_stands_in_another_is_not_said_to_have_changed_nothing() {
    on_simulated_time(7, async {
        let (world, users) = cluster(5).await;
        let (old, others) = roles(&world);
        // Of the coordinators that reach each other, the one with the highest id stands by itself.
        let [keeper, voters @ .., next] = others.as_slice() else {
            panic!("there are four others");
        };
        let ids = |some: &[NodeProcess]| some.iter().map(|one| one.life.node()).collect::<Vec<_>>();
        let (o, k, n, v) = (
            old.life.node(),
            keeper.life.node(),
            next.life.node(),
            ids(voters),
        );

        part(&world, o, &[&v[..], &[n]].concat(), true);
        let write = {
            let (users, old) = (users.clone(), old.clone());
            tokio::spawn(async move { users.write_through(&old, "m", "once".to_owned()).await })
        };
        sleep(ms(300)).await;
        part(&world, o, &[k], true);
        part(&world, k, &[&v[..], &[n]].concat(), true);
        sleep(ms(400)).await;
        leads(next).await;
        part(&world, n, &v, true);
        part(&world, n, &[o], false);
        sleep(ms(300)).await;
        world.crash(n, false, None);
        part(&world, k, &v, false);
        sleep(ms(3_000)).await;
        elect(keeper);
        leads(keeper).await;
        world.heal().await.unwrap();
        world.run(ms(5_000)).await.unwrap();

        write.await.unwrap();
        let history = users.history.lock();
        assert_eq!(history.writes[0].outcome, WriteOutcome::Unknown);
        assert_eq!(stands(&old, "once"), 1, "it was committed after all");
        world.end();
    });
}

/// The same, but the node that truncates the entry leads a majority. The entry is certainly gone
/// and is proposed again.
#[test]
fn a_write_that_another_one_was_committed_in_place_of_is_tried_again() {
    on_simulated_time(7, async {
        let (world, users) = cluster(3).await;
        let (old, others) = roles(&world);
        let ids: Vec<_> = others.iter().map(|one| one.life.node()).collect();
        part(&world, old.life.node(), &ids, true);
        let write = {
            let (users, old) = (users.clone(), old.clone());
            tokio::spawn(async move { users.write_through(&old, "m", "again".to_owned()).await })
        };
        sleep(ms(1_100)).await;
        elect(&others[1]);
        leads(&others[1]).await;
        world.net().mend();
        assert!(
            write.await.unwrap(),
            "it was acknowledged by the new leader"
        );
        assert_eq!(stands(&old, "again"), 1);
        world.end();
    });
}

/// Requests of an operator after the leader has died and before the others have noticed.
#[test]
fn changes_of_coordinators_wait_out_an_election() {
    for change in 0..4 {
        on_simulated_time(7, async {
            let (world, _) = cluster(3).await;
            let (leader, others) = roles(&world);
            let gone = NodeId(leader.life.node());
            world.start(4).await.unwrap();
            world.crash(gone.0, false, None);
            let asked = others[0].cluster.clone();
            let asking = others[0].life.part(async move {
                match change {
                    0 => asked.leave(gone).await.map(drop),
                    1 => asked.join(NodeId(4), address(4)).await.map(drop),
                    2 => asked.replace(gone, NodeId(4), address(4)).await.map(drop),
                    _ => asked.transfer_leadership(None).await.map(drop),
                }
            });
            asking.await.expect("it waits for the next leader");
            world.end();
        });
    }
}

/// Returns whether a membership change is half done, as `running` sees it.
fn is_joint(running: &NodeProcess) -> bool {
    let metrics = running.cluster.raft_node().metrics();
    let metrics = metrics.borrow();
    let membership = metrics.membership_config.membership();
    1 < membership.get_joint_config().len()
}

/// The caller disconnects as soon as the leader has the request.
#[test]
fn a_change_of_coordinators_outlives_its_caller() {
    on_simulated_time(7, async {
        let (world, _) = cluster(3).await;
        let (leader, _) = roles(&world);
        world.start(4).await.unwrap();
        let asked = leader.cluster.clone();
        let asking = async move { asked.join(NodeId(4), address(4)).await };
        assert!(leader.life.part(asking).now_or_never().is_none());
        let votes = || {
            let status = leader.cluster.raft().borrow().clone();
            let voters = status.members.iter().filter(|member| member.voter);
            voters.count() == 4 && !is_joint(&leader)
        };
        for _ in 0..10_000 {
            if votes() {
                break;
            }
            sleep(ms(1)).await;
        }
        assert!(votes(), "the change has ended");
        world.end();
    });
}

/// The leader dies between the two steps of a change.
#[test]
fn a_half_done_change_of_coordinators_is_finished_by_a_repeated_one() {
    on_simulated_time(7, async {
        let (world, _) = cluster(3).await;
        let (leader, others) = roles(&world);
        world.start(4).await.unwrap();
        let asked = leader.cluster.clone();
        let asking = async move { asked.join(NodeId(4), address(4)).await };
        leader.life.spawn(asking);
        // The leader has no reply to the first step yet.
        let begun = |running: &NodeProcess| {
            let mut metrics = running.cluster.raft_node().metrics();
            async move {
                let joint = metrics.wait_for(|metrics| {
                    let membership = metrics.membership_config.membership();
                    1 < membership.get_joint_config().len()
                });
                joint.await.is_ok()
            }
        };
        let seen = tokio::select! {
            seen = begun(&others[0]) => seen,
            seen = begun(&others[1]) => seen,
            () = sleep(ms(10_000)) => false,
        };
        assert!(seen, "the change has begun");
        world.crash(leader.life.node(), false, None);
        let asked = others[0].cluster.clone();
        let again = async move { asked.join(NodeId(4), address(4)).await };
        let members = others[0].life.part(again).await.unwrap();
        assert_eq!(members.len(), 4);
        sleep(ms(2_000)).await;
        assert!(!is_joint(&others[0]), "the change is whole");
        world.end();
    });
}

/// The one-way delay of a message exceeds half of the vote timeout.
#[test]
fn where_votes_take_longer_than_the_usual_clocks_allow_slower_ones_elect_a_leader_that_stays() {
    const FAR: NetworkConditions = NetworkConditions {
        delay_ms: (300, 350),
        ..NetworkConditions::CALM
    };
    for (multiplier, elects) in [(1, false), (4, true)] {
        on_simulated_time(7, async {
            let world = Coordinators::new(1, 1_000, Trace::new(false));
            world.slow_clocks(multiplier);
            world.net().set_conditions(FAR);
            begin(&world, 3).await;
            let mut leaders = BTreeSet::new();
            for _ in 0..600 {
                world.run(ms(100)).await.unwrap();
                let running = world.all_running().into_iter();
                let leading = running.filter(|running| running.cluster.is_leader());
                leaders.extend(leading.map(|running| running.life.node()));
            }
            assert_eq!(leaders.len(), usize::from(elects), "{leaders:?}");
            if elects {
                let users = Users::new(&world);
                let (_, others) = roles(&world);
                let written = users.write_through(&others[0], "m", "far".to_owned()).await;
                assert!(written, "through a follower too");
            }
            world.end();
        });
    }
}
