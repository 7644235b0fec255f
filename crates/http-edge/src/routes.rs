//! Default deny: a route names the role that it needs, or it does not compile.
//!
//! Routers are built from [`Routes`], whose methods ([`get`], [`post`], [`put`], [`delete`]) take
//! an [`Access`] each. Responses of methods that need another role than that of predictions are not
//! compressed, unless they say so. Handlers access the cluster only through a [`Caller`], which has the rights
//! of the request's principal.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use volley_security::Authenticator;

use crate::auth::{Access, PREDICT, check, identify};
use crate::config::EdgeConfig;
use crate::context;
use crate::context::RequestContext;
use crate::edge::{Caller, Edge};
use crate::encoding;
use crate::encoding::NoCompression;
use crate::error::{ApiError, ErrorFormats};
use crate::precheck;

/// The methods of one route, each with its [`Access`].
#[derive(Clone)]
pub struct GuardedMethods<S> {
    router: MethodRouter<S>,
    listed: Vec<(&'static str, Access)>,
    streamed: Vec<&'static str>,
}

/// A `GET` for callers with `access`.
pub fn get<H, T, S>(access: impl Into<Access>, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    GuardedMethods::guarded("GET", access.into(), routing::get(handler))
}

/// A `POST` for callers with `access`.
pub fn post<H, T, S>(access: impl Into<Access>, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    GuardedMethods::guarded("POST", access.into(), routing::post(handler))
}

/// A `POST` for callers with `access` whose response may be a stream, which the keeper of `edge`
/// can buffer.
pub fn post_stream<H, T, S>(access: impl Into<Access>, edge: &Edge, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    let kept = from_fn_with_state(edge.clone(), keep);
    let methods = routing::post(handler).route_layer(kept);
    GuardedMethods::guarded("POST", access.into(), methods).streamed()
}

/// A `GET` for callers with `access` that runs a model and answers with a stream, for a browser's
/// `EventSource`. Other than the `GET` of a document, it may not come from pages of origins that may
/// not call the server.
pub fn get_stream<H, T, S>(access: impl Into<Access>, edge: &Edge, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    let checked = from_fn_with_state(edge.clone(), own_pages);
    let methods = routing::get(handler).route_layer(checked);
    GuardedMethods::guarded("GET", access.into(), methods).streamed()
}

/// Middleware that rejects requests of foreign pages.
async fn own_pages(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    let host = precheck::host(&request);
    match host.and_then(|host| edge.origins().check(request.headers(), &host)) {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    }
}

/// Middleware of routes whose responses are never compressed: some clients announce encodings that
/// they cannot read.
async fn plain(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.extensions_mut().insert(NoCompression);
    response
}

/// Middleware of streaming routes: passes the request to the node's keeper.
async fn keep(
    State(edge): State<Edge>,
    caller: Caller,
    context: RequestContext,
    request: Request,
    next: Next,
) -> Response {
    match edge.keeper() {
        Some(keeper) => keeper.around(caller, context, request, next).await,
        None => next.run(request).await,
    }
}

/// A `PUT` for callers with `access`.
pub fn put<H, T, S>(access: impl Into<Access>, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    GuardedMethods::guarded("PUT", access.into(), routing::put(handler))
}

/// A `DELETE` for callers with `access`.
pub fn delete<H, T, S>(access: impl Into<Access>, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    GuardedMethods::guarded("DELETE", access.into(), routing::delete(handler))
}

impl<S: Clone + Send + Sync + 'static> GuardedMethods<S> {
    fn guarded(method: &'static str, access: Access, methods: MethodRouter<S>) -> Self {
        let check = from_fn(move |request, next| check(access, request, next));
        let router = match access == Access::Role(PREDICT) {
            true => methods,
            false => methods.route_layer(from_fn(plain)),
        };
        Self {
            router: router.route_layer(check),
            listed: vec![(method, access)],
            streamed: Vec::new(),
        }
    }

    /// Lets the responses be compressed, which only those of predictions are otherwise.
    pub fn compressed(self) -> Self {
        let unmark = from_fn(async |request, next: Next| {
            let mut response = next.run(request).await;
            response.extensions_mut().remove::<NoCompression>();
            response
        });
        Self {
            router: self.router.route_layer(unmark),
            ..self
        }
    }

    /// Marks the responses of these methods as streams.
    pub fn streamed(mut self) -> Self {
        self.streamed = self.listed.iter().map(|(method, _)| *method).collect();
        self
    }

    /// These and `others`.
    pub fn and(mut self, others: Self) -> Self {
        self.listed.extend(others.listed);
        self.streamed.extend(others.streamed);
        Self {
            router: self.router.merge(others.router),
            listed: self.listed,
            streamed: self.streamed,
        }
    }
}

/// Description of a route: its path, and the access of its methods.
#[derive(Clone, Debug)]
pub struct RouteInfo {
    /// The path, with its parameters in braces.
    pub path: String,
    /// The methods with their access.
    pub methods: Vec<(&'static str, Access)>,
    /// The methods with streaming responses.
    pub streamed: Vec<&'static str>,
}

impl RouteInfo {
    /// A `GET` that everybody may call.
    pub fn public(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            methods: vec![("GET", Access::Public)],
            streamed: Vec::new(),
        }
    }
}

/// Routes whose methods all declare their access.
pub struct Routes<S> {
    router: Router<S>,
    listed: Vec<RouteInfo>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// No routes.
    pub fn new() -> Self {
        Self {
            router: Router::new(),
            listed: Vec::new(),
        }
    }

    /// These and the methods of `path`.
    pub fn route(mut self, path: &str, methods: GuardedMethods<S>) -> Self {
        self.listed.push(RouteInfo {
            path: path.to_owned(),
            methods: methods.listed,
            streamed: methods.streamed,
        });
        Self {
            router: self.router.route(path, methods.router),
            listed: self.listed,
        }
    }

    /// These and `routes` below `prefix`.
    pub fn nest(mut self, prefix: &str, routes: Self) -> Self {
        let nested = routes.listed.into_iter().map(|route| RouteInfo {
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

    /// These and `routes`.
    pub fn merge(mut self, routes: Self) -> Self {
        self.listed.extend(routes.listed);
        Self {
            router: self.router.merge(routes.router),
            listed: self.listed,
        }
    }

    /// All routes.
    pub fn listed(&self) -> &[RouteInfo] {
        &self.listed
    }

    /// Disables compression of responses: some clients announce encodings that they cannot read.
    pub fn uncompressed(self) -> Self {
        Self {
            router: self.router.route_layer(from_fn(plain)),
            listed: self.listed,
        }
    }

    /// The same routes with their state, to be merged with those of other states.
    pub fn with_state(self, state: S) -> Routes<()> {
        Routes {
            router: self.router.with_state(state),
            listed: self.listed,
        }
    }
}

impl Routes<()> {
    /// Builds the router with the middleware of every route: compression, request context and
    /// principal.
    pub fn finish(
        self,
        gate: Arc<Authenticator>,
        config: EdgeConfig,
        errors: ErrorFormats,
    ) -> Router {
        let limit = config.max_body_bytes.max(config.max_tensor_bytes);
        self.router
            .fallback(context::no_route)
            .method_not_allowed_fallback(context::no_method)
            .layer(from_fn_with_state(gate, identify))
            .layer(from_fn_with_state(
                (Arc::new(config), errors),
                context::middleware,
            ))
            .layer(from_fn_with_state(limit, encoding::middleware))
    }
}
