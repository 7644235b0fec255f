//! TLS for clients (with a certificate of any CA that they trust), and between nodes (both sides
//! present a certificate of the cluster's CA with the identity of the node).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use volley_types::{NodeIdentity, PredictError};

use crate::certificate::{CertificateUse, first_end, last_end};
use crate::live::Live;

/// Time limit of a handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks of certificate files.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate and its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// TLS for REST clients. Clones share their state.
#[derive(Clone, Debug)]
pub struct EdgeTls(Arc<Live<EdgeConfig>>);

/// Configuration built from the edge's files.
#[derive(Debug)]
struct EdgeConfig {
    server: Arc<ServerConfig>,
    ends: Option<SystemTime>,
}

impl EdgeTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `InvalidInput` when the files are not usable, `TooLarge` when one exceeds 1 MiB.
    pub fn load(files: CertificateFiles) -> Result<Self, PredictError> {
        let build = |contents: &[Vec<u8>]| {
            let (chain, key) = certificate(&contents[0], &contents[1])?;
            let ends = first_end(&chain);
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(unusable)?;
            let mut config = config
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .map_err(unusable)?;
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let server = Arc::new(config);
            Ok(EdgeConfig { server, ends })
        };
        Live::load(vec![files.certificate, files.key], build).map(Self)
    }

    /// Performs the handshake with a client, using the latest certificate. Dropping the future
    /// aborts the handshake and closes `io`.
    ///
    /// # Errors
    /// When the handshake fails, or takes longer than 10 s.
    pub async fn accept<IO>(&self, io: IO) -> std::io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.0.current().server.clone());
        tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(io)).await?
    }

    /// Expiry of the certificate in use, or of its issuer if that is earlier.
    #[must_use]
    pub fn ends(&self) -> Option<SystemTime> {
        self.0.current().ends
    }

    /// Reloads changed files every `interval`, forever. Cancel safe.
    pub async fn keep_fresh(self, interval: Duration) {
        self.0.keep_fresh("the edge's certificate", interval).await;
    }
}

/// The files of a node's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFiles {
    /// The node's certificate, with its identity as a URI name.
    pub own: CertificateFiles,
    /// The certificates of the cluster's CA.
    pub authority: PathBuf,
}

/// Configuration built from [`NodeFiles`].
pub(crate) struct NodeConfigs {
    pub(crate) identity: NodeIdentity,
    /// Requires a node certificate from clients.
    pub(crate) strict: Arc<ServerConfig>,
    /// Accepts clients without a certificate.
    pub(crate) lenient: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    /// Purposes and expiry times of the certificates.
    ends: Vec<(CertificateUse, SystemTime)>,
}

/// TLS between nodes. Clones share their state.
#[derive(Clone, Debug)]
pub struct NodeTls(pub(crate) Arc<Live<NodeConfigs>>);

impl NodeTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `InvalidInput` when the files are not usable or the certificate has no node identity,
    /// `TooLarge` when a file exceeds 1 MiB.
    pub fn load(files: NodeFiles) -> Result<Self, PredictError> {
        let paths = vec![files.own.certificate, files.own.key, files.authority];
        Live::load(paths, |contents| {
            node_configs(&contents[0], &contents[1], &contents[2])
        })
        .map(Self)
    }

    /// The identity in the node's certificate.
    #[must_use]
    pub fn identity(&self) -> NodeIdentity {
        self.0.current().identity.clone()
    }

    /// Expiry times of the certificate in use and of the cluster's CA.
    #[must_use]
    pub fn ends(&self) -> Vec<(CertificateUse, SystemTime)> {
        self.0.current().ends.clone()
    }

    /// Reloads changed files every `interval`, forever. Cancel safe.
    pub async fn keep_fresh(self, interval: Duration) {
        self.0.keep_fresh("the node's certificate", interval).await;
    }

    /// Reloads the files now if they have changed, and returns whether they have. Blocks on disk
    /// reads.
    ///
    /// # Errors
    /// As for [`NodeTls::load`]; the previous certificate stays in use.
    pub fn refresh(&self) -> Result<bool, PredictError> {
        self.0.refresh()
    }
}

/// The node identity in a certificate, if it has one.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Option<NodeIdentity> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_uri_names();
    names.find_map(NodeIdentity::from_uri)
}

fn node_configs(
    certificate_pem: &[u8],
    key_pem: &[u8],
    authority_pem: &[u8],
) -> Result<NodeConfigs, PredictError> {
    let (chain, key) = certificate(certificate_pem, key_pem)?;
    let identity = chain.first().and_then(identity_of).ok_or_else(|| {
        PredictError::invalid(
            "the node's certificate has no identity; give it a URI name such as \
             volley://coordinator/1 or volley://worker/NAME",
        )
    })?;
    let signers = authorities(authority_pem)?;
    let ends = [
        (CertificateUse::Node, first_end(&chain)),
        (CertificateUse::Authority, last_end(&signers)),
    ];
    let ends = ends
        .into_iter()
        .filter_map(|(what, end)| Some((what, end?)));
    let roots = Arc::new(trusted(signers)?);
    let server = |lenient: bool| -> Result<Arc<ServerConfig>, PredictError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let verifier = match lenient {
            true => verifier.allow_unauthenticated(),
            false => verifier,
        };
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier.build().map_err(unusable)?)
            .with_single_cert(chain.clone(), key.clone_key());
        let mut config = config.map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // No session resumption: a resumed session skips the certificate check, and the certificate
        // may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    };
    let verifier = NodeVerifier {
        algorithms: provider().signature_verification_algorithms,
        roots: roots.clone(),
    };
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain.clone(), key.clone_key());
    let mut client = client.map_err(unusable)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    Ok(NodeConfigs {
        identity,
        strict: server(false)?,
        lenient: server(true)?,
        client: Arc::new(client),
        ends: ends.collect(),
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificate(
    certificate_pem: &[u8],
    key_pem: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PredictError> {
    let chain = CertificateDer::pem_slice_iter(certificate_pem).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(unusable)?;
    Ok((chain.map_err(unusable)?, key))
}

fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PredictError> {
    let authorities = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    authorities.map_err(unusable)
}

fn trusted(authorities: Vec<CertificateDer<'static>>) -> Result<RootCertStore, PredictError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(unusable)?;
    }
    if roots.is_empty() {
        return Err(PredictError::invalid(
            "the authority file holds no certificate",
        ));
    }
    Ok(roots)
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> PredictError {
    PredictError::invalid(
        "a certificate or its key cannot be used; check that both are PEM and belong together",
    )
    .with_source(error)
}

/// Accepts the certificate of any node of the cluster. It verifies identities and not addresses, so
/// that a node can change its address without a new certificate.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        match identity_of(end_entity) {
            Some(_) => Ok(ServerCertVerified::assertion()),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
