//! Exchanges of a node whose certificate is revoked while they run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Request;
use tonic::service::interceptor::InterceptedService;
use volley_flight::client::{FlightClient, FlightClientConfig};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_security::nodes::Peer;
use volley_types::{ErrorCode, NodeId, NodeIdentity, Predict};

use super::support::{column, request, scripted, soon};

#[tokio::test]
async fn an_exchange_ends_when_the_certificate_of_its_node_is_revoked() {
    let caller = NodeIdentity::Coordinator(NodeId(2));
    let (model, revoked) = (Arc::new(scripted()), CancellationToken::new());
    let (expected, told) = (caller.clone(), revoked.clone());
    let revocation = move |node| {
        assert_eq!(node, expected);
        Box::pin(told.clone().cancelled_owned()) as _
    };
    let server = FlightServer::new(model.clone(), FlightServerConfig::default());
    let server = server.ending_at(Arc::new(revocation)).into_service();
    let service = InterceptedService::new(server, move |mut request: Request<()>| {
        let identity = Some(caller.clone());
        let peer = Peer {
            address: None,
            identity,
        };
        request.extensions_mut().insert(peer);
        Ok(request)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let _serving = AbortOnDropHandle::new(tokio::spawn(async move {
        transport::server_builder()
            .add_service(service)
            .serve_with_incoming(transport::incoming(listener))
            .await
            .unwrap();
    }));
    let client = FlightClient::new(&address, FlightClientConfig::default()).unwrap();
    let mut answer = client.predict(request("drip", &[1])).await.unwrap();
    let first = soon("the first row", answer.next()).await.unwrap();
    assert_eq!(column(&first.unwrap(), "y"), [0]);
    revoked.cancel();
    let error = soon("the end of the exchange", answer.next()).await;
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::PermissionDenied);
    assert!(error.message.contains("left the cluster"), "{error}");
    assert!(soon("nothing more", answer.next()).await.is_none());
    soon("the model's stream is dropped", async {
        while model.running.load(Ordering::SeqCst) != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // No call that comes later gets anywhere either; a caller without a certificate has none that
    // could be revoked.
    let late = async {
        let mut late = client.predict(request("drip", &[1])).await?;
        while let Some(batch) = late.next().await {
            batch?;
        }
        Ok::<_, volley_types::PredictError>(())
    };
    let late = soon("the end of the late call", late).await;
    assert_eq!(late.unwrap_err().code, ErrorCode::PermissionDenied);
}
