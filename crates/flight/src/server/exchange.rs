//! Server side of one `DoExchange`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::{Schema, SchemaRef};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use tracing::Instrument;
use volley_proto::predict_command::PredictHead;
use volley_types::deadline::grpc_timeout;
use volley_types::{
    Checked, ChunkStream, Deadline, ErrorCode, Input, Intake, Predict, PredictError,
    PredictRequest, RequestId, Resolved, Task, TraceContext,
};

use super::FlightServerConfig;
use super::counted::MessageShare;
use super::incoming::{ExchangeInput, read_descriptor};
use crate::descriptor;
use crate::egress::{Coalesce, Encoder, RESPONSE_MESSAGE_BYTES};
use crate::status::to_status;
use crate::udf::caller::{self, CallTarget, Engine, UdfCaller};
use crate::udf::function::Function;
use crate::udf::{self, airport};

mod function;
mod passing;

/// Header of plain calls that corresponds to `pass_columns` of a command.
const PASS_COLUMNS: &str = "volley-pass-columns";

/// Maximum number of messages that wait for the connection.
const READY_MESSAGES: usize = 2;

/// Time for which the headers and the schema wait for the first rows, if the client allows it.
const FIRST_ROWS_WITHIN: Duration = Duration::from_millis(250);

/// Starts an exchange in its own task, so that it detects a client that does not read. It ends with
/// the returned stream, or with the error of `revoked`.
pub(super) fn start(
    predict: Arc<dyn Predict>,
    caller: UdfCaller,
    config: FlightServerConfig,
    request: Request<Streaming<FlightData>>,
    (place, revoked): (OwnedSemaphorePermit, BoxFuture<'static, PredictError>),
) -> ExchangeOutput {
    let (replies, messages) = mpsc::channel(READY_MESSAGES);
    let (metadata, extensions, requests) = request.into_parts();
    let taken = extensions.get::<MessageShare>().cloned();
    let taken = taken.unwrap_or_else(|| MessageShare::new(Intake::default().share()));
    let exchange = Exchange {
        predict,
        caller,
        config,
        replies,
        taken,
    };
    let task = tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = exchange.run(&metadata, requests) => outcome,
            error = revoked => Err(to_status(&error, None)),
        };
        drop(place);
        outcome
    });
    ExchangeOutput {
        gathered: VecDeque::new(),
        messages,
        task: Some(AbortOnDropHandle::new(task)),
    }
}

/// The response's messages, followed by the error that ended the exchange, if any. Dropping it
/// cancels the exchange.
pub struct ExchangeOutput {
    /// Messages that were already received.
    gathered: VecDeque<FlightData>,
    messages: mpsc::Receiver<FlightData>,
    task: Option<AbortOnDropHandle<Result<(), Status>>>,
}

impl ExchangeOutput {
    /// Waits a moment for the first rows, so that they and the schema are one write, and wake the
    /// client once.
    pub(super) async fn together(mut self) -> Self {
        let first_rows = async {
            while self.gathered.len() < READY_MESSAGES {
                let Some(message) = self.messages.recv().await else {
                    break;
                };
                self.gathered.push_back(message);
            }
        };
        // Later messages are sent separately.
        let _ = timeout(FIRST_ROWS_WITHIN, first_rows).await;
        self
    }
}

impl Stream for ExchangeOutput {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = self.gathered.pop_front() {
            return Poll::Ready(Some(Ok(message)));
        }
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(task) = self.task.as_mut() else {
            return Poll::Ready(None);
        };
        let outcome = ready!(task.poll_unpin(cx));
        self.task = None;
        Poll::Ready(match outcome {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(Err(status)),
            // Rows from before the panic have been sent; the client receives an error for the rest.
            Err(panic) => {
                let error = PredictError::internal("the exchange failed", panic);
                tracing::error!(error = %error.chain(), "exchange panicked");
                Some(Err(to_status(&error, None)))
            }
        })
    }
}

impl std::fmt::Debug for ExchangeOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExchangeOutput").finish_non_exhaustive()
    }
}

struct Exchange {
    predict: Arc<dyn Predict>,
    caller: UdfCaller,
    config: FlightServerConfig,
    replies: mpsc::Sender<FlightData>,
    taken: MessageShare,
}

/// Target of an exchange, from its descriptor and headers.
struct ExchangeTarget {
    head: PredictHead,
    /// The message with the descriptor and its other content.
    first: FlightData,
    /// The name in a path.
    name: String,
    target: CallTarget,
}

impl Exchange {
    async fn run(
        self,
        metadata: &MetadataMap,
        mut requests: Streaming<FlightData>,
    ) -> Result<(), Status> {
        let opened = timeout(self.config.open_timeout, read_descriptor(&mut requests)).await;
        let engine = self.caller.engine();
        let called = opened
            .unwrap_or_else(|_| {
                Err(PredictError::new(
                    ErrorCode::DeadlineExceeded,
                    "the client sent no descriptor in time",
                ))
            })
            .and_then(|(descriptor, first)| self.called(metadata, &descriptor, first))
            .map_err(|error| refuse(&error, None, engine))?;
        let request_id = called.head.request_id.clone();
        let engine = match called.target {
            CallTarget::Function(engine) => Some(engine),
            CallTarget::Rows | CallTarget::Undecided => None,
        };
        let span = tracing::info_span!(
            "exchange",
            request_id = %called.head.request_id,
            model = %called.head.model,
            traceparent = %called.head.trace,
        );
        self.bounded(called, requests)
            .instrument(span.clone())
            .await
            .map_err(|error| span.in_scope(|| refuse(&error, Some(&request_id), engine)))
    }

    fn called(
        &self,
        metadata: &MetadataMap,
        descriptor: &FlightDescriptor,
        first: FlightData,
    ) -> Result<Box<ExchangeTarget>, PredictError> {
        let now = Instant::now();
        let mut head = descriptor::head(descriptor, now)?;
        adopt_headers(&mut head, descriptor, metadata);
        // gRPC's deadline applies to the complete stream, regardless of the descriptor.
        if let Some(called) = metadata.get("grpc-timeout") {
            let given = called.to_str().ok().and_then(grpc_timeout);
            let given = given
                .ok_or_else(|| PredictError::invalid("metadata 'grpc-timeout' is malformed"))?;
            let given = Deadline::after(now, given);
            head.deadline = Some(head.deadline.map_or(given, |it| it.earlier(given)));
        }
        let longest = Deadline::after(now, self.config.max_exchange_time);
        head.deadline = Some(head.deadline.map_or(longest, |it| it.earlier(longest)));
        let name = descriptor::name(descriptor);
        let target = name.map_or(CallTarget::Rows, |name| self.caller.target(name));
        if target == CallTarget::Function(Engine::Airport) {
            airport::check_operation(&self.caller)?;
        }
        // Boxed, because each step of the exchange stores it.
        Ok(Box::new(ExchangeTarget {
            head,
            first,
            name: name.unwrap_or_default().to_owned(),
            target,
        }))
    }

    /// Handles everything after the descriptor, within the deadline.
    async fn bounded(
        &self,
        called: Box<ExchangeTarget>,
        requests: Streaming<FlightData>,
    ) -> Result<(), PredictError> {
        let Some(deadline) = called.head.deadline else {
            return self.answer(called, requests).await;
        };
        let answer = self.answer(called, requests);
        timeout_at(deadline.instant().into(), answer)
            .await
            .unwrap_or_else(|_| {
                Err(PredictError::new(
                    ErrorCode::DeadlineExceeded,
                    "the deadline passed before the model was done",
                ))
            })
    }

    /// Selects between rows and functions. Callers without a header are recognized by the names of
    /// their columns, which clients of functions send immediately.
    async fn answer(
        &self,
        called: Box<ExchangeTarget>,
        requests: Streaming<FlightData>,
    ) -> Result<(), PredictError> {
        let ExchangeTarget {
            mut head,
            first,
            name,
            target,
        } = *called;
        let marked = head.end_marker;
        if let (CallTarget::Function(engine), Some(function)) = (target, Function::builtin(&name)) {
            let args = function.args.clone();
            let incoming = ExchangeInput::new(requests, first, args, marked, self.taken.clone());
            let answer = self.answer_function(head, function, incoming, None, engine);
            return Box::pin(answer).await;
        }
        let resolved = self.predict.resolve(&head.model).await?;
        let signature = resolved.signature.clone();
        let input = signature.input.clone();
        let mut incoming = ExchangeInput::new(requests, first, input, marked, self.taken.clone());
        let (engine, schema) = match target {
            CallTarget::Rows => (None, None),
            CallTarget::Function(engine) => (Some(engine), None),
            CallTarget::Undecided => {
                let grace = self.config.function_grace;
                let schema = timeout(grace, incoming.schema()).await.ok().transpose()?;
                let schema = schema.flatten();
                let call = |schema| caller::is_call(schema, &signature);
                let is_call = schema.as_ref().is_some_and(|schema| call(schema));
                (is_call.then_some(Engine::ArrowUdf), schema)
            }
        };
        match engine {
            None => self.answer_rows(head, resolved, incoming, schema).await,
            Some(engine) => {
                let function = Function::of_model(&head.model, &signature, &mut head.parameters)?;
                let answer = self.answer_function(head, function, incoming, schema, engine);
                // Boxed separately: calls for rows need no memory for it.
                Box::pin(answer).await
            }
        }
    }

    /// Sends the schema before it reads the input, because many clients wait for it. `schema` is
    /// the request's schema, if it has been read already.
    async fn answer_rows(
        &self,
        head: PredictHead,
        resolved: Resolved,
        mut incoming: ExchangeInput,
        schema: Option<SchemaRef>,
    ) -> Result<(), PredictError> {
        let signature = &resolved.signature;
        if head.pass_columns {
            // Boxed separately: other calls need no memory for it.
            return Box::pin(self.answer_passing(head, &resolved, incoming, schema)).await;
        }
        let encoder = Encoder::new(RESPONSE_MESSAGE_BYTES);
        let mut encoder = encoder.leaving_out(head.columns_left_out);
        let answer = signature.answer(&head.parameters);
        self.send(encoder.schema(&answer)).await?;

        let schema = match schema {
            Some(schema) => Some(schema),
            None => incoming.schema().await?,
        };
        let Some(schema) = schema else {
            return no_rows(signature.task);
        };
        let fit = signature.fit(&schema)?;
        let grace = self.config.whole_request_grace;
        let Some((input, _incoming)) = incoming.rows(schema, grace).await? else {
            return no_rows(signature.task);
        };
        let mut request = within_exchange(head, fit.apply(input)?);
        request.resolved = Some(resolved);
        let chunks = self.predict.predict(request).await?;
        check_output(&chunks, &answer)?;
        self.send_chunks(chunks, &mut encoder).await
    }

    async fn send_chunks(
        &self,
        chunks: ChunkStream,
        encoder: &mut Encoder,
    ) -> Result<(), PredictError> {
        let mut messages = Vec::new();
        let mut chunks = Coalesce::for_reader(chunks, encoder);
        while let Some(batch) = chunks.next().await {
            encoder.batch(&batch?, &mut messages)?;
            for message in messages.drain(..) {
                self.send(message).await?;
            }
        }
        Ok(())
    }

    /// Sends `message` to the connection; waits for a slow reader up to the stall timeout.
    async fn send(&self, message: FlightData) -> Result<(), PredictError> {
        let message = match self.replies.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(message) | TrySendError::Closed(message)) => message,
        };
        match timeout(self.config.stall_timeout, self.replies.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_closed)) => Err(PredictError::new(
                ErrorCode::Cancelled,
                "the client disconnected",
            )),
            Err(_elapsed) => Err(PredictError::new(
                ErrorCode::Cancelled,
                "the client did not read its response for too long",
            )),
        }
    }
}

/// A request whose deadline the exchange enforces: see [`Exchange::bounded`].
fn within_exchange(head: PredictHead, input: impl Into<Checked<Input>>) -> PredictRequest {
    let mut request = head.with_input(input);
    request.caller_keeps_deadline = true;
    request
}

/// Plain calls may have trace and request id in headers; a command has its own.
fn adopt_headers(head: &mut PredictHead, descriptor: &FlightDescriptor, metadata: &MetadataMap) {
    if !descriptor.cmd.is_empty() {
        return;
    }
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    if let Some(trace) = text("traceparent").and_then(TraceContext::parse) {
        head.trace = trace;
    }
    head.pass_columns = text(PASS_COLUMNS) == Some("true");
    if let Some(id) = text("x-request-id").and_then(|id| RequestId::new(id).ok()) {
        head.request_id = id;
    }
}

/// Tables without rows get a response without rows; a generation without a prompt is an error.
fn no_rows(task: Task) -> Result<(), PredictError> {
    match task {
        Task::Generate => Err(PredictError::invalid(
            "the request holds no rows; send at least one with a prompt",
        )),
        Task::Events => Err(PredictError::invalid(
            "the request holds no rows; send at least one",
        )),
        _ => Ok(()),
    }
}

/// Checks the response against the schema that was already sent; another version may have been
/// deployed since.
fn check_output(chunks: &ChunkStream, told: &SchemaRef) -> Result<(), PredictError> {
    let columns = |schema: &Schema| -> Vec<_> {
        schema
            .fields()
            .iter()
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect()
    };
    let schema = chunks.schema();
    if Arc::ptr_eq(&schema, told) || columns(&schema) == columns(told) {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::Unavailable,
        "the model was replaced while the call began; try again",
    ))
}

fn refuse(error: &PredictError, request_id: Option<&RequestId>, engine: Option<Engine>) -> Status {
    let request_id_text = request_id.map(ToString::to_string).unwrap_or_default();
    tracing::info!(
        code = %error.code,
        error = %error.chain(),
        request_id = request_id_text,
        "exchange failed"
    );
    match engine {
        Some(engine) => udf::status::to_status(error, request_id, engine),
        None => to_status(error, request_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing() -> (mpsc::Sender<FlightData>, ExchangeOutput) {
        let (sender, messages) = mpsc::channel(READY_MESSAGES);
        let outgoing = ExchangeOutput {
            gathered: VecDeque::new(),
            messages,
            task: None,
        };
        (sender, outgoing)
    }

    fn message(name: &str) -> FlightData {
        FlightData::new().with_app_metadata(name.to_owned())
    }

    async fn names(outgoing: ExchangeOutput) -> Vec<String> {
        let text = |data: FlightData| String::from_utf8(data.app_metadata.to_vec()).unwrap();
        let messages = outgoing.map(|message| text(message.unwrap()));
        messages.collect().await
    }

    #[tokio::test(start_paused = true)]
    async fn the_schema_waits_for_the_first_rows() {
        let (sender, outgoing) = outgoing();
        sender.try_send(message("schema")).unwrap();
        let rows = async {
            tokio::time::sleep(FIRST_ROWS_WITHIN / 2).await;
            for name in ["rows", "more"] {
                sender.send(message(name)).await.unwrap();
            }
            drop(sender);
        };
        let (outgoing, ()) = tokio::join!(outgoing.together(), rows);
        assert_eq!(outgoing.gathered.len(), 2);
        assert_eq!(names(outgoing).await, ["schema", "rows", "more"]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_wait_for_long_nor_for_what_never_comes() {
        let (sender, late) = outgoing();
        sender.try_send(message("schema")).unwrap();
        let started = tokio::time::Instant::now();
        let late = late.together().await;
        assert_eq!(started.elapsed(), FIRST_ROWS_WITHIN);
        assert_eq!(late.gathered.len(), 1);
        sender.try_send(message("rows")).unwrap();
        drop(sender);
        assert_eq!(names(late).await, ["schema", "rows"]);

        let (sender, refused) = outgoing();
        drop(sender);
        let started = tokio::time::Instant::now();
        let refused = refused.together().await;
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert!(names(refused).await.is_empty());
    }
}
