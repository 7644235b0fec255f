//! What every route of a node shares, and what a handler is given of it.
//!
//! [`Edge`] is the state of routers. Handlers do not see it: they get a [`Caller`], which has the
//! cluster with the rights of the request's principal, or a [`DialectCaller`], which has the
//! dialect's own state too.

use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::request::Parts;
use volley_security::{Gatekeeper, Principal};
use volley_types::{Control, Intake, StreamOwner};

use crate::answering::{AnsweredBy, Answering};
use crate::config::EdgeConfig;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::origins::Origins;

/// The state of a node's routers. A dialect with a state of its own wraps it
/// (`impl AsRef<Edge>`).
#[derive(Clone)]
pub(crate) struct Edge {
    control: Arc<dyn Control>,
    gate: Arc<Gatekeeper>,
    config: EdgeConfig,
    origins: Origins,
    intake: Intake,
    keeper: Option<Arc<dyn StreamKeeper>>,
}

impl Edge {
    /// An edge to `control` for the callers whom `gate` admits.
    pub(crate) fn new(
        control: Arc<dyn Control>,
        gate: Arc<Gatekeeper>,
        config: EdgeConfig,
    ) -> Self {
        Self {
            control,
            gate,
            config,
            origins: Origins::default(),
            intake: Intake::new(config.max_inflight_body_bytes),
            keeper: None,
        }
    }

    /// The same, open to pages of these origins.
    pub(crate) fn with_origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// The same, with this memory for the bodies of requests.
    pub(crate) fn with_intake(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    /// The same, with `keeper` for streams that outlive their connection.
    pub(crate) fn with_keeper(mut self, keeper: Arc<dyn StreamKeeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    pub(crate) fn gate(&self) -> Arc<Gatekeeper> {
        self.gate.clone()
    }

    pub(crate) fn config(&self) -> &EdgeConfig {
        &self.config
    }

    pub(crate) fn intake(&self) -> &Intake {
        &self.intake
    }

    pub(crate) fn origins(&self) -> &Origins {
        &self.origins
    }

    pub(crate) fn keeper(&self) -> Option<&Arc<dyn StreamKeeper>> {
        self.keeper.as_ref()
    }

    /// The caller of a request: the cluster with the rights of `principal`, and with the aliases
    /// that `headers` choose among.
    pub(crate) fn caller(
        &self,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        answered_by: AnsweredBy,
    ) -> Caller {
        let guarded = self
            .gate
            .guard_control(self.control.clone(), principal.clone());
        let registry = self.control.registry();
        let answering = Answering::new(guarded, registry, headers, answered_by.clone());
        Caller {
            control: Arc::new(answering),
            principal,
            config: self.config,
            gate: self.gate.clone(),
            intake: self.intake.clone(),
            answered_by,
        }
    }
}

impl AsRef<Self> for Edge {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Keeps streams for clients that lose their connection. It stands around every route whose answer
/// may be a stream.
#[async_trait]
pub(crate) trait StreamKeeper: Send + Sync {
    /// Answers a request that continues a kept stream, marks one that asks for a stream to be kept
    /// ([`RequestContext::sink`]), and passes every other request on.
    async fn around(
        &self,
        caller: Caller,
        context: RequestContext,
        request: Request,
        next: Next,
    ) -> Response;
}

/// What a handler works with: the cluster, with the rights of the request's principal. Of nobody,
/// where no check identified one.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) config: EdgeConfig,
    pub(crate) gate: Arc<Gatekeeper>,
    pub(crate) intake: Intake,
    pub(crate) answered_by: AnsweredBy,
}

impl<S: AsRef<Edge> + Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let principal = parts.extensions.get::<Arc<Principal>>().cloned();
        let context = parts.extensions.get::<RequestContext>();
        let answered_by = context.map(|context| context.answered_by.clone());
        Ok(state.as_ref().caller(
            principal.unwrap_or_else(|| Arc::new(Principal::nobody())),
            &parts.headers,
            answered_by.unwrap_or_default(),
        ))
    }
}

/// A caller, with the state of the dialect that it speaks.
#[derive(Clone)]
pub(crate) struct DialectCaller<S> {
    pub(crate) caller: Caller,
    pub(crate) state: S,
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
    /// Who begins a stream or a response that is kept.
    pub(crate) fn owner(&self) -> StreamOwner {
        StreamOwner {
            caller: self.principal.who().to_owned(),
            tenant: self.principal.tenant().cloned().unwrap_or_default(),
        }
    }
}
