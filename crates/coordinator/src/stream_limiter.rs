//! The places for streams on a coordinator, and who gets them: as long as there are plenty,
//! whoever comes; once half are taken, nobody more than an equal share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use volley_types::{PredictError, TenantId};

use crate::errors;

/// The places of one coordinator. Cloning gives another handle.
#[derive(Clone, Debug)]
pub(crate) struct StreamLimiter(Arc<StreamLimiterState>);

#[derive(Debug)]
struct StreamLimiterState {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// Tenants that hold places, and how many; at most as many as there are places.
    tenants: HashMap<TenantId, usize>,
}

/// The right to run one stream; given back when dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    hall: Arc<StreamLimiterState>,
    tenant: TenantId,
}

impl StreamLimiter {
    /// `limit` places.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(StreamLimiterState {
            limit,
            state: Mutex::default(),
        }))
    }

    /// A place for `tenant`, at once.
    ///
    /// # Errors
    /// `Overloaded` when there is none, or when the tenant has its share of what is scarce.
    pub(crate) fn acquire(&self, tenant: &TenantId) -> Result<StreamPermit, PredictError> {
        let mut state = self.0.state.lock();
        let limit = self.0.limit;
        if limit <= state.held {
            return Err(errors::full(limit));
        }
        let holds = state.tenants.get(tenant).copied();
        let tenants = state.tenants.len() + usize::from(holds.is_none());
        if let Some(share) = exhausted_share(limit, state.held, tenants, holds.unwrap_or(0)) {
            return Err(errors::share_full(share));
        }
        state.held += 1;
        *state.tenants.entry(tenant.clone()).or_default() += 1;
        Ok(StreamPermit {
            hall: self.0.clone(),
            tenant: tenant.clone(),
        })
    }

    /// How many are taken.
    pub(crate) fn held(&self) -> usize {
        self.0.state.lock().held
    }
}

/// The share of a tenant that holds `own` of the `held` places and may have no more now: with
/// half of the places taken, each of the `tenants` gets as many as the others.
fn exhausted_share(limit: usize, held: usize, tenants: usize, own: usize) -> Option<usize> {
    let share = (limit / tenants).max(1);
    let is_scarce = limit <= held.saturating_mul(2);
    (is_scarce && share <= own).then_some(share)
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut state = self.hall.state.lock();
        state.held -= 1;
        if let Some(own) = state.tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                state.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn a_flood_leaves_room_for_others_and_one_tenant_alone_may_have_all() {
        let places = StreamLimiter::new(8);
        let (loud, quiet) = (tenant("loud"), tenant("quiet"));
        let mut held: Vec<_> = (0..8).map(|_| places.acquire(&loud).unwrap()).collect();
        assert!(places.acquire(&loud).is_err());
        assert!(places.acquire(&quiet).is_err(), "all places are taken");
        // What the flood gives back is another's now, up to the half of it.
        for _ in 0..4 {
            held.truncate(held.len() - 1);
            held.insert(0, places.acquire(&quiet).unwrap());
            assert!(places.acquire(&loud).is_err());
        }
        assert_eq!(places.held(), 8);
        drop(held);
        assert_eq!(places.held(), 0);
        assert!(places.0.state.lock().tenants.is_empty());
    }

    proptest::proptest! {
        /// Nobody is over the limit, nothing leaks, and a tenant with nothing gets in wherever a
        /// place is free.
        #[test]
        fn places_are_bounded_and_never_lost(
            limit in 1_usize..20, steps in proptest::collection::vec((0_u8..6, 0_usize..40), 1..300)
        ) {
            let places = StreamLimiter::new(limit);
            let mut held: Vec<StreamPermit> = Vec::new();
            for (who, index) in steps {
                if who < 4 {
                    let tenant = tenant(&format!("t{who}"));
                    let own = held.iter().filter(|place| place.tenant == tenant).count();
                    match places.acquire(&tenant) {
                        Ok(place) => held.push(place),
                        Err(_) => proptest::prop_assert!(own != 0 || held.len() == limit),
                    }
                } else if index < held.len() {
                    drop(held.remove(index));
                }
                proptest::prop_assert!(held.len() <= limit);
                proptest::prop_assert_eq!(places.held(), held.len());
            }
        }
    }
}
