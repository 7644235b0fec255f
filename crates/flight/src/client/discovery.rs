//! Models of a node and their signatures.

use std::future::Future;
use std::time::Instant;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Criteria, FlightInfo};
use futures::{StreamExt, TryStreamExt};
use tokio::time::timeout_at;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Signature};

use crate::status::from_status;
use crate::{describe, descriptor, ingress};

/// The most models that one node may list.
const MAX_MODELS: usize = 100_000;

pub(super) async fn signature(
    mut service: FlightServiceClient<Channel>,
    model: &ModelRef,
    headers: MetadataMap,
    by: Instant,
) -> Result<Signature, PredictError> {
    let mut call = Request::new(descriptor::command_of(model));
    *call.metadata_mut() = headers;
    let info = within(by, service.get_flight_info(call)).await?;
    let info = info.into_inner();
    ingress::decode_schema_bytes(&info.schema)
        .ok()
        .and_then(|schema| describe::signature_of(&schema))
        .ok_or_else(|| {
            PredictError::new(
                ErrorCode::Internal,
                "the node returned a malformed description of the model",
            )
        })
}

pub(super) async fn models(
    service: FlightServiceClient<Channel>,
    headers: MetadataMap,
    by: Instant,
) -> Result<Vec<ModelName>, PredictError> {
    let infos = listed(service, headers, by).await?;
    Ok(infos
        .into_iter()
        .filter_map(|info| ModelName::new(info.flight_descriptor?.path.into_iter().next()?).ok())
        .collect())
}

/// The node's list for a caller with these headers.
pub(super) async fn listed(
    mut service: FlightServiceClient<Channel>,
    headers: MetadataMap,
    by: Instant,
) -> Result<Vec<FlightInfo>, PredictError> {
    let mut call = Request::new(Criteria::default());
    *call.metadata_mut() = headers;
    within(by, async {
        let infos = service.list_flights(call).await?.into_inner();
        infos.take(MAX_MODELS).try_collect().await
    })
    .await
}

pub(super) async fn within<T>(
    by: Instant,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, PredictError> {
    timeout_at(by.into(), call)
        .await
        .map_err(|_| {
            PredictError::new(
                ErrorCode::Unavailable,
                "the node did not describe its models in time; try again",
            )
        })?
        .map_err(from_status)
}
