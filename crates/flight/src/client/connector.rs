//! Checks a connector on a worker.

use std::time::{Duration, Instant};

use arrow_flight::Action;
use async_trait::async_trait;
use futures::TryStreamExt;
use prost::Message;
use tokio::time::timeout_at;
use tonic::Request;
use volley_proto::registry_records::connector_to_wire;
use volley_types::registry::ConnectorSpec;
use volley_types::{CheckConnector, ErrorCode, PredictError};

use super::FlightClient;
use crate::CHECK_CONNECTOR;
use crate::status::from_status;

/// Time limit of a test call to the connector's server.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

#[async_trait]
impl CheckConnector for FlightClient {
    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<(), PredictError> {
        let mut body = vec![u8::from(test)];
        body.extend(connector_to_wire(connector).encode_to_vec());
        let mut call = Request::new(Action {
            r#type: CHECK_CONNECTOR.to_owned(),
            body: body.into(),
        });
        *call.metadata_mut() = self.headers();
        let longer = if test { TEST_TIMEOUT } else { Duration::ZERO };
        let by = self.accept_by(Instant::now()) + longer;
        let mut service = self.service();
        let answer = async {
            let results = service.do_action(call).await?.into_inner();
            results.try_for_each(|_| std::future::ready(Ok(()))).await
        };
        let late = |_| {
            let message = "the worker did not check the connector in time";
            PredictError::new(ErrorCode::DeadlineExceeded, message)
        };
        let answered = timeout_at(by.into(), answer).await.map_err(late)?;
        answered.map_err(from_status)
    }
}
