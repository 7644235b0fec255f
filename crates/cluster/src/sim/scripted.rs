//! Stories that are written out, each for something that chance rarely finds.

use std::time::Duration;

use tokio::time::sleep;
use volley_types::NodeId;

use super::history::Outcome;
use super::net::address;
use super::runtime::on_simulated_time;
use super::trace::Trace;
use super::users::Users;
use super::world::{Running, World};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// So many coordinators, one of which leads.
async fn cluster(count: u64) -> (World, Users) {
    let world = World::new(1, 1_000, Trace::new(false));
    for node in 1..=count {
        world.start(node).await.unwrap();
    }
    let members = (1..=count).map(|node| (NodeId(node), address(node)));
    let members: std::collections::BTreeMap<_, _> = members.collect();
    for running in world.all_running() {
        let made = running.cluster.bootstrap(members.clone());
        running.life.part(made).await.unwrap();
    }
    world.run(ms(3_000)).await.unwrap();
    let users = Users::new(&world);
    (world, users)
}

/// Cuts both ways, or joins them.
fn part(world: &World, one: u64, others: &[u64], parted: bool) {
    for other in others {
        for (from, to) in [(one, *other), (*other, one)] {
            match parted {
                true => world.net().cut(from, to),
                false => world.net().join(from, to),
            }
        }
    }
}

async fn leads(running: &Running) {
    for _ in 0..1_000 {
        if running.cluster.is_leader() {
            return;
        }
        sleep(ms(1)).await;
    }
    panic!("{} does not lead", running.life.node());
}

fn elect(running: &Running) {
    let cluster = running.cluster.clone();
    let asked = async move { cluster.raft_node().trigger().elect().await.is_ok() };
    running.life.spawn(asked);
}

/// The leader, and the others.
fn roles(world: &World) -> (Running, Vec<Running>) {
    let (leaders, others): (Vec<_>, Vec<_>) = world
        .all_running()
        .into_iter()
        .partition(|running| running.cluster.is_leader());
    let leader = leaders.into_iter().next().expect("one leads");
    (leader, others)
}

/// How often a mark stands in the registry of `running`.
fn stands(running: &Running, mark: &str) -> usize {
    let registry = running.cluster.registry().borrow().clone();
    let versions = registry
        .models
        .values()
        .flat_map(|model| model.versions.values());
    versions.filter(|spec| spec.description == mark).count()
}

/// An entry is in two logs of five. A leader that does not have it cuts it off one of them and is
/// gone before anything is committed; then the other one of the two leads, and commits it.
#[test]
fn a_write_that_was_cut_off_one_log_and_stands_in_another_is_not_said_to_have_changed_nothing() {
    on_simulated_time(7, async {
        let (world, users) = cluster(5).await;
        let (old, others) = roles(&world);
        let [keeper, next, voters @ ..] = others.as_slice() else {
            panic!("there are four others");
        };
        let ids = |some: &[Running]| some.iter().map(|one| one.life.node()).collect::<Vec<_>>();
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
        sleep(ms(900)).await;
        elect(next);
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
        assert_eq!(history.writes[0].outcome, Outcome::Unknown);
        assert_eq!(stands(&old, "once"), 1, "it was committed after all");
        world.end();
    });
}

/// The same where the one that cuts it off has more than half: it surely is gone, and is proposed
/// again.
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
        elect(&others[0]);
        leads(&others[0]).await;
        world.net().mend();
        assert!(
            write.await.unwrap(),
            "it was acknowledged by the new leader"
        );
        assert_eq!(stands(&old, "again"), 1);
        world.end();
    });
}
