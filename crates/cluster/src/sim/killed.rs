//! Measures how long writes wait when leaders are killed repeatedly during writes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use volley_sim_kit::network::NetworkConditions;
use volley_sim_kit::process::on_simulated_time;
use volley_sim_kit::seeds::{from_env, on_all_processors};
use volley_sim_kit::trace::Trace;
use volley_types::NodeId;

use super::net::address;
use super::say;
use super::users::Users;
use super::world::{Coordinators, NodeProcess};

/// Clusters in an ordinary run.
const SEEDS: u64 = 25;
/// Number of leaders that are killed in each cluster.
const KILLS: usize = 8;
/// Time after which a step has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// The limit in docs/promises.md (P2).
const PROMISED: Duration = Duration::from_secs(3);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the leader once all running coordinators follow it.
async fn leader(world: &Coordinators) -> Result<NodeProcess, String> {
    let by = Instant::now() + PATIENCE;
    while Instant::now() < by {
        let running = world.all_running();
        let follows = |one: &NodeProcess| one.cluster.raft().borrow().leader;
        let leader = running.iter().find(|one| one.cluster.is_leader());
        if let Some(leader) = leader
            && running
                .iter()
                .all(|one| follows(one) == Some(NodeId(leader.life.node())))
        {
            return Ok(leader.clone());
        }
        world.run(ms(10)).await?;
    }
    Err("nobody leads".to_owned())
}

/// Repeats a write through one coordinator until it is acknowledged, as a client does.
async fn write(users: &Users, through: &NodeProcess, mark: &str) -> Result<(), String> {
    let by = Instant::now() + PATIENCE;
    for attempt in 0.. {
        if by < Instant::now() {
            break;
        }
        let mark = format!("{mark}-{attempt}");
        if users.write_through(through, "m0", mark).await {
            return Ok(());
        }
        sleep(ms(20)).await;
    }
    Err(format!("no write within {PATIENCE:?}"))
}

/// Kills leaders of one cluster. Returns the time without writes after each kill.
async fn kills(world: &Coordinators, seed: u64) -> Result<Vec<Duration>, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = [3, 3, 5][random.usize(..3)];
    // One of several network delays, from fast to slow.
    world.net().set_conditions(NetworkConditions {
        delay_ms: (1, [2, 8, 30][random.usize(..3)]),
        ..NetworkConditions::CALM
    });
    let members = (1..=count).map(|node| (NodeId(node), address(node)));
    let members: BTreeMap<_, _> = members.collect();
    for node in 1..=count {
        world.start(node).await?;
    }
    for running in world.all_running() {
        let made = running
            .life
            .part(running.cluster.bootstrap(members.clone()));
        made.await.map_err(|error| error.message)?;
    }
    let users = Users::new(world);
    let mut missed = Vec::new();
    for round in 0..KILLS {
        let leader = leader(world).await?;
        let killed = leader.life.node();
        let others = world.all_running();
        let others: Vec<_> = others
            .into_iter()
            .filter(|one| one.life.node() != killed)
            .collect();
        let through = &others[random.usize(..others.len())];
        write(&users, through, &format!("before-{round}")).await?;
        // Writes in flight at the kill have reached some of the others only.
        for burst in 0..random.usize(..4) {
            let (users, leader) = (users.clone(), leader.clone());
            let mark = format!("burst-{round}-{burst}");
            tokio::spawn(async move { users.write_through(&leader, "m1", mark).await });
            sleep(ms(random.u64(..12))).await;
        }
        world.crash(killed, random.bool(), None);
        let died = Instant::now();
        write(&users, through, &format!("after-{round}")).await?;
        missed.push(died.elapsed());
        world.start(killed).await?;
        // Often the next kill comes before the node has caught up.
        world.run(ms(random.u64(..2_000))).await?;
    }
    let end = leader(world).await?;
    let registry = end.cluster.registry().borrow().clone();
    users.history.lock().check(&registry)?;
    Ok(missed)
}

fn told(seed: u64) -> Result<Vec<Duration>, String> {
    on_simulated_time(seed ^ 3, async {
        let world = Coordinators::new(seed, 1_000, Trace::new(false));
        let told = kills(&world, seed).await;
        world.end();
        told.map_err(|why| format!("seed {seed}: {why}"))
    })
}

/// Histogram of the times, in quarters of a second.
fn table(missed: &[Duration]) -> String {
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    for one in missed {
        *counts.entry(one.as_millis() / 250).or_default() += 1;
    }
    let mut text = String::new();
    for (quarter, count) in counts {
        let from = quarter as f64 / 4.0;
        let _ = writeln!(text, "{from:>5.2} to {:>5.2} s  {count}", from + 0.25);
    }
    text
}

#[test]
fn writes_go_on_within_three_seconds_of_a_leaders_death() {
    let first = from_env("VOLLEY_RAFT_SEED").unwrap_or(0);
    let count = from_env("VOLLEY_RAFT_SEEDS").unwrap_or(SEEDS);
    let all = on_all_processors(first..first + count, told);
    let mut missed = all.unwrap_or_else(|why| panic!("{why}")).concat();
    missed.sort_unstable();
    let at = |percent: usize| missed[(missed.len() * percent / 100).min(missed.len() - 1)];
    say(&format!(
        "{} leaders killed: writes went on after {:.2} s p50, {:.2} s p99, {:.2} s at most\n{}",
        missed.len(),
        at(50).as_secs_f64(),
        at(99).as_secs_f64(),
        at(100).as_secs_f64(),
        table(&missed)
    ));
    assert!(at(99) <= PROMISED, "{:?} p99", at(99));
}
