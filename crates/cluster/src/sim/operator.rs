//! The operator, who adds and removes coordinators: one change at a time, repeated until it
//! succeeds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use volley_types::{ErrorCode, NodeId, PredictError};

use super::net::address;
use super::world::Coordinators;
use crate::Cluster;

/// Maximum number of coordinators.
const MOST: usize = 5;
/// Number of coordinators from which one may be removed.
const ENOUGH: usize = 3;
/// Timeout of one change, longer than any call may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// A membership change. Indexes count the expected members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Adds a coordinator, which either requests to join (`true`) or is added.
    Join(bool),
    /// Removes a coordinator.
    Leave(usize),
    /// Replaces a coordinator.
    Replace(usize),
    /// Replaces a coordinator that was lost with its disk.
    Lose(usize),
    /// Replaces a coordinator that lost its disk and returned without it.
    Wipe(usize),
    /// Transfers the leadership.
    TransferLeadership(usize),
}

/// Executes changes.
pub(super) struct Operator {
    pub(super) world: Coordinators,
    pub(super) random: fastrand::Rng,
    /// Id of the next new coordinator. No id is used twice.
    pub(super) next: u64,
    /// Description of the current change, and why it is not done yet.
    pub(super) doing: Arc<Mutex<String>>,
}

impl Operator {
    /// Ends when the channel is closed. Returns the number of changes.
    pub(super) async fn work(mut self, mut orders: mpsc::Receiver<Change>) -> u64 {
        let mut changes = 0;
        while let Some(order) = orders.recv().await {
            self.world.log(format_args!("{order:?}"));
            *self.doing.lock() = format!("{order:?}");
            changes += u64::from(self.carry_out(order).await);
        }
        changes
    }

    async fn carry_out(&mut self, change: Change) -> bool {
        let count = self.world.asked(|asked| asked.len());
        match change {
            Change::Join(asks) if count < MOST => {
                let newcomer = self.newcomer().await;
                if asks {
                    self.let_ask(newcomer).await;
                } else {
                    self.insist(move |cluster| async move {
                        let joined = cluster.join(NodeId(newcomer), address(newcomer)).await;
                        joined.map(drop)
                    })
                    .await;
                }
            }
            Change::Leave(which) if ENOUGH <= count => {
                let leaver = self.world.pick(which);
                self.world.asked(|asked| asked.remove(&leaver));
                self.insist(move |cluster| async move {
                    match cluster.leave(NodeId(leaver)).await {
                        Err(error) if error.code != ErrorCode::NotFound => Err(error),
                        _ => Ok(()),
                    }
                })
                .await;
                self.retire(leaver).await;
            }
            Change::Replace(which) => self.replace(self.world.pick(which)).await,
            Change::Lose(which) if ENOUGH <= count => {
                let lost = self.world.pick(which);
                self.world.give_up(lost);
                self.replace(lost).await;
            }
            Change::Wipe(which) if ENOUGH <= count => {
                let lost = self.world.pick(which);
                self.world.wipe(lost);
                if let Err(why) = self.world.start(lost).await {
                    self.world.invariants(|laws| laws.breaks(why));
                }
                self.replace(lost).await;
            }
            Change::TransferLeadership(which) => {
                let to = NodeId(self.world.pick(which));
                let handed = self.once(move |cluster| async move {
                    let to = to.0.is_multiple_of(2).then_some(to);
                    cluster.transfer_leadership(to).await.map(drop)
                });
                // The transfer may be impossible now.
                return handed.await.is_ok();
            }
            Change::Join(_) | Change::Leave(_) | Change::Lose(_) | Change::Wipe(_) => {
                return false;
            }
        }
        true
    }

    async fn replace(&mut self, old: u64) {
        let newcomer = self.newcomer().await;
        self.world.asked(|asked| asked.remove(&old));
        self.insist(move |cluster| async move {
            let replaced = cluster.replace(NodeId(old), NodeId(newcomer), address(newcomer));
            replaced.await.map(drop)
        })
        .await;
        self.retire(old).await;
    }

    /// Starts a new coordinator and adds it to the expected members.
    async fn newcomer(&mut self) -> u64 {
        let node = self.next;
        self.next += 1;
        if let Err(why) = self.world.start(node).await {
            self.world.invariants(|laws| laws.breaks(why));
        }
        self.world.asked(|asked| asked.insert(node));
        node
    }

    /// A removed coordinator runs for a while longer.
    async fn retire(&mut self, node: u64) {
        sleep(Duration::from_millis(self.random.u64(0..4_000))).await;
        self.world.give_up(node);
    }

    /// The new coordinator requests to join after each start.
    async fn let_ask(&mut self, newcomer: u64) {
        loop {
            if let Some(running) = self.world.running(newcomer) {
                let others = self.world.asked(|asked| asked.clone());
                let others = others.into_iter().filter(|node| *node != newcomer);
                let seeds: Vec<_> = others.map(address).collect();
                let cluster = running.cluster.clone();
                let asking = async move { cluster.request_join(&seeds).await };
                let asking = running.life.spawn(asking);
                tokio::select! {
                    biased;
                    () = running.life.ended() => {}
                    asked = asking => if asked.is_ok() { return },
                }
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// Asks random coordinators until the change succeeds.
    async fn insist<F>(&mut self, make: impl Fn(Cluster) -> F)
    where
        F: Future<Output = Result<(), PredictError>>,
    {
        let order = self.doing.lock().clone();
        while let Err(why) = self.once(&make).await {
            *self.doing.lock() = format!("{order}: {why}");
            sleep(Duration::from_millis(self.random.u64(200..1_500))).await;
        }
    }

    async fn once<F>(&mut self, make: impl Fn(Cluster) -> F) -> Result<(), String>
    where
        F: Future<Output = Result<(), PredictError>>,
    {
        let running = self.world.all_running();
        let via = self.random.choice(&running).ok_or("nobody runs")?;
        let answer = tokio::select! {
            biased;
            () = via.life.ended() => return Err("it ended meanwhile".to_owned()),
            answer = timeout(PATIENCE, make(via.cluster.clone())) => answer,
        };
        match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("{:?}: {}", error.code, error.chain())),
            Err(_) => Err("no answer".to_owned()),
        }
    }
}
