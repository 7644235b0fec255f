//! Authenticated callers.

use volley_types::{
    ApiKey, ErrorCode, KeyId, ModelName, ModelScope, NodeIdentity, PredictError, PredictRequest,
    Quota, Role, TenantId,
};

/// An authenticated caller with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    who: String,
    role: Option<Role>,
    models: ModelScope,
    tenant: Option<TenantId>,
    /// The key whose usage is counted, and its quota.
    quota: Option<(KeyId, Quota)>,
}

impl Principal {
    /// A caller without authentication, when security is not configured. It has all rights.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::unlimited("anonymous", Role::ClusterAdmin)
    }

    /// An unauthenticated caller on a public route. It has no rights.
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

    /// The holder of the bootstrap key.
    #[must_use]
    pub fn bootstrap() -> Self {
        Self::unlimited("bootstrap", Role::ClusterAdmin)
    }

    /// The holder of an API key.
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

    /// The holder of a token from an identity provider.
    pub(crate) fn token(who: String, role: Role, models: ModelScope, tenant: TenantId) -> Self {
        Self {
            who,
            role: Some(role),
            models,
            tenant: Some(tenant),
            quota: None,
        }
    }

    /// A node of the cluster. It calls models for callers that its edge has already authorized.
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

    /// The name in logs and in the audit log; never a secret.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// The role; `None` means no rights.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// The models that the principal may see and call.
    #[must_use]
    pub fn models(&self) -> &ModelScope {
        &self.models
    }

    /// The tenant, if the principal belongs to one.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// The key whose usage is counted, and its quota.
    pub(crate) fn quota(&self) -> Option<(&KeyId, Quota)> {
        self.quota.as_ref().map(|(key, quota)| (key, *quota))
    }

    /// Checks that the principal has the role `needed` or a stronger one.
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

    /// Checks that the principal may see `model`.
    ///
    /// # Errors
    /// `NotFound` with the message for an unknown model, so that the error does not reveal the
    /// model.
    pub fn see(&self, model: &ModelName) -> Result<(), PredictError> {
        if self.models.contains(model) {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::NotFound,
            format!("no model '{model}' is registered"),
        ))
    }

    /// Checks that the principal may change `model`.
    ///
    /// # Errors
    /// `PermissionDenied`, whether or not the name is in use.
    pub fn change(&self, model: &ModelName) -> Result<(), PredictError> {
        if self.models.contains(model) {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::PermissionDenied,
            format!("the key's models do not include '{model}'"),
        ))
    }

    /// Checks that the principal has access to all models.
    ///
    /// # Errors
    /// `PermissionDenied` for a principal that is limited to some models.
    pub fn reach_all(&self) -> Result<(), PredictError> {
        if self.models.is_all() {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::PermissionDenied,
            "this request concerns all models, but the key is limited to some",
        ))
    }

    /// Authorizes a prediction and sets the request's tenant.
    ///
    /// # Errors
    /// As for [`Principal::allow`] and [`Principal::see`].
    pub fn admit(&self, request: &mut PredictRequest) -> Result<(), PredictError> {
        self.allow(Role::Predict)?;
        self.see(&request.model.name)?;
        if let Some(tenant) = &self.tenant {
            request.tenant = tenant.clone();
        }
        Ok(())
    }
}

/// The error for a request without a credential.
pub(crate) fn unauthenticated() -> PredictError {
    PredictError::new(
        ErrorCode::Unauthenticated,
        "this cluster needs an API key; send 'Authorization: Bearer KEY'",
    )
}
