//! The section `security` of a node's file, and the security that a listener needs before other
//! machines can reach it.

mod issuers;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use volley_config::{Certificate, CoordinatorSecurity, NodeCertificate, WorkerSecurity};
use volley_security::certificate::CertificateUse;
use volley_security::guard::Share;
use volley_security::nodes::{Callers, Dialer};
use volley_security::secrets::MasterKeys;
use volley_security::tls::{CertificateFiles, EdgeTls, NodeFiles, NodeTls, RELOAD_INTERVAL};
use volley_security::token::Issuers;
use volley_security::{Authenticator, ReadRegistry, ThrottleConfig};
use volley_types::egress::EgressPolicy;
use volley_types::registry::OpenSecret;
use volley_types::{NodeId, NodeIdentity, PredictError, WorkerId};

use super::set_count;

/// The environment variable with the first API key.
const BOOTSTRAP_KEY: &str = "VOLLEY_BOOTSTRAP_KEY";

fn load_edge(written: Certificate) -> anyhow::Result<EdgeTls> {
    let files = CertificateFiles {
        certificate: written.certificate,
        key: written.key,
    };
    EdgeTls::load(files).map_err(|error| unusable("security.tls", &error))
}

fn load_node(written: NodeCertificate, own: &NodeIdentity) -> anyhow::Result<NodeTls> {
    let files = NodeFiles {
        own: CertificateFiles {
            certificate: written.certificate,
            key: written.key,
        },
        authority: written.authority,
    };
    let tls = NodeTls::load(files).map_err(|error| unusable("security.nodes", &error))?;
    let named = tls.identity();
    ensure!(
        named == *own,
        "'security.nodes': the certificate is that of {named}, and this node is {own}"
    );
    Ok(tls)
}

fn unusable(section: &str, error: &PredictError) -> anyhow::Error {
    anyhow::anyhow!("'{section}': {}", error.chain())
}

/// Authentication and encryption of a node.
#[derive(Clone, Default)]
pub(crate) struct SecurityPlan {
    /// Whether callers need an API key.
    pub(crate) keys: bool,
    /// The first API key, if configured.
    pub(crate) bootstrap_key: Option<String>,
    /// Accepted identity providers.
    issuers: Option<Arc<Issuers>>,
    /// The keys that seal and open secrets.
    master_keys: Option<Arc<MasterKeys>>,
    /// TLS for REST clients.
    pub(crate) tls: Option<EdgeTls>,
    /// TLS between nodes.
    pub(crate) nodes: Option<NodeTls>,
    /// Allowed URLs of connectors and models.
    pub(crate) egress: EgressPolicy,
    /// The part of the registry that each tenant may use.
    pub(crate) share: Share,
    /// Allowed failures of authentication per address.
    pub(crate) throttle: ThrottleConfig,
    /// Whether unauthenticated listeners on non-loopback addresses are allowed.
    insecure: bool,
}

impl std::fmt::Debug for SecurityPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityPlan")
            .field("keys", &self.keys)
            .field("insecure", &self.insecure)
            .field("egress", &self.egress)
            .field("share", &self.share)
            .field("throttle", &self.throttle)
            .finish_non_exhaustive()
    }
}

impl SecurityPlan {
    /// The plan of a coordinator from its section and the environment.
    ///
    /// # Errors
    /// When a key or certificate is not usable, or when settings contradict each other.
    pub(crate) fn coordinator(section: CoordinatorSecurity, id: NodeId) -> anyhow::Result<Self> {
        let bootstrap_key = bootstrap_key(section.bootstrap_key_file.as_deref())?;
        let issuers = issuers::load(section.issuers)?;
        let named = bootstrap_key.is_some() || issuers.is_some();
        let keys = section.require_keys.unwrap_or(named);
        ensure!(
            keys || !named,
            "'security.require_keys' is false, but a bootstrap key or an issuer is configured: \
             remove one of them"
        );
        let mut throttle = ThrottleConfig::default();
        set_count(&mut throttle.burst, section.failed_auth_burst);
        set_count(&mut throttle.per_minute, section.failed_auth_per_minute);
        Ok(Self {
            keys,
            bootstrap_key,
            issuers,
            master_keys: load_master_keys(section.master_key_files)?,
            egress: EgressPolicy::default(),
            share: Share::default(),
            throttle,
            tls: section.tls.map(load_edge).transpose()?,
            nodes: load_nodes(section.nodes, &NodeIdentity::Coordinator(id))?,
            insecure: section.insecure,
        })
    }

    /// The plan of a worker from its section.
    ///
    /// # Errors
    /// When the metrics key or a certificate is not usable.
    pub(crate) fn worker(section: WorkerSecurity, id: WorkerId) -> anyhow::Result<Self> {
        let key = section
            .metrics_key_file
            .as_deref()
            .map(key_of)
            .transpose()?;
        Ok(Self {
            keys: key.is_some(),
            bootstrap_key: key,
            issuers: None,
            master_keys: load_master_keys(section.master_key_files)?,
            egress: EgressPolicy::default(),
            share: Share::default(),
            throttle: ThrottleConfig::default(),
            tls: None,
            nodes: load_nodes(section.nodes, &NodeIdentity::Worker(id))?,
            insecure: section.insecure,
        })
    }

    /// The plan of a worker in the same process: only the keys that open secrets.
    pub(crate) fn for_own_worker(&self) -> Self {
        Self {
            master_keys: self.master_keys.clone(),
            ..Self::default()
        }
    }

    /// The keys that open sealed secrets.
    pub(crate) fn open_secrets(&self) -> Option<Arc<dyn OpenSecret>> {
        let keys = self.master_keys.clone()?;
        Some(keys)
    }

    /// Logs a warning if keys would be sent without TLS.
    pub(crate) fn warn_of_clear_keys(&self, address: &str) {
        if self.keys && self.tls.is_none() && !is_local(address) {
            tracing::warn!(
                address,
                "listener accepts keys and prompts without TLS; set 'security.tls', or use a \
                 proxy that terminates TLS"
            );
        }
    }

    /// The dialer for connections to other nodes.
    pub(crate) fn dialer(&self) -> Dialer {
        self.nodes.clone().map_or_else(Dialer::plain, Dialer::tls)
    }

    /// TLS of the internal listener. It accepts nodes, and callers with a key if keys are required.
    pub(crate) fn internal_tls(&self) -> Option<(NodeTls, Callers)> {
        let callers = match self.keys {
            true => Callers::NodesAndKeys,
            false => Callers::Nodes,
        };
        Some((self.nodes.clone()?, callers))
    }

    /// The expiry of each certificate in use, by its use.
    pub(crate) fn certificate_ends(&self) -> Vec<(&'static str, SystemTime)> {
        let edge = self.tls.as_ref().and_then(EdgeTls::ends);
        let nodes = self.nodes.iter().flat_map(NodeTls::ends);
        let ends = edge.map(|end| (CertificateUse::Edge, end)).into_iter();
        ends.chain(nodes)
            .map(|(what, end)| (what.name(), end))
            .collect()
    }

    /// Reloads renewed certificates and keys, forever.
    pub(crate) async fn keep_fresh(self) {
        let edge = async {
            if let Some(tls) = self.tls {
                tls.keep_fresh(RELOAD_INTERVAL).await;
            }
        };
        let nodes = async {
            if let Some(tls) = self.nodes {
                tls.keep_fresh(RELOAD_INTERVAL).await;
            }
        };
        let issuers = async {
            if let Some(issuers) = self.issuers {
                issuers.keep_fresh(issuers::fetch(), RELOAD_INTERVAL).await;
            }
        };
        let master_keys = async {
            if let Some(keys) = self.master_keys {
                keys.keep_fresh(RELOAD_INTERVAL).await;
            }
        };
        tokio::join!(edge, nodes, issuers, master_keys);
    }

    /// Like [`SecurityPlan::coordinator`], from files with a bootstrap key and master keys.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn of_key_files(
        bootstrap: Option<PathBuf>,
        masters: Vec<PathBuf>,
    ) -> anyhow::Result<Self> {
        let section = CoordinatorSecurity {
            bootstrap_key_file: bootstrap,
            master_key_files: masters,
            ..CoordinatorSecurity::default()
        };
        Self::coordinator(section, NodeId(1))
    }

    /// Checks that `address` may serve callers.
    ///
    /// # Errors
    /// When other machines could reach it without a key, with the next step.
    pub(crate) fn allow_callers(
        &self,
        what: &str,
        address: &str,
        key_setting: &str,
    ) -> anyhow::Result<()> {
        ensure!(
            self.keys || self.insecure || is_local(address),
            "{what}: without keys, every host that reaches {address} can call this node; write a \
             key with `volley key bootstrap > key` and name the file as {key_setting}; or listen \
             on 127.0.0.1 only"
        );
        Ok(())
    }

    /// Checks that `address` may serve other nodes.
    ///
    /// # Errors
    /// When other machines could reach it without a certificate, with the next step.
    pub(crate) fn allow_nodes(&self, what: &str, address: &str) -> anyhow::Result<()> {
        ensure!(
            self.insecure || self.nodes.is_some() || is_local(address),
            "{what}: without certificates, every host that reaches {address} can join this \
             cluster; give the nodes certificates in 'security.nodes'; or listen on 127.0.0.1 \
             only; or, on an isolated network, set 'security.insecure = true'"
        );
        Ok(())
    }

    /// The authenticator for the keys of `registry`.
    ///
    /// # Errors
    /// When the bootstrap key is too short.
    pub(crate) fn authenticator(&self, registry: ReadRegistry) -> anyhow::Result<Authenticator> {
        let mut gate = match self.keys {
            true => Authenticator::keys(registry, self.bootstrap_key.as_deref())?,
            false => Authenticator::open(),
        };
        if let Some(issuers) = &self.issuers {
            gate = gate.with_issuers(issuers.clone());
        }
        if let Some(keys) = &self.master_keys {
            gate = gate.with_master_keys(keys.clone());
        }
        Ok(gate
            .with_egress(self.egress.clone())
            .with_share(self.share)
            .with_throttle(self.throttle))
    }
}

fn load_master_keys(files: Vec<PathBuf>) -> anyhow::Result<Option<Arc<MasterKeys>>> {
    if files.is_empty() {
        return Ok(None);
    }
    let keys = MasterKeys::load(files);
    let keys = keys.map_err(|error| unusable("security.master_key_files", &error))?;
    Ok(Some(Arc::new(keys)))
}

fn load_nodes(
    nodes: Option<NodeCertificate>,
    own: &NodeIdentity,
) -> anyhow::Result<Option<NodeTls>> {
    nodes.map(|nodes| load_node(nodes, own)).transpose()
}

fn bootstrap_key(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    if let Some(file) = file {
        return key_of(file).map(Some);
    }
    match std::env::var(BOOTSTRAP_KEY) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).context(BOOTSTRAP_KEY),
    }
}

fn key_of(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("reading the key {}", file.display()))?;
    Ok(text.trim().to_owned())
}

/// Whether only this machine can reach `address`.
fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => host == "localhost",
    }
}

#[cfg(test)]
mod tests;
