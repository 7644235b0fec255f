//! Eviction of idle models under memory pressure, and their reload.

use std::sync::Arc;
use std::time::Instant;

use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::Worker;
use crate::backend_slot::{self, BackendLease, BackendSlot, Lookup};
use crate::load;
use crate::memory_budget::{Reservation, Shortage};
use crate::replica::Replica;

/// Result of a reservation.
enum ReserveOutcome {
    Reserved(Reservation),
    /// Memory may become free after a change, or at this time.
    Later(Shortage, Option<Instant>),
}

impl Worker {
    /// Reserves `bytes` and evicts idle overcommitted models if needed. If models in use could be
    /// evicted, it waits for them.
    ///
    /// # Errors
    /// `Overloaded` when the budget is too small even after evicting them.
    pub(crate) async fn reserve_or_evict(
        &self,
        bytes: u64,
        overcommit: bool,
    ) -> Result<Reservation, PredictError> {
        let (mut freed, mut idle) = (self.0.budget.freed(), self.0.budget.idle());
        loop {
            freed.mark_unchanged();
            idle.mark_unchanged();
            let again = match self.reserve_now(bytes, overcommit) {
                ReserveOutcome::Reserved(reservation) => return Ok(reservation),
                ReserveOutcome::Later(shortage, _) if shortage.is_final() => {
                    return Err(shortage.error());
                }
                ReserveOutcome::Later(_, again) => again,
            };
            let stay_ends = async {
                match again {
                    Some(instant) => tokio::time::sleep_until(instant.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = freed.changed() => {}
                _ = idle.changed() => {}
                () = stay_ends => {}
            }
        }
    }

    /// The shortage for which [`reserve_or_evict`](Self::reserve_or_evict) waits, as the error of a
    /// failed load.
    pub(crate) fn shortage(&self, bytes: u64, overcommit: bool) -> PredictError {
        match self.reserve_now(bytes, overcommit) {
            ReserveOutcome::Later(shortage, _) => shortage.error(),
            ReserveOutcome::Reserved(_) => {
                let message = "memory for the model was not freed in time; the load is tried again";
                PredictError::new(ErrorCode::Overloaded, message)
            }
        }
    }

    /// One attempt. The lock ensures that no other load takes the memory freed here.
    fn reserve_now(&self, bytes: u64, overcommit: bool) -> ReserveOutcome {
        let _alone = self.0.making_room.lock();
        let shortage = match self.0.budget.reserve(bytes, !overcommit) {
            Ok(reservation) => return ReserveOutcome::Reserved(reservation),
            Err(shortage) if shortage.is_final() => return ReserveOutcome::Later(shortage, None),
            Err(shortage) => shortage,
        };
        let replicas = self.0.replicas.read().clone();
        let idle = replicas.iter().filter_map(|replica| {
            let slot = replica.slot()?;
            Some((replica, slot.idle()?, slot))
        });
        let idle: Vec<_> = idle.collect();
        let states: Vec<_> = idle.iter().map(|(_, idle, _)| *idle).collect();
        let chosen = match backend_slot::choose(&states, shortage.missing(), Instant::now()) {
            Ok(chosen) => chosen,
            Err(again) => return ReserveOutcome::Later(shortage, again),
        };
        for index in chosen {
            let (replica, _, slot) = &idle[index];
            if let Some(held) = slot.take() {
                drop(held);
                self.evicted(replica);
            }
        }
        match self.0.budget.reserve(bytes, !overcommit) {
            Ok(reservation) => ReserveOutcome::Reserved(reservation),
            // A request has started to use a slot that was idle.
            Err(shortage) => ReserveOutcome::Later(shortage, Some(Instant::now())),
        }
    }

    fn evicted(&self, replica: &Replica) {
        let (model, version) = (&replica.assignment.model, replica.assignment.spec.version);
        tracing::info!(%model, %version, "replica evicted");
        self.0.metrics.evicted(model);
        self.0.news.send_replace(());
    }

    /// Returns a lease of a replica's backend and reloads it first if it is evicted. Concurrent
    /// requests wait for the same load.
    ///
    /// # Cancel safety
    /// A load without waiting requests is not started; a running load continues.
    ///
    /// # Errors
    /// `Unavailable` when the reload fails or the replica was removed.
    pub(crate) async fn acquire(
        &self,
        slot: &Arc<BackendSlot>,
    ) -> Result<BackendLease, PredictError> {
        loop {
            let mut outcome = match slot.lookup() {
                Lookup::Ready(lease) => return Ok(lease),
                Lookup::Loading(outcome) => outcome,
                Lookup::MustLoad(outcome) => {
                    self.spawn(self.clone().reload(slot.clone()));
                    outcome
                }
            };
            let ended = match outcome.wait_for(Option::is_some).await {
                Ok(ended) => ended.clone(),
                Err(_) => Some(Err(PredictError::new(
                    ErrorCode::Unavailable,
                    "the worker is shutting down",
                ))),
            };
            if let Some(Err(error)) = ended {
                let message = format!(
                    "the model had been evicted and could not be reloaded: {}",
                    error.message
                );
                let error = PredictError::new(ErrorCode::Unavailable, message);
                return Err(error.with_origin(ErrorOrigin::Worker));
            }
        }
    }

    /// Reloads an evicted backend. After a failure the replica is marked as failed and is retried
    /// like any other.
    pub(crate) async fn reload(self, slot: Arc<BackendSlot>) {
        let replica = self.0.replicas.read().iter().find_map(|replica| {
            let same = replica.slot().is_some_and(|held| Arc::ptr_eq(&held, &slot));
            same.then(|| replica.clone())
        });
        let Some(replica) = replica else {
            let message = "the model is no longer assigned to this worker";
            return slot.complete_load(Err(PredictError::new(ErrorCode::Unavailable, message)));
        };
        let model = &replica.assignment.model;
        let room = async {
            // Files that were removed from the cache are fetched again, outside the limit of
            // concurrent loads.
            let loader = self.loader(&replica.assignment)?;
            let hold = load::prepare(&loader, &replica).await?;
            let memory = self
                .reserve_or_evict(slot.bytes(), slot.overcommit())
                .await?;
            Ok((hold, memory, self.0.loads.acquire().await))
        };
        let room = tokio::select! {
            biased;
            // A model that must stay loaded is reloaded even without waiting requests.
            () = slot.no_waiters(), if slot.overcommit() => return,
            room = room => room,
        };
        let loaded = match room {
            Ok((_hold, memory, _turn)) => self.load_backend(&replica.assignment, memory).await,
            Err(error) => Err(error),
        };
        match loaded {
            Ok(held) => {
                self.0.metrics.reloaded(model);
                self.watch(&replica, held.backend.lost());
                tracing::info!(
                    %model, version = %replica.assignment.spec.version,
                    "replica reloaded"
                );
                slot.complete_load(Ok(held));
                self.notify_change();
            }
            Err(error) => {
                tracing::warn!(%model, error = error.chain(), "replica reload failed");
                replica.failed(error.message.clone());
                slot.complete_load(Err(error.clone()));
                self.notify_change();
                self.spawn(self.clone().load(replica, Some(error)));
            }
        }
    }

    /// Applies the overcommit flags of the deployments.
    pub(crate) fn overcommit_as_wanted(&self) {
        let wanted = self.0.overcommit.lock().clone();
        for replica in self.0.replicas.read().iter() {
            let overcommit = wanted.contains(&replica.assignment.model);
            let Some(slot) = replica.slot() else { continue };
            if slot.set_overcommit(overcommit)
                && let Lookup::MustLoad(_) = slot.lookup()
            {
                self.spawn(self.clone().reload(slot));
            }
        }
    }
}
