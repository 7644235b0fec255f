//! The Flight server: any [`Predict`] as a gRPC service.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaResult,
    Ticket,
};
use async_trait::async_trait;
use futures::Stream;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};
use volley_security::Authenticator;
use volley_security::nodes::Peer;
use volley_types::{CheckConnector, ErrorCode, Intake, NodeIdentity, Predict, PredictError};

pub(crate) mod counted;
mod discovery;
mod exchange;
mod incoming;
mod service;

pub use self::service::FlightGrpcService;
use crate::status::to_status;
use crate::udf::{self, caller::UdfCaller};
use crate::{CHECK_CONNECTOR, TOGETHER};

/// Limits of a [`FlightServer`].
#[derive(Clone, Debug)]
pub struct FlightServerConfig {
    /// Maximum number of concurrent exchanges over all connections; further ones are rejected as
    /// overloaded.
    pub max_exchanges: usize,
    /// Time limit for the descriptor.
    pub open_timeout: Duration,
    /// Maximum duration of an exchange, regardless of its deadline.
    pub max_exchange_time: Duration,
    /// Time for which a client may leave a message unread before its exchange is aborted.
    pub stall_timeout: Duration,
    /// Time for which the first record batch waits for the end of the input, if it has no end
    /// marker. A complete request can be retried on another replica.
    pub whole_request_grace: Duration,
    /// Time for which a call by path waits for the request's schema, whose column names distinguish
    /// calls for rows and for functions. After that it counts as a call for rows.
    pub function_grace: Duration,
}

impl Default for FlightServerConfig {
    fn default() -> Self {
        Self {
            max_exchanges: 8192,
            open_timeout: Duration::from_secs(10),
            max_exchange_time: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(60),
            whole_request_grace: Duration::from_millis(2),
            function_grace: Duration::from_secs(1),
        }
    }
}

/// Returns a future that completes when the certificate of a node is no longer valid for calls.
pub type Revocation = Arc<dyn Fn(NodeIdentity) -> BoxFuture<'static, ()> + Send + Sync>;

/// Serves the Flight contract over a [`Predict`].
#[derive(Clone)]
pub struct FlightServer {
    predict: Arc<dyn Predict>,
    config: FlightServerConfig,
    places: Arc<Semaphore>,
    gate: Arc<Authenticator>,
    intake: Intake,
    connectors: Option<Arc<dyn CheckConnector>>,
    revocation: Option<Revocation>,
}

impl FlightServer {
    /// A server for all callers, without authentication; see [`FlightServer::guarded`].
    #[must_use]
    pub fn new(predict: Arc<dyn Predict>, config: FlightServerConfig) -> Self {
        let places = config.max_exchanges.min(Semaphore::MAX_PERMITS);
        Self {
            predict,
            config,
            places: Arc::new(Semaphore::new(places)),
            gate: Arc::new(Authenticator::open()),
            intake: Intake::default(),
            connectors: None,
            revocation: None,
        }
    }

    /// Aborts the exchanges of a node when `revocation` of its certificate completes.
    #[must_use]
    pub fn ending_at(mut self, revocation: Revocation) -> Self {
        self.revocation = Some(revocation);
        self
    }

    /// Enables checks of connectors with `connectors`. Only for nodes whose callers are
    /// coordinators.
    #[must_use]
    pub fn checking(mut self, connectors: Arc<dyn CheckConnector>) -> Self {
        self.connectors = Some(connectors);
        self
    }

    /// Limits the memory of all calls' messages to `intake`. A message counts from its first byte
    /// until its rows are read. Calls above the limit are rejected as overloaded.
    #[must_use]
    pub fn taking_in(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    pub(crate) fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Requires authentication by `gate`, with the `authorization` header (`Bearer` or `Basic`) of
    /// each call or a node's certificate, and applies the caller's rights.
    #[must_use]
    pub fn guarded(mut self, gate: Arc<Authenticator>) -> Self {
        self.gate = gate;
        self
    }

    /// The caller of `request`, and a predictor with its rights.
    fn admit<T>(&self, request: &Request<T>) -> Result<(Arc<dyn Predict>, UdfCaller), Status> {
        let caller = UdfCaller::of(request.metadata()).map_err(|error| to_status(&error, None))?;
        match self.identify(request) {
            Ok(predict) => Ok((predict, caller)),
            Err(error) => Err(render(&error, &caller)),
        }
    }

    fn identify<T>(&self, request: &Request<T>) -> Result<Arc<dyn Predict>, PredictError> {
        let headers = request.metadata().clone().into_headers();
        let peer = request.extensions().get::<Peer>();
        let node = peer.and_then(|peer| peer.identity.as_ref());
        let address = peer.and_then(|peer| Some(peer.address?.ip()));
        let principal = Arc::new(self.gate.identify_call(&headers, node, address)?);
        Ok(self.gate.guard_inference(self.predict.clone(), principal))
    }

    /// Completes with an error when the peer's certificate is revoked. It never completes for
    /// callers that are not nodes.
    fn revoked<T>(&self, request: &Request<T>) -> BoxFuture<'static, PredictError> {
        let peer = request.extensions().get::<Peer>();
        let node = peer.and_then(|peer| peer.identity.clone());
        let Some((revocation, node)) = self.revocation.as_ref().zip(node) else {
            return Box::pin(std::future::pending());
        };
        let revoked = revocation(node.clone());
        Box::pin(async move {
            revoked.await;
            PredictError::new(
                ErrorCode::PermissionDenied,
                format!(
                    "the certificate of {node} is no longer valid for calls: the node left the \
                     cluster during this call"
                ),
            )
        })
    }

    /// The service to add to [`crate::transport::server_builder`], with message limits set.
    #[must_use]
    pub fn into_service(self) -> FlightGrpcService {
        FlightGrpcService::new(self)
    }
}

impl std::fmt::Debug for FlightServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlightServer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Renders an error in the format of the caller.
fn render(error: &PredictError, caller: &UdfCaller) -> Status {
    match caller.engine() {
        Some(engine) => udf::status::to_status(error, None, engine),
        None => to_status(error, None),
    }
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn not_offered<T>(what: &str) -> Result<T, Status> {
    let error = PredictError::new(
        ErrorCode::Unimplemented,
        format!("{what}; use DoExchange to predict"),
    );
    Err(to_status(&error, None))
}

#[async_trait]
impl arrow_flight::flight_service_server::FlightService for FlightServer {
    type HandshakeStream = Replies<HandshakeResponse>;
    type ListFlightsStream = Replies<FlightInfo>;
    type DoGetStream = Replies<FlightData>;
    type DoPutStream = Replies<PutResult>;
    type DoActionStream = Replies<ActionResult>;
    type ListActionsStream = Replies<ActionType>;
    type DoExchangeStream = exchange::ExchangeOutput;

    /// Returns headers immediately for every call: everything else, including errors, is in the
    /// stream. On request of the client, the headers wait for the first rows.
    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (predict, caller) = self.admit(&request)?;
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let error = PredictError::new(
                ErrorCode::Overloaded,
                "this node runs its limit of concurrent exchanges; try again",
            )
            .with_retry_after(Duration::from_secs(1));
            return Err(render(&error, &caller));
        };
        let config = self.config.clone();
        let together = request.metadata().contains_key(TOGETHER);
        let revoked = self.revoked(&request);
        let replies = exchange::start(predict, caller, config, request, (place, revoked));
        Ok(Response::new(if together {
            replies.together().await
        } else {
            replies
        }))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let (predict, caller) = self.admit(&request)?;
        discovery::flight_info(predict.as_ref(), &request.into_inner(), &caller)
            .await
            .map(Response::new)
            .map_err(|error| render(&error, &caller))
    }

    async fn get_schema(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        let (predict, caller) = self.admit(&request)?;
        discovery::schema(predict.as_ref(), &request.into_inner(), &caller)
            .await
            .map(Response::new)
            .map_err(|error| render(&error, &caller))
    }

    async fn list_flights(
        &self,
        request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        let (predict, caller) = self.admit(&request)?;
        let flights = discovery::flights(predict, caller).await;
        Ok(Response::new(Box::pin(flights)))
    }

    async fn do_action(
        &self,
        request: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        let (predict, caller) = self.admit(&request)?;
        let action = request.into_inner();
        let acted = match (&self.connectors, action.r#type.as_str()) {
            (Some(connectors), CHECK_CONNECTOR) => {
                discovery::check_connector(connectors.as_ref(), &action.body).await
            }
            _ => discovery::act(predict.as_ref(), &action).await,
        };
        acted
            .map(|body| {
                let result = ActionResult { body };
                Response::new(Box::pin(futures::stream::iter([Ok(result)])) as _)
            })
            .map_err(|error| render(&error, &caller))
    }

    async fn list_actions(
        &self,
        request: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        self.admit(&request)?;
        let actions = discovery::actions().map(Ok);
        Ok(Response::new(Box::pin(futures::stream::iter(actions))))
    }

    async fn handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        not_offered("this service does not support Handshake")
    }

    async fn poll_flight_info(
        &self,
        _request: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        not_offered("this service does not support PollFlightInfo")
    }

    async fn do_get(
        &self,
        _request: Request<Ticket>,
    ) -> Result<Response<Self::DoGetStream>, Status> {
        not_offered("this service does not support DoGet")
    }

    async fn do_put(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        not_offered("this service does not support DoPut")
    }
}
