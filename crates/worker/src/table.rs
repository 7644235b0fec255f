//! The replica table: loads assigned replicas, and drains and unloads all others.

use std::sync::Arc;
use std::time::Duration;

use volley_types::Assignments;
use volley_types::registry::{Assignment, ReplicaState};

use crate::Worker;
use crate::converge::converge;
use crate::replica::Replica;

/// Interval of checks of a draining replica's streams.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// Time for which an unassigned replica still accepts requests of coordinators that have not
/// received the report.
const UNLOAD_GRACE: Duration = Duration::from_millis(500);

impl Worker {
    /// Applies assignments of a coordinator. Assignments older than the newest ones are ignored,
    /// because that coordinator lags.
    pub(crate) fn assign(&self, orders: Assignments) {
        let mut wanted = self.0.wanted.lock();
        if orders.revision < wanted.0 {
            return;
        }
        *wanted = (orders.revision, orders.assignments);
        *self.0.overcommit.lock() = orders.overcommit;
        drop(wanted);
        self.0.assigned.notify_one();
    }

    pub(crate) async fn run_table(self) {
        loop {
            self.0.assigned.notified().await;
            let wanted = self.0.wanted.lock().1.clone();
            self.overcommit_as_wanted();
            let held: Vec<_> = {
                let replicas = self.0.replicas.read();
                let kept = replicas
                    .iter()
                    .filter(|held| held.state() != ReplicaState::Draining);
                kept.map(|replica| replica.assignment.clone()).collect()
            };
            let actions = converge(&held, &wanted);
            for assignment in actions.load {
                let replica = Arc::new(Replica::new(assignment));
                self.0.replicas.write().push(replica.clone());
                self.spawn(self.clone().load(replica, None));
            }
            for assignment in &actions.unload {
                // The next version is loaded first, so that one version always serves.
                if !self.serves_until_another(assignment, &wanted) {
                    self.unload(assignment);
                }
            }
            self.notify_change();
        }
    }

    fn unload(&self, assignment: &Assignment) {
        let find = |replica: &&Arc<Replica>| {
            replica.assignment == *assignment && replica.state() != ReplicaState::Draining
        };
        let Some(replica) = self.0.replicas.read().iter().find(find).cloned() else {
            return;
        };
        replica.drain();
        let worker = self.clone();
        self.spawn(async move {
            tokio::time::sleep(UNLOAD_GRACE).await;
            replica.close();
            let idle = async {
                while replica.load() != (0, 0) {
                    tokio::time::sleep(DRAIN_LOOK).await;
                }
            };
            let limit = worker.0.config.unload_timeout;
            if tokio::time::timeout(limit, idle).await.is_err() {
                tracing::warn!(
                    model = %replica.assignment.model,
                    "replica unloaded with streams running"
                );
                replica.abort();
            }
            worker
                .0
                .replicas
                .write()
                .retain(|held| !Arc::ptr_eq(held, &replica));
            worker.notify_change();
        });
    }

    /// Whether this replica serves while the next version of its model is loaded for the first
    /// time.
    fn serves_until_another(&self, unwanted: &Assignment, wanted: &[Assignment]) -> bool {
        let replicas = self.0.replicas.read();
        let has = |state: ReplicaState, fits: &dyn Fn(&Assignment) -> bool| {
            replicas
                .iter()
                .any(|held| fits(&held.assignment) && held.state() == state)
        };
        has(ReplicaState::Ready, &|held| held == unwanted)
            && has(ReplicaState::Loading, &|held| {
                held.model == unwanted.model && wanted.contains(held)
            })
    }
}
