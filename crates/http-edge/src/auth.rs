//! Authentication and authorization of routes, before the handler runs.

use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Extensions, HeaderValue, header};
use volley_security::{Authenticator, Principal};
use volley_types::{ErrorCode, PredictError, Role};

use crate::error::ApiError;
use crate::handshake;
use crate::serve::PeerAddress;

/// Required access of a route's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Callers without credentials. The handler has no rights on the cluster (health routes).
    Public,
    /// Callers of this role.
    Role(Role),
}

impl From<Role> for Access {
    fn from(role: Role) -> Self {
        Self::Role(role)
    }
}

/// For health routes, which return nothing else.
pub const PUBLIC: Access = Access::Public;
/// Reads state.
pub const VIEWER: Role = Role::Viewer;
/// Calls models.
pub const PREDICT: Role = Role::Predict;
/// Changes models and connectors.
pub const MODEL_ADMIN: Role = Role::ModelAdmin;
/// Changes nodes and keys.
pub const CLUSTER_ADMIN: Role = Role::ClusterAdmin;

/// Marks requests whose bodies grant or set something. Such a body must not have duplicate names,
/// because a proxy that checked it may have read the other value.
#[derive(Clone, Copy, Debug)]
pub struct Grants;

/// Marks requests from a listener without administration.
#[derive(Clone, Copy, Debug)]
pub struct NoAdministration;

/// Whether `access` is for administration of the cluster or its models.
fn administers(access: Access) -> bool {
    matches!(access, Access::Role(role) if MODEL_ADMIN <= role)
}

/// Rejects administration on a listener without it.
///
/// # Errors
/// `PermissionDenied`.
pub fn served_here(access: Access, extensions: &Extensions) -> Result<(), PredictError> {
    if administers(access) && extensions.get::<NoAdministration>().is_some() {
        return Err(PredictError::new(
            ErrorCode::PermissionDenied,
            "administration routes are only served on the admin listener ('listen.admin' in this \
             coordinator's configuration)",
        ));
    }
    Ok(())
}

/// Result of [`identify`].
#[derive(Clone)]
struct Identification {
    found: Result<Arc<Principal>, PredictError>,
    by: Arc<Authenticator>,
}

/// Middleware of all routes: identifies the principal of a request for [`check`].
pub async fn identify(
    State(gate): State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Response {
    let of_socket = handshake::credentials(request.headers());
    let headers = of_socket.as_ref().unwrap_or(request.headers());
    let address = request.extensions().get::<PeerAddress>();
    let address = address.map(|address| address.0);
    let found = gate.identify_from(headers, address).map(Arc::new);
    let by = gate;
    request
        .extensions_mut()
        .insert(Identification { found, by });
    next.run(request).await
}

/// Middleware of one route: rejects callers without `access`, and passes the principal to the
/// handler.
pub async fn check(access: Access, mut request: Request, next: Next) -> Response {
    if let Err(error) = served_here(access, request.extensions()) {
        return refuse(error);
    }
    let found = request.extensions_mut().remove::<Identification>();
    match admitted(access, found.as_ref()) {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            if administers(access) {
                request.extensions_mut().insert(Grants);
            }
            next.run(request).await
        }
        Err(error) => {
            let what = format!("{} {}", request.method(), path_of(&request));
            drop(request);
            audit_denied(access, found, &what).await;
            refuse(error)
        }
    }
}

/// The complete path; a nested router sees only its part.
fn path_of(request: &Request) -> &str {
    let path = request.extensions().get::<OriginalUri>();
    path.map_or_else(|| request.uri().path(), |OriginalUri(all)| all.path())
}

/// Audits denied mutations by authenticated callers. Handlers audit the allowed ones.
async fn audit_denied(access: Access, found: Option<Identification>, what: &str) {
    let (Access::Role(needed), Some(found)) = (access, found) else {
        return;
    };
    if let Ok(principal) = found.found {
        found.by.note_refused(&principal, needed, what).await;
    }
}

fn admitted(
    access: Access,
    found: Option<&Identification>,
) -> Result<Arc<Principal>, PredictError> {
    let Access::Role(needed) = access else {
        return Ok(Arc::new(Principal::nobody()));
    };
    let Some(Identification { found, .. }) = found else {
        return Err(PredictError::internal(
            "the request was lost",
            "a route was called without authentication",
        ));
    };
    let principal = found.clone()?;
    principal.allow(needed)?;
    Ok(principal)
}

fn refuse(error: PredictError) -> Response {
    let unknown = error.code == ErrorCode::Unauthenticated;
    let mut response = ApiError(error).into_response();
    if unknown {
        let how = HeaderValue::from_static("Bearer realm=\"volley\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_gate_nothing_is_allowed() {
        let refused = admitted(Access::Role(Role::Viewer), None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Internal);
        let nobody = admitted(Access::Public, None).unwrap();
        assert_eq!(*nobody, Principal::nobody());
        assert!(nobody.allow(Role::Viewer).is_err());
    }

    #[test]
    fn a_stronger_role_is_enough_and_a_weaker_one_is_not() {
        let identified = |found| Identification {
            found,
            by: Arc::new(Authenticator::open()),
        };
        let anonymous = identified(Ok(Arc::new(Principal::anonymous())));
        for role in Role::ALL {
            assert!(admitted(Access::Role(role), Some(&anonymous)).is_ok());
        }
        let unknown = identified(Err(PredictError::new(ErrorCode::Unauthenticated, "who?")));
        let refused = admitted(Access::Role(Role::Viewer), Some(&unknown));
        assert_eq!(refused.unwrap_err().code, ErrorCode::Unauthenticated);
    }
}
