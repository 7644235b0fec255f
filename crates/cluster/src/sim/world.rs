//! The coordinators of one scenario, with their disks.

mod disks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use openraft::ServerState;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use volley_sim_kit::network::NetworkConditions;
use volley_sim_kit::process::Life;
use volley_sim_kit::trace::Trace;
use volley_types::NodeId;

use super::invariants::Invariants;
use super::net::{Net, address};
use crate::identity::Draw;
use crate::store::Store;
use crate::store::disk::Disk;
use crate::store::disk::faulty_disk::{Fault, FaultyDisk};
use crate::store::log::LogStore;
use crate::store::machine::Machine;
use crate::{Cluster, ClusterConfig};

pub(super) use self::disks::cut;

/// Timeout of a start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest write to a healthy disk, in milliseconds.
const DISK_MS: u64 = 6;
/// Time that an operator waits for a process to end in order.
const STOP: Duration = Duration::from_secs(8);
/// Interval of the checks.
const LOOK: Duration = Duration::from_millis(50);

/// Handle to the coordinators. Clones share their state.
#[derive(Clone)]
pub(super) struct Coordinators(Arc<CoordinatorsInner>);

struct CoordinatorsInner {
    net: Net,
    trace: Trace,
    random: Mutex<fastrand::Rng>,
    members: Mutex<BTreeMap<u64, Member>>,
    /// Expected members of the cluster.
    asked: Mutex<BTreeSet<u64>>,
    invariants: Mutex<Invariants>,
    snapshot_every: u64,
    /// Factor by which the Raft timing is slowed down.
    multiplier: AtomicU32,
    crashes: AtomicU64,
}

/// A coordinator, running or not.
#[derive(Default)]
struct Member {
    image: Vec<u8>,
    running: Option<NodeProcess>,
    pace_ms: Arc<AtomicU64>,
    starts_at: Option<Instant>,
    thaws_at: Option<Instant>,
    recovers_at: Option<Instant>,
    /// It never starts again.
    gone: bool,
    /// Its disk was replaced: the others must not accept it as the member.
    is_not_itself: bool,
}

/// A running process.
#[derive(Clone)]
pub(super) struct NodeProcess {
    pub(super) life: Life,
    pub(super) cluster: Cluster,
    faulty_disk: FaultyDisk,
    log: LogStore,
    machine: Machine,
    /// Its disk was made to fail.
    faulty: bool,
    /// Last entry that was compared with those of other nodes.
    compared: u64,
    /// Last log entry when the process started.
    began_with: u64,
}

impl NodeProcess {
    /// Returns the index of the last applied entry.
    pub(super) fn applied(&self) -> Option<u64> {
        self.machine.position().0
    }

    /// Returns whether it has applied all entries that it started with.
    pub(super) fn has_caught_up(&self) -> bool {
        self.applied()
            .is_some_and(|applied| self.began_with <= applied)
    }
}

impl Coordinators {
    pub(super) fn new(seed: u64, snapshot_every: u64, trace: Trace) -> Self {
        Self(Arc::new(CoordinatorsInner {
            net: Net::new(seed ^ 1, trace.clone()),
            trace,
            random: Mutex::new(fastrand::Rng::with_seed(seed ^ 2)),
            members: Mutex::default(),
            asked: Mutex::default(),
            invariants: Mutex::default(),
            snapshot_every,
            multiplier: AtomicU32::new(1),
            crashes: AtomicU64::new(0),
        }))
    }

    pub(super) fn net(&self) -> &Net {
        &self.0.net
    }

    /// Slows down the Raft timing of coordinators that start later.
    pub(super) fn slow_clocks(&self, multiplier: u32) {
        self.0.multiplier.store(multiplier, Ordering::Relaxed);
    }

    pub(super) fn invariants<T>(&self, check_all: impl FnOnce(&mut Invariants) -> T) -> T {
        check_all(&mut self.0.invariants.lock())
    }

    pub(super) fn crashes(&self) -> u64 {
        self.0.crashes.load(Ordering::Relaxed)
    }

    /// Accesses the expected members.
    pub(super) fn asked<T>(&self, check_all: impl FnOnce(&mut BTreeSet<u64>) -> T) -> T {
        check_all(&mut self.0.asked.lock())
    }

    /// Returns one of the expected members.
    pub(super) fn pick(&self, which: usize) -> u64 {
        self.asked(|asked| {
            let picked = asked.iter().nth(which % asked.len());
            *picked.expect("there is always one")
        })
    }

    pub(super) fn log(&self, what: std::fmt::Arguments<'_>) {
        self.0.trace.line(what);
    }

    pub(super) fn running(&self, node: u64) -> Option<NodeProcess> {
        let members = self.0.members.lock();
        members.get(&node)?.running.clone()
    }

    pub(super) fn all_running(&self) -> Vec<NodeProcess> {
        let members = self.0.members.lock();
        let running = members.values().filter_map(|member| member.running.clone());
        running.collect()
    }

    /// Starts a coordinator with its disk.
    pub(super) async fn start(&self, node: u64) -> Result<(), String> {
        self.start_as(node, node).await
    }

    /// Starts a coordinator with the disk and address of `node` and the id `id`.
    async fn start_as(&self, node: u64, id: u64) -> Result<(), String> {
        let (image, pace) = {
            let mut members = self.0.members.lock();
            let member = members.entry(node).or_default();
            member.starts_at = None;
            if member.gone || member.running.is_some() {
                return Ok(());
            }
            member.pace_ms.store(DISK_MS, Ordering::Relaxed);
            (member.image.clone(), member.pace_ms.clone())
        };
        let mut random = self.0.random.lock().fork();
        let faulty_disk = FaultyDisk::failing(image, None, random.u64(..));
        let draw = Draw {
            incarnation: random.u64(1..),
            nonce: random.u64(1..),
            cluster: random.u64(1..),
        };
        let life = Life::new(node);
        let pace = move || Duration::from_millis(random.u64(0..=pace.load(Ordering::Relaxed)));
        let failed = |error: &dyn std::fmt::Debug| {
            format!("coordinator {node} does not start over its disk: {error:?}")
        };
        let opened = Disk::simulated(faulty_disk.clone(), NodeId(id), draw, pace);
        let (disk, found, writer) = opened.map_err(|error| failed(&error))?;
        life.spawn(writer);
        let last = found.entries.last();
        let began_with = last.map_or(0, |entry| entry.log_id.index);
        let multiplier = self.0.multiplier.load(Ordering::Relaxed);
        let config = ClusterConfig::new(NodeId(id), "", address(node));
        let mut config = config.slowed(multiplier);
        config.snapshot_every = self.0.snapshot_every;
        let store = Store::open(disk, NodeId(id), found, config.level);
        let store = store.map_err(|error| failed(&error))?;
        let (log, machine) = (store.log.clone(), store.machine.clone());
        let start = Cluster::start_over(config, self.0.net.lines_of(&life), store);
        let started = timeout(PATIENCE, life.part(start)).await;
        let cluster = started
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?;
        self.0.net.serve(&life, &cluster);
        life.spawn(watch(self.clone(), node, cluster.clone()));
        self.log(format_args!("{node} starts"));
        let mut members = self.0.members.lock();
        let member = members.entry(node).or_default();
        let faulty = member.is_not_itself;
        member.running = Some(NodeProcess {
            life,
            cluster,
            faulty_disk,
            log,
            machine,
            faulty,
            compared: 0,
            began_with,
        });
        let gone = member.gone;
        drop(members);
        if gone {
            self.crash(node, false, None);
        }
        Ok(())
    }

    /// Ends a process, or its whole machine; it restarts after `down`.
    pub(super) fn crash(&self, node: u64, machine: bool, down: Option<Duration>) {
        let mut members = self.0.members.lock();
        let Some(member) = members.get_mut(&node) else {
            return;
        };
        member.starts_at = down.map(|down| Instant::now() + down);
        member.thaws_at = None;
        let Some(running) = member.running.take() else {
            return;
        };
        member.image = running.faulty_disk.crash(machine);
        running.life.end();
        running.cluster.0.stop.cancel();
        self.0.crashes.fetch_add(1, Ordering::Relaxed);
        drop(members);
        self.log(format_args!("{node} ends"));
    }

    /// Ends a coordinator for good.
    pub(super) fn give_up(&self, node: u64) {
        if let Some(member) = self.0.members.lock().get_mut(&node) {
            member.gone = true;
        }
        self.crash(node, true, None);
    }

    /// Stops a process as its operator does; it restarts after `down`.
    pub(super) async fn stop(&self, node: u64, down: Duration) {
        let Some(running) = self.running(node) else {
            return;
        };
        let cluster = running.cluster.clone();
        let stopping = running.life.spawn(async move {
            cluster.retire().await;
            cluster.shutdown().await;
        });
        // A frozen process, or one with a stalled disk, takes longer than its operator waits.
        let _ = timeout(STOP, stopping).await;
        let same = self
            .running(node)
            .is_some_and(|now| now.life.is(&running.life));
        if same {
            self.crash(node, false, Some(down));
        }
    }

    pub(super) fn freeze(&self, node: u64, time: Duration) {
        if let Some(member) = self.0.members.lock().get_mut(&node)
            && let Some(running) = &member.running
        {
            running.life.freeze(true);
            member.thaws_at = Some(Instant::now() + time);
        }
    }

    /// Slows each write to a disk by up to `most`.
    pub(super) fn slow_disk(&self, node: u64, most: Duration, time: Duration) {
        if let Some(member) = self.0.members.lock().get_mut(&node) {
            let most = most.as_millis() as u64;
            member.pace_ms.store(most, Ordering::Relaxed);
            member.recovers_at = Some(Instant::now() + time);
        }
    }

    /// Fails the call to a disk after `after` other calls.
    pub(super) fn fail_disk(&self, node: u64, after: u64, fault: Fault) {
        if let Some(member) = self.0.members.lock().get_mut(&node)
            && let Some(running) = &mut member.running
        {
            running.faulty_disk.arm(after, fault);
            running.faulty = true;
        }
    }

    /// Runs the world for `time`.
    pub(super) async fn run(&self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            sleep(LOOK.min(until - Instant::now())).await;
            self.check_all().await?;
        }
        Ok(())
    }

    /// Ends all faults.
    pub(super) async fn heal(&self) -> Result<(), String> {
        self.log(format_args!("all works again"));
        self.0.net.set_conditions(NetworkConditions::CALM);
        self.0.net.mend();
        for member in self.0.members.lock().values_mut() {
            let now = Instant::now();
            member.thaws_at = member.thaws_at.map(|_| now);
            member.recovers_at = member.recovers_at.map(|_| now);
            member.starts_at = member.starts_at.map(|_| now);
            if let Some(running) = &member.running {
                running.faulty_disk.disarm();
            }
        }
        self.check_all().await
    }

    /// Executes what is due, and compares the state of all nodes.
    async fn check_all(&self) -> Result<(), String> {
        let now = Instant::now();
        let due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        let (mut start, mut failed) = (Vec::new(), Vec::new());
        {
            let mut members = self.0.members.lock();
            let mut invariants = self.0.invariants.lock();
            for (node, member) in members.iter_mut() {
                if due(&mut member.recovers_at) {
                    member.pace_ms.store(DISK_MS, Ordering::Relaxed);
                }
                if due(&mut member.starts_at) {
                    start.push(*node);
                }
                let thaws = due(&mut member.thaws_at);
                let Some(running) = &mut member.running else {
                    continue;
                };
                if thaws {
                    running.life.freeze(false);
                }
                compare(&mut invariants, *node, running);
                if !running.cluster.healthy() {
                    failed.push(*node);
                    if !running.faulty {
                        invariants.breaks(format!("coordinator {node} has failed by itself"));
                    }
                }
            }
        }
        for node in failed {
            let down = Duration::from_millis(self.0.random.lock().u64(100..3_000));
            self.crash(node, false, Some(down));
        }
        for node in start {
            self.start(node).await?;
        }
        self.invariants(|invariants| invariants.check())
    }

    /// Ends all processes.
    pub(super) fn end(&self) {
        for running in self.all_running() {
            running.cluster.0.stop.cancel();
            running.life.end();
        }
        self.0.net.close();
    }
}

fn compare(invariants: &mut Invariants, node: u64, running: &mut NodeProcess) {
    let (Some(applied), snapshot) = running.machine.position() else {
        return;
    };
    if applied < running.compared {
        invariants.breaks(format!("coordinator {node} has taken back what it applied"));
    }
    if applied == running.compared && applied != 0 {
        return;
    }
    // Entries that a received snapshot covers may differ in the log until they are purged.
    let from = running.compared.max(snapshot.map_or(0, |last| last + 1));
    invariants.applied(node, running.log.between(from, applied));
    running.compared = applied;
    let registry = running.machine.registry().borrow().clone();
    invariants.registry(node, &registry);
}

/// Records leaders.
async fn watch(world: Coordinators, node: u64, cluster: Cluster) {
    let mut metrics = cluster.raft_node().metrics();
    loop {
        let (state, term) = {
            let metrics = metrics.borrow_and_update();
            (metrics.state, metrics.current_term)
        };
        if state == ServerState::Leader {
            world.invariants(|invariants| invariants.leads(node, term));
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
