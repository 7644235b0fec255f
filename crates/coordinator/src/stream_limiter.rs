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
mod tests;
