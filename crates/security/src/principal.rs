//! Authenticated callers.

use volley_types::{
    ApiKey, ErrorCode, KeyId, ModelName, ModelScope, NodeIdentity, PredictError, PredictRequest,
    Quota, Role, TenantId,
};

/// A caller that is known, with its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    who: String,
    role: Option<Role>,
    models: ModelScope,
    tenant: Option<TenantId>,
    /// The key whose use is counted.
    quota: Option<(KeyId, Quota)>,
}

impl Principal {
    /// Anybody, where no security is configured: may do everything.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::unlimited("anonymous", Role::ClusterAdmin)
    }

    /// Somebody unknown, on a route that is open to all: may do nothing.
    #[must_use]
    pub fn nobody() -> Self {
        Self {
            who: "nobody".to_owned(),
            role: None,
            models: ModelScope::default(),
            tenant: None,
            quota: None,
        }
    }

    /// The bearer of the bootstrap key.
    #[must_use]
    pub fn bootstrap() -> Self {
        Self::unlimited("bootstrap", Role::ClusterAdmin)
    }

    /// The bearer of an API key.
    #[must_use]
    pub fn bearer(key: &ApiKey) -> Self {
        Self {
            who: format!("key {}", key.id),
            role: Some(key.role),
            models: key.models.clone(),
            tenant: Some(key.tenant.clone()),
            quota: Some((key.id.clone(), key.quota)),
        }
    }

    /// The bearer of an identity provider's token.
    pub(crate) fn token(who: String, role: Role, models: ModelScope, tenant: TenantId) -> Self {
        Self {
            who,
            role: Some(role),
            models,
            tenant: Some(tenant),
            quota: None,
        }
    }

    /// A node of the cluster: it calls models for callers that its own edge has checked.
    #[must_use]
    pub fn node(identity: &NodeIdentity) -> Self {
        Self::unlimited(&identity.to_string(), Role::Predict)
    }

    fn unlimited(who: &str, role: Role) -> Self {
        Self {
            who: who.to_owned(),
            role: Some(role),
            models: ModelScope::default(),
            tenant: None,
            quota: None,
        }
    }

    /// A name for logs and the audit log; never a secret.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Its role; `None` means no rights.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// The models that it may see and call.
    #[must_use]
    pub fn models(&self) -> &ModelScope {
        &self.models
    }

    /// Its tenant, if its key has one.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// The key whose usage is counted, and its quota.
    pub(crate) fn quota(&self) -> Option<(&KeyId, Quota)> {
        self.quota.as_ref().map(|(key, quota)| (key, *quota))
    }

    /// Checks that it has the role `needed`.
    ///
    /// # Errors
    /// `Unauthenticated` for a principal without rights, otherwise `PermissionDenied`.
    pub fn allow(&self, needed: Role) -> Result<(), PredictError> {
        match self.role {
            Some(role) if needed <= role => Ok(()),
            Some(role) => Err(PredictError::new(
                ErrorCode::PermissionDenied,
                format!("this needs the role '{needed}'; the key has the role '{role}'"),
            )),
            None => Err(unauthenticated()),
        }
    }

    /// Checks that it may see `model`. Invisible models do not exist for it.
    ///
    /// # Errors
    /// `NotFound`, with the text for an unknown model.
    pub fn see(&self, model: &ModelName) -> Result<(), PredictError> {
        if self.models.contains(model) {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::NotFound,
            format!("no model '{model}' is registered"),
        ))
    }

    /// Checks that it may change `model`.
    ///
    /// # Errors
    /// `PermissionDenied`, whether the name is free or used by another tenant.
    pub fn change(&self, model: &ModelName) -> Result<(), PredictError> {
        if self.models.contains(model) {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::PermissionDenied,
            format!("the key's models do not include '{model}'"),
        ))
    }

    /// Checks that it has access to all models.
    ///
    /// # Errors
    /// `PermissionDenied` for a key that is limited to some models.
    pub fn reach_all(&self) -> Result<(), PredictError> {
        if self.models.is_all() {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::PermissionDenied,
            "this request concerns all models, but the key is limited to some",
        ))
    }

    /// Checks a prediction and puts the caller's tenant on it.
    ///
    /// # Errors
    /// As [`Principal::allow`] and [`Principal::see`].
    pub fn admit(&self, request: &mut PredictRequest) -> Result<(), PredictError> {
        self.allow(Role::Predict)?;
        self.see(&request.model.name)?;
        if let Some(tenant) = &self.tenant {
            request.tenant = tenant.clone();
        }
        Ok(())
    }
}

/// The answer to a request that carries no key.
pub(crate) fn unauthenticated() -> PredictError {
    PredictError::new(
        ErrorCode::Unauthenticated,
        "this cluster needs an API key; send 'Authorization: Bearer KEY'",
    )
}
