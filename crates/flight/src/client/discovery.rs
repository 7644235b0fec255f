//! Which models a node has, and their signatures.

use std::future::Future;
use std::time::Instant;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Criteria, FlightInfo};
use futures::{StreamExt, TryStreamExt};
use tokio::time::timeout_at;
use tonic::Status;
use tonic::transport::Channel;
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Signature};

use crate::status::from_status;
use crate::{describe, descriptor, ingress};

/// The most models that one node may list.
const MAX_MODELS: usize = 100_000;

pub(super) async fn signature(
    mut service: FlightServiceClient<Channel>,
    model: &ModelRef,
    by: Instant,
) -> Result<Signature, PredictError> {
    let info = within(by, service.get_flight_info(descriptor::of_model(model)))
        .await?
        .into_inner();
    ingress::decode_schema_bytes(&info.schema)
        .ok()
        .and_then(|schema| describe::signature_of(&schema))
        .ok_or_else(|| {
            PredictError::new(
                ErrorCode::Internal,
                "the node described the model in a form that cannot be read",
            )
        })
}

pub(super) async fn models(
    mut service: FlightServiceClient<Channel>,
    by: Instant,
) -> Result<Vec<ModelName>, PredictError> {
    let infos: Vec<FlightInfo> = within(by, async {
        let infos = service
            .list_flights(Criteria::default())
            .await?
            .into_inner();
        infos.take(MAX_MODELS).try_collect().await
    })
    .await?;
    Ok(infos
        .into_iter()
        .filter_map(|info| ModelName::new(info.flight_descriptor?.path.into_iter().next()?).ok())
        .collect())
}

async fn within<T>(
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
