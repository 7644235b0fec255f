//! Default deny: a route names the role that it needs, or it does not compile.
//!
//! Routers are built of [`Routes`], whose methods ([`get`], [`post`], [`put`], [`delete`]) take an
//! [`Access`] each. Handlers are given the cluster as [`crate::extract::State`] only, which opens
//! it for the rights of who asks; a bare router, or the framework's own `State`, has the wrong
//! type here.

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use http::{Extensions, HeaderMap, HeaderValue, header};
use volley_security::{Gatekeeper, Principal};
use volley_types::arrow_messages::OpenArrow;
use volley_types::{Control, ErrorCode, Intake, PredictError, Role};

use crate::answering::{AnsweredBy, Answering};
use crate::app::App;
use crate::encoding::Uncompressed;
use crate::error::{ApiError, House};
use crate::models::ModelStore;
use crate::oip::shared_memory::SharedMemory;
use crate::oip::statistics::Statistics;
use crate::opensearch::batch::Everywhere;
use crate::resume::{self, Resume};
use crate::serve::Caller;
use crate::{ApiConfig, EncodeMetrics, Origins, context, encoding, ws};

/// Who may call a method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, with no rights on the cluster: health.
    Public,
    /// Callers of this role.
    Role(Role),
}

impl From<Role> for Access {
    fn from(role: Role) -> Self {
        Self::Role(role)
    }
}

/// Health tells nothing but that.
pub(crate) const PUBLIC: Access = Access::Public;
pub(crate) const VIEWER: Role = Role::Viewer;
pub(crate) const PREDICT: Role = Role::Predict;
pub(crate) const MODEL_ADMIN: Role = Role::ModelAdmin;
pub(crate) const CLUSTER_ADMIN: Role = Role::ClusterAdmin;

/// The methods of one route, each with its [`Access`].
#[derive(Clone)]
pub(crate) struct Methods<S> {
    router: MethodRouter<S>,
    listed: Vec<(&'static str, Access)>,
    streamed: Vec<&'static str>,
}

/// A `GET` for whom `access` names.
pub(crate) fn get<H, T, S>(access: impl Into<Access>, handler: H) -> Methods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Methods::guarded("GET", access.into(), routing::get(handler))
}

/// A `POST` for whom `access` names.
pub(crate) fn post<H, T, S>(access: impl Into<Access>, handler: H) -> Methods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Methods::guarded("POST", access.into(), routing::post(handler))
}

/// A `POST` for whom `access` names, whose answer may be a stream that can be taken up again.
pub(crate) fn post_stream<H, T>(
    access: impl Into<Access>,
    sealed: &Sealed,
    handler: H,
) -> Methods<Sealed>
where
    H: Handler<T, Sealed>,
    T: 'static,
{
    let resume = from_fn_with_state(sealed.clone(), resume::middleware);
    let methods = routing::post(handler).route_layer(resume);
    Methods::guarded("POST", access.into(), methods).streamed()
}

/// A `PUT` for whom `access` names.
pub(crate) fn put<H, T, S>(access: impl Into<Access>, handler: H) -> Methods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Methods::guarded("PUT", access.into(), routing::put(handler))
}

/// A `DELETE` for whom `access` names.
pub(crate) fn delete<H, T, S>(access: impl Into<Access>, handler: H) -> Methods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    Methods::guarded("DELETE", access.into(), routing::delete(handler))
}

impl<S: Clone + Send + Sync + 'static> Methods<S> {
    fn guarded(method: &'static str, access: Access, methods: MethodRouter<S>) -> Self {
        let check = from_fn(move |request, next| check(access, request, next));
        Self {
            router: methods.route_layer(check),
            listed: vec![(method, access)],
            streamed: Vec::new(),
        }
    }

    /// These, whose answers may be streams.
    pub(crate) fn streamed(mut self) -> Self {
        self.streamed = self.listed.iter().map(|(method, _)| *method).collect();
        self
    }

    /// These and `others`.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.listed.extend(others.listed);
        self.streamed.extend(others.streamed);
        Self {
            router: self.router.merge(others.router),
            listed: self.listed,
            streamed: self.streamed,
        }
    }
}

/// A route as it is listed: its path, and who may call which of its methods.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) methods: Vec<(&'static str, Access)>,
    /// The methods among these whose answers may be streams.
    pub(crate) streamed: Vec<&'static str>,
}

/// Routes whose methods all name who may call them.
pub(crate) struct Routes<S> {
    router: Router<S>,
    listed: Vec<Listed>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(crate) fn new() -> Self {
        Self {
            router: Router::new(),
            listed: Vec::new(),
        }
    }

    pub(crate) fn route(mut self, path: &str, methods: Methods<S>) -> Self {
        self.listed.push(Listed {
            path: path.to_owned(),
            methods: methods.listed,
            streamed: methods.streamed,
        });
        Self {
            router: self.router.route(path, methods.router),
            listed: self.listed,
        }
    }

    pub(crate) fn nest(mut self, prefix: &str, routes: Self) -> Self {
        let nested = routes.listed.into_iter().map(|route| Listed {
            path: format!("{prefix}{}", route.path.trim_end_matches('/')),
            methods: route.methods,
            streamed: route.streamed,
        });
        self.listed.extend(nested);
        Self {
            router: self.router.nest(prefix, routes.router),
            listed: self.listed,
        }
    }

    pub(crate) fn merge(mut self, routes: Self) -> Self {
        self.listed.extend(routes.listed);
        Self {
            router: self.router.merge(routes.router),
            listed: self.listed,
        }
    }

    /// All routes.
    pub(crate) fn listed(&self) -> &[Listed] {
        &self.listed
    }

    /// The router, with what wraps every route: bodies compressed both ways, the request's
    /// context, and who sent it.
    pub(crate) fn finish(self, state: S, gate: Arc<Gatekeeper>, config: ApiConfig) -> Router {
        let limit = config.max_body_bytes.max(config.max_tensor_bytes);
        self.router
            .fallback(context::no_route)
            .method_not_allowed_fallback(context::no_method)
            .layer(from_fn_with_state(gate, identify))
            .layer(from_fn_with_state(Arc::new(config), context::middleware))
            .layer(from_fn_with_state(limit, encoding::middleware))
            .with_state(state)
    }
}

/// Stands in requests whose bodies grant or set something: a name that such a body has twice may be
/// read differently by whoever checked it before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grants;

/// Stands in requests that came by a listener without administration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAdministration;

/// Whether what needs `access` administers the cluster or its models.
fn administers(access: Access) -> bool {
    matches!(access, Access::Role(role) if MODEL_ADMIN <= role)
}

/// Refuses what administers where a request came by a listener that serves the rest.
///
/// # Errors
/// `PermissionDenied`.
pub(crate) fn served_here(access: Access, extensions: &Extensions) -> Result<(), PredictError> {
    if administers(access) && extensions.get::<NoAdministration>().is_some() {
        return Err(PredictError::new(
            ErrorCode::PermissionDenied,
            "administration is served on a listener of its own, 'listen.admin' in this \
             coordinator's configuration, and not here",
        ));
    }
    Ok(())
}

/// What [`identify`] found out.
#[derive(Clone)]
struct Identified {
    found: Result<Arc<Principal>, PredictError>,
    by: Arc<Gatekeeper>,
}

async fn identify(
    axum::extract::State(gate): axum::extract::State<Arc<Gatekeeper>>,
    mut request: Request,
    next: Next,
) -> Response {
    let of_socket = ws::credentials(request.headers());
    let headers = of_socket.as_ref().unwrap_or(request.headers());
    let caller = request.extensions().get::<Caller>();
    let address = caller.map(|caller| caller.0);
    let found = gate.identify_from(headers, address).map(Arc::new);
    let by = gate;
    request.extensions_mut().insert(Identified { found, by });
    next.run(request).await
}

async fn check(access: Access, mut request: Request, next: Next) -> Response {
    if let Err(error) = served_here(access, request.extensions()) {
        return refuse(error);
    }
    let found = request.extensions_mut().remove::<Identified>();
    match admitted(access, found.as_ref()) {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            if administers(access) {
                request.extensions_mut().insert(Grants);
            }
            // aiohttp clients of this protocol accept compressed answers and read predictions only.
            let plain = access != PREDICT.into() && House::of(path_of(&request)) == House::Oip;
            let mut response = next.run(request).await;
            if plain {
                response.extensions_mut().insert(Uncompressed);
            }
            response
        }
        Err(error) => {
            let what = format!("{} {}", request.method(), path_of(&request));
            drop(request);
            note(access, found, &what).await;
            refuse(error)
        }
    }
}

/// The whole path, of which a nested router sees its part.
fn path_of(request: &Request) -> &str {
    let path = request.extensions().get::<OriginalUri>();
    path.map_or_else(|| request.uri().path(), |OriginalUri(all)| all.path())
}

/// Notes who was known, and was refused what changes something: handlers, which note the rest, are
/// not reached.
async fn note(access: Access, found: Option<Identified>, what: &str) {
    let (Access::Role(needed), Some(found)) = (access, found) else {
        return;
    };
    if let Ok(principal) = found.found {
        found.by.note_refused(&principal, needed, what).await;
    }
}

fn admitted(access: Access, found: Option<&Identified>) -> Result<Arc<Principal>, PredictError> {
    let Access::Role(needed) = access else {
        return Ok(Arc::new(Principal::nobody()));
    };
    let Some(Identified { found, .. }) = found else {
        return Err(PredictError::internal(
            "the request was lost",
            "a route was reached past the gate",
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

/// The router's state. Handlers get what is inside through [`crate::extract::State`] only.
#[derive(Clone)]
pub(crate) struct Sealed {
    control: Arc<dyn Control>,
    metrics: EncodeMetrics,
    config: ApiConfig,
    gate: Arc<Gatekeeper>,
    resume: Resume,
    statistics: Arc<Statistics>,
    shared_memory: Arc<SharedMemory>,
    batches: Everywhere,
    models: Option<Arc<dyn ModelStore>>,
    arrow: Option<OpenArrow>,
    origins: Origins,
    intake: Intake,
}

impl Sealed {
    pub(crate) fn new(
        control: Arc<dyn Control>,
        metrics: EncodeMetrics,
        config: ApiConfig,
        gate: Arc<Gatekeeper>,
        resume: Resume,
        batches: Everywhere,
    ) -> Self {
        Self {
            control,
            metrics,
            config,
            gate,
            resume,
            statistics: Arc::default(),
            shared_memory: Arc::new(SharedMemory::new(false, 0)),
            batches,
            models: None,
            arrow: None,
            origins: Origins::default(),
            intake: Intake::new(config.max_inflight_body_bytes),
        }
    }

    /// The same with a reader of Arrow streams.
    pub(crate) fn reading_arrow(mut self, open: Option<OpenArrow>) -> Self {
        self.arrow = open;
        self
    }

    /// The same, for pages of these origins too.
    pub(crate) fn allowing(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// The same, with this as the memory for bodies.
    pub(crate) fn taking_in(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    pub(crate) fn intake(&self) -> &Intake {
        &self.intake
    }

    pub(crate) fn origins(&self) -> &Origins {
        &self.origins
    }

    /// The same, counting there.
    pub(crate) fn counting(mut self, statistics: Arc<Statistics>) -> Self {
        self.statistics = statistics;
        self
    }

    /// The same, keeping models there.
    pub(crate) fn keeping(mut self, models: Option<Arc<dyn ModelStore>>) -> Self {
        self.models = models;
        self
    }

    /// The same, with these regions of shared memory.
    pub(crate) fn sharing(mut self, shared_memory: Arc<SharedMemory>) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    pub(crate) fn gate(&self) -> Arc<Gatekeeper> {
        self.gate.clone()
    }

    pub(crate) fn config(&self) -> &ApiConfig {
        &self.config
    }

    /// What a handler works with, for the request of `principal` with these headers.
    pub(crate) fn open(
        &self,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        answered_by: AnsweredBy,
    ) -> Arc<App> {
        let guarded = self
            .gate
            .guard_control(self.control.clone(), principal.clone());
        let registry = self.control.registry();
        let answering = Answering::new(guarded, registry, headers, answered_by.clone());
        Arc::new(App {
            control: Arc::new(answering),
            answered_by,
            metrics: self.metrics.clone(),
            config: self.config,
            principal,
            resume: self.resume.clone(),
            statistics: self.statistics.clone(),
            shared_memory: self.shared_memory.clone(),
            batches: self.batches.clone(),
            models: self.models.clone(),
            arrow: self.arrow.clone(),
            gate: self.gate.clone(),
            intake: self.intake.clone(),
        })
    }
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
        let identified = |found| Identified {
            found,
            by: Arc::new(Gatekeeper::open()),
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
