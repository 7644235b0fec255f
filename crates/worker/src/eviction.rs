//! Making room in the memory budget, and bringing back what had to make room.

use std::sync::Arc;
use std::time::Instant;

use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::Worker;
use crate::backend_slot::{self, BackendLease, BackendSlot, Lookup};
use crate::load;
use crate::memory_budget::{Reservation, Shortage};
use crate::replica::Replica;

/// What there is of room now.
enum ReserveOutcome {
    Reserved(Reservation),
    /// There may be some when something changes, or at this instant.
    Later(Shortage, Option<Instant>),
}

impl Worker {
    /// Room for `bytes`. Idle models that may be unloaded make it; where those in use could,
    /// waits for them.
    ///
    /// # Errors
    /// `Overloaded` when there would be none even then.
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

    /// What [`reserve_or_evict`](Self::reserve_or_evict) waits for, in the words of a failed load.
    pub(crate) fn shortage(&self, bytes: u64, overcommit: bool) -> PredictError {
        match self.reserve_now(bytes, overcommit) {
            ReserveOutcome::Later(shortage, _) => shortage.error(),
            ReserveOutcome::Reserved(_) => {
                let message = "memory for the model was not freed in time; the load is tried again";
                PredictError::new(ErrorCode::Overloaded, message)
            }
        }
    }

    /// One look. Nobody else takes the room that is made here.
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
            // Somebody came to use what was idle a moment ago.
            Err(shortage) => ReserveOutcome::Later(shortage, Some(Instant::now())),
        }
    }

    fn evicted(&self, replica: &Replica) {
        let (model, version) = (&replica.assignment.model, replica.assignment.spec.version);
        tracing::info!(%model, %version, "replica evicted");
        self.0.metrics.evicted(model);
        self.0.news.send_replace(());
    }

    /// The backend of a replica: at once where it is loaded; else it is loaded first. Requests
    /// that come meanwhile wait for the same load.
    ///
    /// # Cancel safety
    /// A load that nobody waits for any more is not begun; one that runs goes on.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be loaded any more.
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

    /// Loads what was unloaded to make room. Where that fails the replica has failed, and is
    /// tried again as any other.
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
            // What was thrown away meanwhile is fetched again, outside the limit on loading.
            let loader = self.loader(&replica.assignment)?;
            let hold = load::prepare(&loader, &replica).await?;
            let memory = self
                .reserve_or_evict(slot.bytes(), slot.overcommit())
                .await?;
            Ok((hold, memory, self.0.loads.acquire().await))
        };
        let room = tokio::select! {
            biased;
            // A model that must stay is loaded whether anybody waits or not.
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

    /// Follows what deployments say of being unloaded.
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
