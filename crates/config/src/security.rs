//! The section `[security]` of a node's file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::values::Count;

/// The section `[security]` of a coordinator.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorSecurity {
    /// File with the first API key, which has the role `cluster-admin`. With a bootstrap key, every
    /// caller needs a key. You can also set the key in `VOLLEY_BOOTSTRAP_KEY`.
    pub bootstrap_key_file: Option<PathBuf>,
    /// Whether callers need a key.
    /// Default: `true` if there is a bootstrap key, else `false`
    pub require_keys: Option<bool>,
    /// Allow unauthenticated listeners on non-loopback addresses, and node listeners without
    /// certificates. Use it only on an isolated network.
    pub insecure: bool,
    /// TLS for callers of REST and gRPC.
    pub tls: Option<Certificate>,
    /// TLS between nodes. Set it on all nodes or on none.
    pub nodes: Option<NodeCertificate>,
    /// Identity providers whose tokens are accepted.
    pub issuers: Vec<Issuer>,
    /// Files with the master keys that seal and open secrets. The first key seals. Use the same
    /// keys on coordinators and workers.
    pub master_key_files: Vec<PathBuf>,
    /// Wrong credentials that one address (one /64 network over IPv6) may present in a burst.
    /// Beyond: The address gets 429 with `Retry-After` for every credential except those that
    /// succeeded from there before.
    /// Default: `200`
    pub failed_auth_burst: Option<Count>,
    /// Wrong credentials that the address may then present per minute.
    /// Beyond: As for `failed_auth_burst`.
    /// Default: `60`
    pub failed_auth_per_minute: Option<Count>,
}

/// The section `[security]` of a worker.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSecurity {
    /// File with the key that this worker's `/metrics` requires. Required if `listen.http` is not a
    /// loopback address.
    pub metrics_key_file: Option<PathBuf>,
    /// Allow unauthenticated listeners on non-loopback addresses, and node listeners without
    /// certificates. Use it only on an isolated network.
    pub insecure: bool,
    /// TLS between nodes. Set it on all nodes or on none.
    pub nodes: Option<NodeCertificate>,
    /// Files with the master keys that seal and open secrets. The first key seals. Use the same
    /// keys on coordinators and workers.
    pub master_key_files: Vec<PathBuf>,
}

/// The table `tls`: the certificate of the listeners for callers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
}

/// The table `nodes`: the certificate of the node.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCertificate {
    /// PEM file with this node's certificate chain. It names the node in a URI such as
    /// `volley://coordinator/1`.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
    /// PEM file with the certificates of the authority that signs the nodes of this cluster.
    pub authority: PathBuf,
}

/// One of `[[security.issuers]]`: an identity provider whose tokens are accepted.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// The `iss` of its tokens, compared exactly.
    pub issuer: String,
    /// A value that must be in the tokens' `aud`.
    pub audience: String,
    /// URL of the provider's keys: HTTPS, or HTTP on a loopback address. Set either this or
    /// `jwks_file`.
    pub jwks_url: Option<String>,
    /// File with the provider's keys.
    pub jwks_file: Option<PathBuf>,
    /// Accepted signature algorithms: `RS256`, `PS256`, `ES256` and their longer variants, or
    /// `EdDSA`.
    /// Default: `["RS256", "ES256"]`
    #[serde(default = "algorithms")]
    pub algorithms: Vec<String>,
    /// Claim with the caller's roles; the strongest one counts. Dots separate nested names.
    /// Default: `"volley_role"`
    #[serde(default = "roles_claim")]
    pub roles_claim: String,
    /// Table from values of that claim to roles. Without it, the values are the names of roles.
    #[serde(default)]
    pub roles: BTreeMap<String, String>,
    /// Claim with the caller's tenant.
    pub tenant_claim: Option<String>,
    /// Claim with the models that the caller may use: names, or prefixes such as `team-a.*`.
    /// Default: the models of the tenant
    pub models_claim: Option<String>,
}

/// What nearly every provider signs with.
fn algorithms() -> Vec<String> {
    vec!["RS256".to_owned(), "ES256".to_owned()]
}

fn roles_claim() -> String {
    "volley_role".to_owned()
}
