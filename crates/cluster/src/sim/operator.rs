//! Who lets coordinators in and out: one change after another, each asked for until it is done.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use volley_types::{ErrorCode, NodeId, PredictError};

use super::net::address;
use super::world::Coordinators;
use crate::Cluster;

/// The most coordinators that an operator wants.
const MOST: usize = 5;
/// From so many on, one may go.
const ENOUGH: usize = 3;
/// How long an operator waits for an answer: more than any call may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// One change; coordinators are counted among those that shall be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Another one, which asks to be let in itself or is let in.
    Join(bool),
    /// One goes.
    Leave(usize),
    /// One goes and another comes.
    Replace(usize),
    /// One is lost with its disk, and another comes.
    Lose(usize),
    /// One loses its disk and comes back without it, and another comes.
    Wipe(usize),
    /// Another one leads.
    TransferLeadership(usize),
}

/// Works orders off.
pub(super) struct Operator {
    pub(super) world: Coordinators,
    pub(super) random: fastrand::Rng,
    /// The id of the next newcomer; none is used twice.
    pub(super) next: u64,
    /// What is being done, and why it is not done yet.
    pub(super) doing: Arc<Mutex<String>>,
}

impl Operator {
    /// Ends when no more orders come. Gives how many changes there were.
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
                // It may be impossible now.
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

    /// Starts another coordinator, which shall be in the cluster from now on.
    async fn newcomer(&mut self) -> u64 {
        let node = self.next;
        self.next += 1;
        if let Err(why) = self.world.start(node).await {
            self.world.invariants(|laws| laws.breaks(why));
        }
        self.world.asked(|asked| asked.insert(node));
        node
    }

    /// Who has left runs for a while longer.
    async fn retire(&mut self, node: u64) {
        sleep(Duration::from_millis(self.random.u64(0..4_000))).await;
        self.world.give_up(node);
    }

    /// A newcomer asks by itself, each time that it starts.
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

    /// Asks any coordinator until it is done.
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
