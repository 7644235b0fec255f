//! Shared state of a node's routes, and its views for handlers.
//!
//! [`Edge`] is the state of routers. Handlers do not see it: they get a [`Caller`], which accesses
//! the cluster with the rights of the request's principal, or a [`DialectCaller`], which also has
//! the dialect's state.

use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::request::Parts;
use volley_security::{Authenticator, Principal};
use volley_types::registry::BackendList;
use volley_types::{ClusterHandle, Intake, StreamOwner};

use crate::config::EdgeConfig;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::inference::{AnswerHeaders, RequestInference};
use crate::origins::Origins;

/// The state of a node's routers. A dialect with its own state wraps it (`impl AsRef<Edge>`).
#[derive(Clone)]
pub struct Edge {
    cluster: ClusterHandle,
    gate: Arc<Authenticator>,
    config: EdgeConfig,
    origins: Origins,
    backends: BackendList,
    intake: Intake,
    keeper: Option<Arc<dyn StreamKeeper>>,
}

impl Edge {
    /// An edge of `cluster` for the callers that `gate` authenticates.
    pub fn new(cluster: ClusterHandle, gate: Arc<Authenticator>, config: EdgeConfig) -> Self {
        Self {
            cluster,
            gate,
            config,
            origins: Origins::default(),
            backends: BackendList::default(),
            intake: Intake::new(config.max_inflight_body_bytes),
            keeper: None,
        }
    }

    /// Allows pages of these origins.
    pub fn with_origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Sets the backends for which models may be registered.
    pub fn with_backends(mut self, backends: BackendList) -> Self {
        self.backends = backends;
        self
    }

    /// Sets the memory for the bodies of requests.
    pub fn with_intake(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    /// Sets the keeper of resumable streams.
    pub fn with_keeper(mut self, keeper: Arc<dyn StreamKeeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// Authenticates principals.
    pub fn gate(&self) -> Arc<Authenticator> {
        self.gate.clone()
    }

    /// The edge's configuration.
    pub fn config(&self) -> &EdgeConfig {
        &self.config
    }

    /// The memory for bodies.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// The origins whose pages may call.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// The keeper of resumable streams, if any.
    pub fn keeper(&self) -> Option<&Arc<dyn StreamKeeper>> {
        self.keeper.as_ref()
    }

    /// The caller of a request: the cluster with the rights of `principal`, and with the sticky
    /// values of aliases from `headers`.
    pub fn caller(
        &self,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        answer_headers: AnswerHeaders,
    ) -> Caller {
        let mut cluster = self.gate.guard(&self.cluster, &principal);
        let registry = self.cluster.registry.state();
        cluster.inference = Arc::new(RequestInference::new(
            cluster.inference,
            registry,
            headers,
            answer_headers.clone(),
        ));
        Caller {
            cluster,
            principal,
            config: self.config,
            gate: self.gate.clone(),
            intake: self.intake.clone(),
            backends: self.backends.clone(),
            answer_headers,
        }
    }
}

impl AsRef<Self> for Edge {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Buffers streams for clients that lose their connection. It wraps every route with a streaming
/// response.
#[async_trait]
pub trait StreamKeeper: Send + Sync {
    /// Answers a request that resumes a stream, sets [`RequestContext::sink`] for a request for a
    /// resumable stream, and forwards every other request.
    async fn around(
        &self,
        caller: Caller,
        context: RequestContext,
        request: Request,
        next: Next,
    ) -> Response;
}

/// Per-request handler state: the cluster with the rights of the request's principal. Without an
/// identified principal it has no rights.
#[derive(Clone)]
pub struct Caller {
    /// The cluster, with the principal's rights.
    pub cluster: ClusterHandle,
    /// Principal of the request.
    pub principal: Arc<Principal>,
    /// The edge's configuration.
    pub config: EdgeConfig,
    /// Authenticates principals.
    pub gate: Arc<Authenticator>,
    /// The memory for bodies.
    pub intake: Intake,
    /// The backends for which models may be registered.
    pub backends: BackendList,
    /// Records the headers of the response that depend on the answer.
    pub answer_headers: AnswerHeaders,
}

impl<S: AsRef<Edge> + Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let principal = parts.extensions.get::<Arc<Principal>>().cloned();
        let context = parts.extensions.get::<RequestContext>();
        let answer_headers = context.map(|context| context.answer_headers.clone());
        Ok(state.as_ref().caller(
            principal.unwrap_or_else(|| Arc::new(Principal::nobody())),
            &parts.headers,
            answer_headers.unwrap_or_default(),
        ))
    }
}

/// A caller with the state of its dialect.
#[derive(Clone)]
pub struct DialectCaller<S> {
    /// The caller.
    pub caller: Caller,
    /// The dialect's state.
    pub state: S,
}

impl<S> Deref for DialectCaller<S> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl<S: AsRef<Edge> + Clone + Send + Sync> FromRequestParts<S> for DialectCaller<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let state = state.clone();
        Ok(Self { caller, state })
    }
}

impl Caller {
    /// Owner of a resumable stream or a stored response.
    pub fn owner(&self) -> StreamOwner {
        StreamOwner {
            caller: self.principal.who().to_owned(),
            tenant: self.principal.tenant().cloned().unwrap_or_default(),
        }
    }
}
