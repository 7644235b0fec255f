//! A caller from outside the cluster: a key, TLS, and models as functions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::DataType;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use volley_flight::client::{Access, FlightClient, FlightClientConfig};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_security::Authenticator;
use volley_security::nodes::{Callers, incoming};
use volley_security::tls::{CertificateFiles, NodeFiles, NodeTls};
use volley_types::{ErrorCode, Predict};

use super::keys::registry_with_keys;
use super::support::{MODELS, Node, scripted, soon};

const TIMEOUT: Duration = Duration::from_secs(60);

fn column(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// An authority's certificate, and a coordinator's that it signed, in files.
fn certificates(folder: &Path) -> (String, NodeTls) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);

    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let uri = "volley://coordinator/1".try_into().unwrap();
    params.subject_alt_names.push(SanType::URI(uri));
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = NodeFiles {
        own: CertificateFiles {
            certificate: file("node.pem", &certificate),
            key: file("node.key", &key.serialize_pem()),
        },
        authority: file("authority.pem", &authority),
    };
    (authority, NodeTls::load(files).unwrap())
}

#[tokio::test]
async fn functions_are_found_and_called() {
    let node = Node::start().await;
    let config = FlightClientConfig::default();
    let client = FlightClient::outside(&node.address, config, Access::default()).unwrap();
    let functions = client.functions().await.unwrap();
    assert_eq!(functions.len(), MODELS.len());
    let double = client.function("double").await.unwrap();
    assert!(functions.contains(&double));
    assert_eq!(double.arguments, [DataType::Int64]);
    let values = [Some(1), None, Some(3)];
    let call = client.call("double", vec![column(&values)], 3, TIMEOUT);
    let values = soon("the values", call).await.unwrap();
    let values = values.as_struct().column_by_name("y").unwrap();
    assert_eq!(values.as_primitive::<Int64Type>().value(2), 6);

    let nobody = client.call("nobody", vec![], 1, TIMEOUT).await.unwrap_err();
    assert_eq!(nobody.code, ErrorCode::NotFound);
    let short = Duration::from_millis(200);
    let slow = client.call("drip", vec![column(&[Some(1), Some(2)])], 2, short);
    assert_eq!(slow.await.unwrap_err().code, ErrorCode::DeadlineExceeded);
    node.all_stopped().await;
}

#[tokio::test]
async fn a_key_goes_with_every_call_under_tls() {
    // Another test of this process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (authority, tls) = certificates(folder.path());
    let (registry, key) = registry_with_keys();
    let gate = Authenticator::keys(Arc::new(move || registry.clone()), None).unwrap();
    let service = FlightServer::new(Arc::new(scripted()), FlightServerConfig::default())
        .guarded(Arc::new(gate))
        .into_service();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let _serving = AbortOnDropHandle::new(tokio::spawn(async move {
        let connections = incoming(listener, Some((tls, Callers::NodesAndKeys)));
        let server = transport::server_builder().add_service(service);
        server.serve_with_incoming(connections).await.unwrap();
    }));
    let outside = |key: Option<String>, authority: &str| {
        let access = Access {
            key,
            authority: Some(authority.as_bytes().to_vec()),
        };
        assert!(
            !format!("{access:?}").contains("vly_"),
            "keys are not shown"
        );
        FlightClient::outside(&address, FlightClientConfig::default(), access).unwrap()
    };
    let key = Some(key.reveal().to_string());
    let known = outside(key.clone(), &authority);
    assert_eq!(known.models().await.len(), MODELS.len());
    assert_eq!(known.functions().await.unwrap().len(), MODELS.len());
    assert!(known.signature(&"double".parse().unwrap()).await.is_ok());
    let call = known.call("double", vec![column(&[Some(2)])], 1, TIMEOUT);
    assert_eq!(soon("the values", call).await.unwrap().len(), 1);

    let unknown = outside(None, &authority).functions().await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::Unauthenticated);
    let (other, _) = certificates(folder.path());
    let unproven = outside(key, &other).functions().await.unwrap_err();
    assert_eq!(unproven.code, ErrorCode::Unavailable);
}
