//! The world of a scenario: coordinators, users that write and read, and an operator.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use volley_sim_kit::network::NetworkConditions;
use volley_sim_kit::process::on_simulated_time;
use volley_sim_kit::trace::Trace;
use volley_sim_kit::{Scenario, World};
use volley_types::NodeId;

use super::history::WriteOutcome;
use super::net::address;
use super::operator::{Change, Operator};
use super::scenario::{Act, InitialState};
use super::users::Users;
use super::world::{Coordinators, NodeProcess};

const WRITERS: usize = 3;
/// Time for each change after healing: a call in flight may wait this long.
const CHANGE: Duration = Duration::from_secs(90);
/// Time until writes must succeed after healing.
const RESUME: Duration = Duration::from_secs(10);
/// Time until all coordinators must have the same state after the last change.
const SETTLE: Duration = Duration::from_secs(20);

/// Totals of scenarios.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    stories: u64,
    acknowledged: u64,
    refused: u64,
    unknown: u64,
    reads: u64,
    entries: u64,
    crashes: u64,
    changes: u64,
    terms: u64,
    shared_terms: u64,
    /// Longest wait for a write after healing.
    resumed: Duration,
    /// Longest time from healing until everything had settled.
    settled: Duration,
    simulated: Duration,
}

impl Summary {
    pub(super) fn add(&mut self, other: &Self) {
        self.stories += other.stories;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.reads += other.reads;
        self.entries += other.entries;
        self.crashes += other.crashes;
        self.changes += other.changes;
        self.terms += other.terms;
        self.shared_terms += other.shared_terms;
        self.resumed = self.resumed.max(other.resumed);
        self.settled = self.settled.max(other.settled);
        self.simulated += other.simulated;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:.1} h of simulated time; {} writes acknowledged, {} refused, {} unknown; {} reads; \
             {} log entries compared; {} crashes, {} changes; {} terms with a leader, {} of them \
             with two; writes went on within {:.1} s of the last fault, all was done within {:.1} s",
            self.simulated.as_secs_f64() / 3_600.0,
            self.acknowledged,
            self.refused,
            self.unknown,
            self.reads,
            self.entries,
            self.crashes,
            self.changes,
            self.terms,
            self.shared_terms,
            self.resumed.as_secs_f64(),
            self.settled.as_secs_f64(),
        )
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// State of a running scenario.
pub(super) struct Consensus {
    world: Coordinators,
    users: Users,
    tasks: Vec<JoinHandle<()>>,
    orders: Option<mpsc::Sender<Change>>,
    operator: Option<JoinHandle<u64>>,
    doing: Arc<Mutex<String>>,
    began: Instant,
    /// Time of healing.
    healed: Instant,
}

impl World for Consensus {
    type Setting = InitialState;
    type Act = Act;
    type Summary = Summary;
    type Trace = Trace;

    const ACTS: Range<usize> = 4..18;
    const PAUSES_MS: [u64; 3] = [300, 1_500, 6_000];
    const BEGINS_MS: u64 = 0;

    fn setting(random: &mut fastrand::Rng) -> InitialState {
        InitialState::draw(random)
    }

    fn act(random: &mut fastrand::Rng) -> Act {
        Act::draw(random)
    }

    fn describe(setting: &InitialState) -> String {
        let (first, every) = (setting.first, setting.snapshot_every);
        format!(", coordinators 1 to {first}, snapshots of {every}")
    }

    fn no_trace() -> Trace {
        Trace::new(false)
    }

    fn on_its_clock<T>(seed: u64, work: impl Future<Output = T>) -> T {
        on_simulated_time(seed ^ 3, work)
    }

    fn new(story: &Scenario<Self>, trace: &Trace) -> Self {
        let every = story.setting.snapshot_every;
        let world = Coordinators::new(story.seed, every, trace.clone());
        let (users, now) = (Users::new(&world), Instant::now());
        Self {
            world,
            users,
            tasks: Vec::new(),
            orders: None,
            operator: None,
            doing: Arc::default(),
            began: now,
            healed: now,
        }
    }

    /// Starts the first coordinators and all users.
    async fn begin(&mut self, story: &Scenario<Self>) -> Result<(), String> {
        self.began = Instant::now();
        for node in 1..=story.setting.first {
            self.world.start(node).await?;
            self.world.asked(|asked| asked.insert(node));
        }
        let members: BTreeMap<_, _> = (1..=story.setting.first)
            .map(|node| (NodeId(node), address(node)))
            .collect();
        for running in self.world.all_running() {
            let made = running.cluster.bootstrap(members.clone());
            let made = running.life.part(made).await;
            made.map_err(|error| format!("not bootstrapped: {error:?}"))?;
        }
        let mut random = fastrand::Rng::with_seed(story.seed ^ 4);
        for name in 0..WRITERS {
            let writer = self.users.clone().write(name, random.fork());
            self.tasks.push(tokio::spawn(writer));
        }
        let reader = self.users.clone().read(random.fork());
        self.tasks.push(tokio::spawn(reader));
        let (orders, received) = mpsc::channel(64);
        let operator = Operator {
            world: self.world.clone(),
            random: random.fork(),
            next: story.setting.first + 1,
            doing: self.doing.clone(),
        };
        self.orders = Some(orders);
        self.operator = Some(tokio::spawn(operator.work(received)));
        self.world.run(ms(2_500)).await
    }

    async fn perform(&mut self, act: Act) -> Result<(), String> {
        self.world.log(format_args!("{act:?}"));
        let (world, net) = (&self.world, self.world.net());
        let all: Vec<u64> = world.asked(|asked| asked.iter().copied().collect());
        match act {
            Act::Crash(one, machine, down) => {
                world.crash(world.pick(one), machine, Some(ms(down)));
            }
            Act::CrashAll(down) => {
                for node in all {
                    world.crash(node, true, Some(ms(down)));
                }
            }
            Act::Stop(one, down) => world.stop(world.pick(one), ms(down)).await,
            Act::Freeze(one, time) => world.freeze(world.pick(one), ms(time)),
            Act::CutLink(one, other) => net.cut(world.pick(one), world.pick(other)),
            Act::Deafen(one) => all.iter().for_each(|node| net.cut(*node, world.pick(one))),
            Act::Mute(one) => all.iter().for_each(|node| net.cut(world.pick(one), *node)),
            Act::Split(mask) => {
                let side = |at: usize| mask >> at & 1;
                for (at, from) in all.iter().enumerate() {
                    for (beside, to) in all.iter().enumerate() {
                        if side(at) != side(beside) {
                            net.cut(*from, *to);
                        }
                    }
                }
            }
            Act::Mend => net.mend(),
            Act::Lose => net.set_conditions(NetworkConditions {
                delay_ms: (1, 40),
                lost: 0.15,
                twice: 0.2,
            }),
            Act::Delay(most) => net.set_conditions(NetworkConditions {
                delay_ms: (1, most),
                ..NetworkConditions::CALM
            }),
            Act::Calm => net.set_conditions(NetworkConditions::CALM),
            Act::SlowDisk(one, most, time) => world.slow_disk(world.pick(one), ms(most), ms(time)),
            Act::FailDisk(one, after, fault) => world.fail_disk(world.pick(one), after, fault),
            Act::Elect(one) => {
                if let Some(running) = world.running(world.pick(one)) {
                    let node = running.cluster.clone();
                    // It may be frozen.
                    running
                        .life
                        .spawn(async move { node.raft_node().trigger().elect().await.is_ok() });
                }
            }
            Act::Change(change) => {
                if let Some(orders) = &self.orders {
                    orders.try_send(change).map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    async fn run(&mut self, time_ms: u64) -> Result<(), String> {
        self.world.run(ms(time_ms)).await
    }

    async fn heal(&mut self) -> Result<(), String> {
        self.healed = Instant::now();
        self.world.heal().await
    }

    async fn settle(&mut self, _: &Scenario<Self>) -> Result<Summary, String> {
        let resumed = self.resumes().await?;
        let changes = self.changes_end().await?;
        self.users.stop.cancel();
        for task in std::mem::take(&mut self.tasks) {
            let ended = timeout(RESUME, task).await;
            ended
                .map_err(|_| "a user never came back")?
                .map_err(|error| error.to_string())?;
        }
        let mut settled = self.healed.elapsed();
        self.settles().await?;
        settled = settled.max(self.healed.elapsed());
        self.everybody_writes().await?;
        let end = self.settles().await?;
        let history = self.users.history.lock();
        history.check(&end.cluster.registry().borrow().clone())?;
        let (terms, shared_terms) = self.world.invariants(|laws| laws.terms());
        Ok(Summary {
            stories: 1,
            acknowledged: history
                .count(|outcome| matches!(outcome, WriteOutcome::Acknowledged(..))),
            refused: history.count(|outcome| *outcome == WriteOutcome::Refused),
            unknown: history.count(|outcome| *outcome == WriteOutcome::Unknown),
            reads: history.reads.len() as u64,
            entries: self.world.invariants(|laws| laws.entries()),
            crashes: self.world.crashes(),
            changes,
            terms,
            shared_terms,
            resumed,
            settled,
            simulated: self.began.elapsed(),
        })
    }

    fn end(&mut self) {
        self.world.end();
    }
}

impl Consensus {
    /// Waits until a write succeeds, and returns how long that took.
    async fn resumes(&self) -> Result<Duration, String> {
        let (healed, acknowledged) = (Instant::now(), |outcome: &WriteOutcome| {
            matches!(outcome, WriteOutcome::Acknowledged(..))
        });
        let before = self.users.history.lock().count(acknowledged);
        while self.users.history.lock().count(acknowledged) == before {
            if RESUME < healed.elapsed() {
                return Err(format!("no write for {RESUME:?} although all works again"));
            }
            self.world.run(ms(50)).await?;
        }
        Ok(healed.elapsed())
    }

    /// Waits until all requested changes are done, and returns their number.
    async fn changes_end(&mut self) -> Result<u64, String> {
        let Some(operator) = self.operator.take() else {
            return Ok(0);
        };
        let orders = self.orders.take();
        let waiting = orders.map_or(0, |orders| orders.max_capacity() - orders.capacity());
        let by = Instant::now() + CHANGE * (waiting as u32 + 1);
        while !operator.is_finished() {
            if by < Instant::now() {
                return Err(format!("not done in time: {}", self.doing.lock()));
            }
            self.world.run(ms(100)).await?;
        }
        operator.await.map_err(|error| error.to_string())
    }

    /// Waits until all expected coordinators have the same members and the same registry, and
    /// returns one of them.
    async fn settles(&self) -> Result<NodeProcess, String> {
        let by = Instant::now() + SETTLE;
        loop {
            match self.settled() {
                Ok(one) => return Ok(one),
                Err(why) if by < Instant::now() => return Err(why),
                Err(_) => self.world.run(ms(100)).await?,
            }
        }
    }

    fn settled(&self) -> Result<NodeProcess, String> {
        let asked = self.world.asked(|asked| asked.clone());
        let mut first: Option<NodeProcess> = None;
        for node in &asked {
            let running = self.world.running(*node);
            let running = running.ok_or_else(|| format!("{node} does not run"))?;
            let metrics = running.cluster.raft_node().metrics().borrow().clone();
            let membership = metrics.membership_config.membership();
            let voters: Vec<u64> = membership.voter_ids().collect();
            let nodes: Vec<u64> = membership.nodes().map(|(node, _)| *node).collect();
            let wanted: Vec<u64> = asked.iter().copied().collect();
            if voters != wanted || nodes != wanted || membership.get_joint_config().len() != 1 {
                return Err(format!(
                    "{node} has the members {membership:?}, not {wanted:?}"
                ));
            }
            if metrics.current_leader.is_none() {
                return Err(format!("{node} knows no leader"));
            }
            if let Some(first) = &first
                && (first.applied() != running.applied()
                    || *first.cluster.registry().borrow() != *running.cluster.registry().borrow())
            {
                return Err(format!("{node} has another registry than others"));
            }
            first.get_or_insert(running);
        }
        first.ok_or_else(|| "nobody shall be there".to_owned())
    }

    /// Checks that each coordinator accepts a write at the first attempt.
    async fn everybody_writes(&self) -> Result<(), String> {
        for node in self.world.asked(|asked| asked.clone()) {
            let running = self.world.running(node);
            let running = running.ok_or_else(|| format!("{node} does not run"))?;
            let mark = format!("last-{node}");
            if !self.users.write_through(&running, "m0", mark).await {
                return Err(format!("{node} takes no write although all works"));
            }
            self.world.run(ms(10)).await?;
        }
        Ok(())
    }
}
