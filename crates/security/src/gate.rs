//! Authentication of requests: from headers to a [`Principal`].

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::HeaderMap;
use volley_types::egress::EgressPolicy;
use volley_types::registry::RegistryState;
use volley_types::{ClusterHandle, ErrorCode, KeyHash, NodeIdentity, Predict, PredictError, Role};

use crate::audit::{Action, AuditLog};
use crate::guard::{GuardedCluster, GuardedInference, Share};
use crate::key::{self, MIN_BOOTSTRAP_LEN};
use crate::nodes::IsValid;
use crate::principal::unauthenticated;
use crate::quota::QuotaTracker;
use crate::quota::shared::Usage;
use crate::secrets::MasterKeys;
use crate::throttle::{Throttle, ThrottleConfig};
use crate::token::Issuers;
use crate::{Principal, credential, now_ms};

/// Maximum number of rejected requests that are logged per second; the rest are dropped from the
/// log.
const REFUSALS_LOGGED: u64 = 10;
/// Maximum length of a rejected request's path in the audit log, in characters.
const PATH_NOTED: usize = 256;

/// Returns the registry as applied by this node. Cheap.
pub type ReadRegistry = Arc<dyn Fn() -> Arc<RegistryState> + Send + Sync>;

/// Whether the keys on this node are up to date. Cheap.
pub type InService = Arc<dyn Fn() -> bool + Send + Sync>;

/// Identifies callers by their credentials. Shared by all edges of a node.
pub struct Authenticator {
    policy: Policy,
    in_service: Option<InService>,
    members: Option<IsValid>,
    audit: Option<AuditLog>,
    throttle: Throttle,
    refusals: Refusals,
    noted: Refusals,
    quotas: QuotaTracker,
    master_keys: Option<Arc<MasterKeys>>,
    egress: Arc<EgressPolicy>,
    share: Share,
}

enum Policy {
    /// Every caller has all rights.
    Open,
    /// Requires keys.
    Keys {
        registry: ReadRegistry,
        bootstrap: Option<KeyHash>,
        issuers: Option<Arc<Issuers>>,
    },
}

impl Authenticator {
    /// Gives every caller all rights. Only for clusters that cannot be reached from other machines.
    #[must_use]
    pub fn open() -> Self {
        Self::new(Policy::Open)
    }

    /// Requires a key of the registry, or the bootstrap key.
    ///
    /// # Errors
    /// `InvalidInput` when the bootstrap key is too short.
    pub fn keys(registry: ReadRegistry, bootstrap: Option<&str>) -> Result<Self, PredictError> {
        if bootstrap.is_some_and(|key| key.len() < MIN_BOOTSTRAP_LEN) {
            return Err(PredictError::invalid(format!(
                "the bootstrap key is shorter than {MIN_BOOTSTRAP_LEN} characters; \
                 `volley key bootstrap` makes one"
            )));
        }
        Ok(Self::new(Policy::Keys {
            registry,
            bootstrap: bootstrap.map(key::hash),
            issuers: None,
        }))
    }

    /// Also accepts tokens of these issuers. Has no effect without keys.
    #[must_use]
    pub fn with_issuers(mut self, trusted: Arc<Issuers>) -> Self {
        if let Policy::Keys { issuers, .. } = &mut self.policy {
            *issuers = Some(trusted);
        }
        self
    }

    /// Rejects all callers while `in_service` returns false, because revoked keys could not be
    /// detected.
    #[must_use]
    pub fn while_in_service(mut self, in_service: InService) -> Self {
        self.in_service = Some(in_service);
        self
    }

    /// Only accepts certificates of nodes for which `is_valid` returns true.
    #[must_use]
    pub fn with_members(mut self, is_valid: IsValid) -> Self {
        self.members = Some(is_valid);
        self
    }

    /// Also writes changes to an audit log.
    #[must_use]
    pub fn with_audit(mut self, audit: AuditLog) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Also seals secrets with these keys.
    #[must_use]
    pub fn with_master_keys(mut self, keys: Arc<MasterKeys>) -> Self {
        self.master_keys = Some(keys);
        self
    }

    /// Also rejects connectors and models whose URLs the policy does not allow.
    #[must_use]
    pub fn with_egress(mut self, egress: EgressPolicy) -> Self {
        self.egress = Arc::new(egress);
        self
    }

    /// Also rejects writes that exceed the tenant's share of the registry.
    #[must_use]
    pub fn with_share(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// Sets the allowed failures of each address.
    #[must_use]
    pub fn with_throttle(mut self, config: ThrottleConfig) -> Self {
        self.throttle = Throttle::new(config);
        self
    }

    /// The usage of keys on this node, to exchange with other coordinators.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage(self.quotas.clone())
    }

    /// The master keys that seal secrets.
    ///
    /// # Errors
    /// `InvalidInput` without a configured master key.
    pub fn master_keys(&self) -> Result<Arc<MasterKeys>, PredictError> {
        self.master_keys.clone().ok_or_else(|| {
            PredictError::invalid(
                "this coordinator stores no secrets: it has no 'security.master_key_files'",
            )
        })
    }

    fn new(policy: Policy) -> Self {
        Self {
            policy,
            in_service: None,
            members: None,
            audit: None,
            throttle: Throttle::default(),
            refusals: Refusals::default(),
            noted: Refusals::default(),
            quotas: QuotaTracker::default(),
            master_keys: None,
            egress: Arc::default(),
            share: Share::default(),
        }
    }

    /// Whether callers need a key.
    #[must_use]
    pub fn needs_keys(&self) -> bool {
        matches!(self.policy, Policy::Keys { .. })
    }

    /// The principal of a request with these headers. Rejected credentials are logged by key id,
    /// without the key.
    ///
    /// # Errors
    /// `Unauthenticated` without a valid key, `PermissionDenied` for a valid token without rights,
    /// `Unavailable` when the node has left service or an issuer's keys are not available.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Principal, PredictError> {
        self.check_in_service()?;
        let Policy::Keys {
            registry,
            bootstrap,
            issuers,
        } = &self.policy
        else {
            return Ok(Principal::anonymous());
        };
        let presented = credential::presented(headers)
            .inspect_err(|_| self.refusals.note("malformed credentials", None))?;
        let presented = presented.ok_or_else(unauthenticated)?;
        if let Some(issuers) = issuers
            && Issuers::is_token(&presented)
        {
            return issuers
                .identify(&presented)
                .inspect_err(|error| self.refusals.note(&error.message, None));
        }
        decide(&registry(), bootstrap.as_ref(), &presented, now_ms()).ok_or_else(|| {
            self.refusals
                .note("unknown, expired or revoked key", Some(&presented));
            PredictError::new(
                ErrorCode::Unauthenticated,
                "the API key is not valid: it is unknown, has expired or was revoked",
            )
        })
    }

    /// Like [`Authenticator::identify`], for a request from `address`. Throttles addresses with
    /// many wrong credentials.
    ///
    /// # Errors
    /// As for [`Authenticator::identify`], and `Overloaded` with a retry delay for a throttled
    /// address.
    pub fn identify_from(
        &self,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<Principal, PredictError> {
        let (Some(address), true) = (address, self.needs_keys()) else {
            return self.identify(headers);
        };
        // A request without a credential is not a guess.
        let presented = match credential::presented(headers) {
            Ok(None) => return self.identify(headers),
            Ok(Some(presented)) => presented,
            Err(_) => String::new(),
        };
        let now = Instant::now();
        self.throttle.check(address, &presented, now)?;
        let found = self.identify(headers);
        match &found {
            Ok(_) => self.throttle.succeeded(address, &presented, now),
            Err(error) if error.code == ErrorCode::Unauthenticated => {
                self.throttle.failed(address, now);
            }
            Err(_) => {}
        }
        found
    }

    fn check_in_service(&self) -> Result<(), PredictError> {
        let in_service = self.in_service.as_ref();
        match in_service.is_none_or(|in_service| in_service()) {
            true => Ok(()),
            false => Err(PredictError::new(
                ErrorCode::Unavailable,
                "this coordinator has left service (see its log); use another coordinator",
            )),
        }
    }

    /// Like [`Authenticator::identify_from`], for a call that may come from a node. The certificate
    /// of a coordinator suffices as a credential.
    ///
    /// # Errors
    /// As for [`Authenticator::identify_from`], and `PermissionDenied` for a worker, because
    /// workers do not call models.
    pub fn identify_call(
        &self,
        headers: &HeaderMap,
        node: Option<&NodeIdentity>,
        address: Option<IpAddr>,
    ) -> Result<Principal, PredictError> {
        self.check_in_service()?;
        match node {
            Some(identity @ NodeIdentity::Coordinator(_)) => {
                let members = self.members.as_ref();
                match members.is_none_or(|is_valid| is_valid(identity)) {
                    true => Ok(Principal::node(identity)),
                    false => Err(PredictError::new(
                        ErrorCode::PermissionDenied,
                        format!(
                            "the certificate of {identity} is not valid for calls: the node is \
                             not in the cluster"
                        ),
                    )),
                }
            }
            Some(NodeIdentity::Worker(_)) => Err(PredictError::new(
                ErrorCode::PermissionDenied,
                "a worker does not call models",
            )),
            None => self.identify_from(headers, address),
        }
    }

    /// Audits a rejected request of `principal` to a route that needs `needed`, if that role can
    /// change something. Each line is synced, so at most ten rejections per second are audited;
    /// further ones are only logged. The line is written even if the future is dropped.
    pub async fn note_refused(&self, principal: &Principal, needed: Role, what: &str) {
        let Some(audit) = &self.audit else { return };
        if needed < Role::ModelAdmin || !self.noted.is_told("the audit log's refusals") {
            return;
        }
        let target = what.chars().filter(|c| !c.is_control()).take(PATH_NOTED);
        let action = Action {
            name: "request.refused",
            target: target.collect(),
        };
        let result = ErrorCode::PermissionDenied.as_str().to_owned();
        if let Err(error) = audit.record(principal.who(), action, result).await {
            tracing::error!(error = error.chain(), "audit log write failed");
        }
    }

    /// Restricts `inference` to the rights of `principal`.
    #[must_use]
    pub fn guard_inference(
        &self,
        inference: Arc<dyn Predict>,
        principal: Arc<Principal>,
    ) -> Arc<dyn Predict> {
        Arc::new(GuardedInference::new(
            inference,
            principal,
            self.quotas.clone(),
        ))
    }

    /// Restricts `cluster` to the rights of `principal`, with an audit log of its changes.
    #[must_use]
    pub fn guard(&self, cluster: &ClusterHandle, principal: &Arc<Principal>) -> ClusterHandle {
        let guarded = Arc::new(GuardedCluster {
            inner: cluster.clone(),
            principal: principal.clone(),
            egress: self.egress.clone(),
            share: self.share,
            audit: self.audit.clone(),
        });
        ClusterHandle {
            inference: self.guard_inference(cluster.inference.clone(), principal.clone()),
            registry: guarded.clone(),
            view: guarded.clone(),
            membership: guarded,
        }
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("needs_keys", &self.needs_keys())
            .finish_non_exhaustive()
    }
}

/// The principal whose key is `presented`, if it is valid at `now_ms`.
fn decide(
    registry: &RegistryState,
    bootstrap: Option<&KeyHash>,
    presented: &str,
    now_ms: u64,
) -> Option<Principal> {
    let hash = key::hash(presented);
    if bootstrap.is_some_and(|bootstrap| key::same(bootstrap, &hash)) {
        return Some(Principal::bootstrap());
    }
    let key = registry.keys.get(&key::id_of(presented)?)?;
    key::is_valid(key, &hash, now_ms).then(|| Principal::bearer(key))
}

/// Logs rejected requests at a limited rate.
#[derive(Default)]
struct Refusals {
    /// Seconds since 1970 in the upper half, and the count of that second in the lower half.
    second: AtomicU64,
}

impl Refusals {
    fn note(&self, reason: &str, presented: Option<&str>) {
        if self.is_told("refused requests") {
            // Only the key id is logged, and only if it is well formed; never the secret.
            let id = presented.and_then(key::id_of);
            let id = id.as_ref().map(|id| id.as_str());
            tracing::warn!(reason, key_id = id, "request rejected");
        }
    }

    /// Whether one more `what` may be logged in this second.
    fn is_told(&self, what: &str) -> bool {
        let second = now_ms() / 1_000;
        let count = |packed: u64| match packed >> 32 == second {
            true => (packed & 0xffff_ffff) + 1,
            false => 1,
        };
        let next = |packed: u64| Some(second << 32 | count(packed).min(0xffff_ffff));
        let before = self
            .second
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .unwrap_or_default();
        let count = count(before);
        if count == REFUSALS_LOGGED + 1 {
            tracing::warn!(what, "log limit of this second reached");
        }
        count <= REFUSALS_LOGGED
    }
}

#[cfg(test)]
mod tests;
