//! Per-coordinator stream limit. Permits are first come, first served until half are in use; above
//! that, each tenant is limited to an equal share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use volley_types::{PredictError, TenantId};

use crate::errors;

/// The stream permits of one coordinator. Clones share their state.
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
    /// Number of permits of each tenant that has any.
    tenants: HashMap<TenantId, usize>,
}

/// The right to run one stream; released when dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    hall: Arc<StreamLimiterState>,
    tenant: TenantId,
}

impl StreamLimiter {
    /// Creates a limiter with `limit` permits.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(StreamLimiterState {
            limit,
            state: Mutex::default(),
        }))
    }

    /// Acquires a permit for `tenant` without waiting.
    ///
    /// # Errors
    /// `Overloaded` when no permit is free, or when the tenant has its share and more than half are
    /// in use.
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

    /// Number of permits in use.
    pub(crate) fn held(&self) -> usize {
        self.0.state.lock().held
    }
}

/// The share of a tenant with `own` of the `held` permits if it may not get more now. With half of
/// the permits in use, each of the `tenants` has an equal share.
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
