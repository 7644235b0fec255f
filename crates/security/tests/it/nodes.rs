use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use volley_security::certificate::CertificateUse;
use volley_security::nodes::{Callers, Dialer, NodeKind, NodeStream, Peer, incoming, only};
use volley_security::tls::{CertificateFiles, NodeFiles, NodeTls};
use volley_types::{ErrorCode, NodeIdentity};

use crate::certificates::{Authority, Files};

const SOON: Duration = Duration::from_secs(60);
const COORDINATOR: &str = "volley://coordinator/1";
const WORKER: &str = "volley://worker/w1";

fn load(files: &Files) -> NodeTls {
    let files = NodeFiles {
        own: CertificateFiles {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
        },
        authority: files.authority.clone(),
    };
    NodeTls::load(files).unwrap()
}

fn node(authority: &Authority, folder: &Path, uri: &str) -> NodeTls {
    load(&authority.write(folder, &uri.replace('/', "_"), Some(uri)))
}

/// A listener, and the results of its connections.
struct TestListener {
    address: String,
    accepted: tokio::sync::mpsc::Receiver<NodeStream>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for TestListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestListener {
    async fn open(tls: NodeTls, callers: Callers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, accepted) = tokio::sync::mpsc::channel(8);
        let task = tokio::spawn(async move {
            let mut incoming = std::pin::pin!(incoming(listener, Some((tls, callers))));
            while let Some(Ok(stream)) = incoming.next().await {
                if sender.send(stream).await.is_err() {
                    return;
                }
            }
        });
        Self {
            address,
            accepted,
            task,
        }
    }

    async fn peer(&mut self) -> Peer {
        let stream = tokio::time::timeout(SOON, self.accepted.recv()).await;
        stream.unwrap().unwrap().connect_info()
    }

    async fn call(&self, dialer: &Dialer, kind: NodeKind) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let called = tokio::time::timeout(SOON, dialer.connect(&endpoint, kind)).await;
        called.unwrap().map_err(|error| format!("{error:?}"))
    }
}

#[tokio::test]
async fn nodes_know_each_other_by_their_certificates() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let worker = node(&authority, folder.path(), WORKER);
    let mut listener = TestListener::open(coordinator, Callers::Nodes).await;
    let dialer = Dialer::tls(worker);
    let _channel = listener.call(&dialer, NodeKind::Coordinator).await.unwrap();
    let peer = listener.peer().await;
    assert_eq!(peer.identity, NodeIdentity::from_uri(WORKER));
    let refused = listener.call(&dialer, NodeKind::Worker).await.unwrap_err();
    assert!(refused.contains("not of the expected kind"), "{refused}");
}

#[tokio::test]
async fn a_stranger_gets_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let strange = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let stranger = node(&Authority::new(), strange.path(), WORKER);
    let listener = TestListener::open(coordinator.clone(), Callers::Nodes).await;
    let refused = listener
        .call(&Dialer::tls(stranger.clone()), NodeKind::Coordinator)
        .await;
    assert!(refused.is_err(), "a client of another authority");

    let listener = TestListener::open(stranger, Callers::Nodes).await;
    let refused = listener
        .call(&Dialer::tls(coordinator), NodeKind::Worker)
        .await;
    assert!(refused.is_err(), "a server of another authority");
}

#[tokio::test]
async fn a_certificate_that_has_ended_opens_nothing_and_is_not_called() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let ended = load(&authority.write_until(folder.path(), "ended", Some(WORKER), 2020));
    let other = node(&authority, folder.path(), "volley://worker/w2");
    let mut listener = TestListener::open(coordinator.clone(), Callers::NodesAndKeys).await;
    // With TLS 1.3, a client may learn of the rejection only when it reads.
    let _heard_later = listener
        .call(&Dialer::tls(ended.clone()), NodeKind::Coordinator)
        .await;
    let call = listener
        .call(&Dialer::tls(other), NodeKind::Coordinator)
        .await;
    let _channel = call.unwrap();
    let first = listener.peer().await.identity;
    assert_eq!(first, NodeIdentity::from_uri("volley://worker/w2"));

    let listener = TestListener::open(ended, Callers::Nodes).await;
    let refused = listener
        .call(&Dialer::tls(coordinator), NodeKind::Worker)
        .await;
    assert!(refused.is_err(), "a server whose certificate has ended");
}

#[tokio::test]
async fn every_connection_shows_its_certificate_anew() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let worker = authority.write(folder.path(), "worker", Some(WORKER));
    let mut listener = TestListener::open(coordinator, Callers::Nodes).await;
    // A client that resumes its session if possible.
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(&worker.authority).unwrap();
    roots.add(trusted).unwrap();
    let own = CertificateDer::from_pem_file(&worker.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&worker.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![own], key);
    let mut config = config.unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    for _ in 0..2 {
        let socket = TcpStream::connect(&listener.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, socket).await.unwrap();
        let mut accepted = listener.accepted.recv().await.unwrap();
        accepted.write_all(b"x").await.unwrap();
        accepted.flush().await.unwrap();
        // Session tickets arrive before this byte.
        stream.read_exact(&mut [0]).await.unwrap();
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn slow_handshakes_hold_up_nobody_else() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let worker = node(&authority, folder.path(), WORKER);
    let mut listener = TestListener::open(coordinator, Callers::Nodes).await;
    // More connections than handshakes that run at the same time.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&listener.address).await.unwrap());
    }
    let began = std::time::Instant::now();
    let called = listener
        .call(&Dialer::tls(worker), NodeKind::Coordinator)
        .await;
    called.unwrap();
    let waited = began.elapsed();
    assert!(
        waited < Duration::from_secs(9),
        "one of the silent ones has ended: {waited:?}"
    );
    assert!(listener.peer().await.identity.is_some());
}

#[tokio::test]
async fn a_renewed_certificate_is_used_and_a_broken_one_is_not() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let coordinator = node(&authority, folder.path(), COORDINATOR);
    let mut listener = TestListener::open(coordinator, Callers::Nodes).await;
    let files = authority.write(folder.path(), "worker", Some(WORKER));
    let worker = load(&files);
    let dialer = Dialer::tls(worker.clone());
    assert!(!worker.refresh().unwrap());
    let end = |what| worker.ends().into_iter().find(|(it, _)| *it == what);
    let (node, signer) = (end(CertificateUse::Node), end(CertificateUse::Authority));
    assert!(node.is_some() && signer.is_some());

    authority.write_until(folder.path(), "worker", Some("volley://worker/w2"), 4_090);
    assert!(worker.refresh().unwrap());
    assert!(end(CertificateUse::Node).unwrap().1 < node.unwrap().1);
    assert_eq!(end(CertificateUse::Authority), signer);
    let _channel = listener.call(&dialer, NodeKind::Coordinator).await.unwrap();
    let peer = listener.peer().await;
    assert_eq!(peer.identity, NodeIdentity::from_uri("volley://worker/w2"));

    std::fs::write(&files.certificate, "half a cert").unwrap();
    assert!(worker.refresh().is_err());
    let _channel = listener.call(&dialer, NodeKind::Coordinator).await.unwrap();
    assert!(listener.peer().await.identity.is_some());
}

#[test]
fn a_certificate_without_an_identity_is_refused_at_the_start() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.write(folder.path(), "anybody", None);
    let files = NodeFiles {
        own: CertificateFiles {
            certificate: files.certificate,
            key: files.key,
        },
        authority: files.authority,
    };
    let refused = NodeTls::load(files).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    assert!(refused.message.contains("volley://worker/NAME"));
}

#[test]
fn services_for_nodes_take_only_nodes_of_their_kind() {
    let call = |identity: Option<&str>| {
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(Peer {
            address: None,
            identity: identity.and_then(NodeIdentity::from_uri),
        });
        request
    };
    let removed = Arc::new(AtomicBool::new(false));
    let looked = removed.clone();
    let is_valid = Arc::new(move |_: &NodeIdentity| !looked.load(Ordering::Relaxed));
    let check = only(NodeKind::Coordinator, true, is_valid);
    assert!(check(call(Some(COORDINATOR))).is_ok());
    // The certificate is checked for each call.
    removed.store(true, Ordering::Relaxed);
    let refused = check(call(Some(COORDINATOR))).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().contains("not in the cluster"));
    removed.store(false, Ordering::Relaxed);
    assert!(check(call(Some(COORDINATOR))).is_ok());
    let worker = check(call(Some(WORKER))).unwrap_err();
    assert_eq!(worker.code(), tonic::Code::PermissionDenied);
    for request in [call(None), tonic::Request::new(())] {
        let refused = check(request).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }
    let plain = only(NodeKind::Coordinator, false, Arc::new(|_| false));
    assert!(plain(call(None)).is_ok());
}
