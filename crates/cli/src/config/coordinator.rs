//! The configuration file of a coordinator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use volley_artifacts::upload;
use volley_cluster::{ClusterConfig, MAX_RAFT_MULTIPLIER};
use volley_config::coordinator::{
    ClusterSection, CoordinatorFile, GrpcSection, HttpSection, ListenSection, RaftSection,
    RequestsSection, ResumeSection, StoredResponses, UploadsSection,
};
use volley_coordinator::CoordinatorConfig;
use volley_gateway::{ApiConfig, GrpcFlavor, Origins, ResponsesConfig, ResumeConfig};
use volley_registry::{MAX_MODELS, MAX_REGISTRY_BYTES};
use volley_security::guard::Share;
use volley_types::registry::{LEVEL, ModelUrl};
use volley_types::{NodeId, PredictError};

use super::otlp;
use super::security::SecurityPlan;
use super::{hosts, read_file, set, set_count, set_size, set_span};
use crate::node::coordinator::{CoordinatorPlan, Membership};

/// How long a stopped coordinator accepts requests after it has reported that it is not ready.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Reads and validates the file of a coordinator.
///
/// # Errors
/// The problem, with the name of the file.
pub(crate) fn read(path: &Path) -> anyhow::Result<CoordinatorPlan> {
    let file = read_file(path, CoordinatorFile::parse)?;
    plan(file).with_context(|| format!("in the configuration {}", path.display()))
}

/// Like [`read`], and also allows web pages of these origins.
///
/// # Errors
/// As for [`read`], and when an origin is malformed.
pub(crate) fn read_with(path: &Path, origins: &[String]) -> anyhow::Result<CoordinatorPlan> {
    let mut plan = read(path)?;
    plan.origins = plan.origins.and(&super::cors_origins(origins)?);
    Ok(plan)
}

/// Validates the keys and values of a file, and nothing outside the file.
///
/// # Errors
/// The problem.
pub(crate) fn check(text: &str) -> anyhow::Result<()> {
    CoordinatorFile::parse(text)?;
    Ok(())
}

fn plan(file: CoordinatorFile) -> anyhow::Result<CoordinatorPlan> {
    let (coordinator, api) = (coordinator_config(&file)?, api_config(&file));
    let mut drain_grace = DRAIN_GRACE;
    set_span(&mut drain_grace, file.shutdown.delay);
    let origins = Origins::new(&file.browser.origins)
        .map_err(|error| anyhow::anyhow!("'browser.origins': {}", error.message))?;
    let (node, listen) = (file.node, file.listen);
    let mut security = SecurityPlan::coordinator(file.security, NodeId(node.id))?;
    set(
        &mut security.egress.allow_private,
        file.egress.allow_private,
    );
    security.egress.allowed_hosts = hosts("egress.allowed_hosts", file.egress.allowed_hosts)?;
    set(
        &mut security.share,
        share_of(file.registry.tenant_quota_percent)?,
    );
    let grpc = allow_listeners(&security, &listen, file.grpc)?;
    let advertise = listen.advertise.unwrap_or_else(|| listen.internal.clone());
    ensure!(
        !advertise.starts_with("0.0.0.0:") && !advertise.starts_with("[::]:"),
        "'listen.advertise' is missing: other nodes cannot call {advertise}"
    );
    let cluster = ClusterConfig::new(NodeId(node.id), node.data_dir, advertise.clone());
    let mut cluster = cluster.slowed(multiplier(&file.raft)?);
    cluster.dialer = security.dialer();
    set_cluster(&mut cluster, &file.cluster, &file.raft)?;
    let membership = membership(file.cluster, NodeId(node.id), &advertise)?;
    Ok(CoordinatorPlan {
        cluster,
        membership,
        coordinator,
        drain_timeout: api.edge.drain_timeout,
        api,
        origins,
        public: listen.public,
        also: listen.additional,
        admin: listen.admin,
        grpc,
        internal: listen.internal,
        uploads: uploads(file.uploads)?,
        drain_grace,
        security,
        otlp: otlp::plan(file.otlp)?,
    })
}

fn uploads(section: UploadsSection) -> anyhow::Result<Option<ModelUrl>> {
    let Some(text) = section.store else {
        return Ok(None);
    };
    let read = || {
        let url = ModelUrl::parse(&text)?;
        upload::check(&url)?;
        Ok(url)
    };
    let url = read().map_err(|error: PredictError| {
        anyhow::anyhow!("'uploads.store' {text}: {}", error.message)
    });
    url.map(Some)
}

/// Checks that the security settings allow every listener. Returns the gRPC-only listeners.
fn allow_listeners(
    security: &SecurityPlan,
    listen: &ListenSection,
    grpc: GrpcSection,
) -> anyhow::Result<Vec<(GrpcFlavor, String)>> {
    let key = "'security.bootstrap_key_file' (or put it into VOLLEY_BOOTSTRAP_KEY); or, on an \
               isolated network, set 'security.insecure = true'";
    security.allow_callers("listen.public", &listen.public, key)?;
    for address in &listen.additional {
        security.allow_callers("listen.additional", address, key)?;
    }
    if let Some(address) = &listen.admin {
        security.allow_callers("listen.admin", address, key)?;
    }
    let flavors = [
        (GrpcFlavor::Triton, "grpc.triton", grpc.triton),
        (GrpcFlavor::MlServer, "grpc.mlserver", grpc.mlserver),
    ];
    let mut listeners = Vec::new();
    for (flavor, what, address) in flavors {
        if let Some(address) = address {
            security.allow_callers(what, &address, key)?;
            listeners.push((flavor, address));
        }
    }
    security.allow_nodes("listen.internal", &listen.internal)?;
    Ok(listeners)
}

/// The factor by which Raft timeouts are extended.
fn multiplier(section: &RaftSection) -> anyhow::Result<u32> {
    let multiplier = section.timeout_multiplier.unwrap_or(1);
    ensure!(
        (1..=MAX_RAFT_MULTIPLIER).contains(&multiplier),
        "'raft.timeout_multiplier' must be 1 to {MAX_RAFT_MULTIPLIER}: it multiplies the timeouts \
         of consensus"
    );
    Ok(multiplier)
}

fn set_cluster(
    config: &mut ClusterConfig,
    cluster: &ClusterSection,
    raft: &RaftSection,
) -> anyhow::Result<()> {
    let every = raft.snapshot_threshold.map(|count| count.0 as u64);
    set(&mut config.snapshot_every, every);
    set_span(&mut config.write_timeout, raft.write_timeout);
    ensure!(
        raft.timeout_multiplier.is_none() || config.timing.election.1 < config.write_timeout,
        "'raft.write_timeout' must be longer than {:?}, the leader's lease with this \
         'raft.timeout_multiplier'; the default is twice the lease",
        config.timing.election.1
    );
    set(&mut config.level, cluster.feature_level);
    ensure!(
        (1..=LEVEL).contains(&config.level),
        "'cluster.feature_level' must be 1 to {LEVEL}: this version supports no other level"
    );
    Ok(())
}

fn membership(section: ClusterSection, own: NodeId, advertise: &str) -> anyhow::Result<Membership> {
    let given = (
        !section.bootstrap.is_empty(),
        !section.join.is_empty(),
        section.await_invitation,
    );
    match given {
        (true, false, false) => first_members(section.bootstrap, own, advertise),
        (false, true, false) => Ok(Membership::Join(section.join)),
        (false, false, true) => Ok(Membership::Wait),
        _ => anyhow::bail!(
            "give either 'cluster.bootstrap' (the first members of a new cluster), 'cluster.join' \
             (coordinators of a cluster that runs), or 'cluster.await_invitation = true' (an \
             operator adds it with `volley cluster add` or `replace`)"
        ),
    }
}

fn first_members(
    named: BTreeMap<String, String>,
    own: NodeId,
    advertise: &str,
) -> anyhow::Result<Membership> {
    let mut members = BTreeMap::new();
    for (id, address) in named {
        let id = id
            .parse()
            .context("the keys of 'cluster.bootstrap' must be node ids")?;
        members.insert(NodeId(id), address);
    }
    let named = members
        .get(&own)
        .with_context(|| format!("'cluster.bootstrap' does not have this node's own id, {own}"))?;
    ensure!(
        *named == advertise,
        "'cluster.bootstrap' has this node at {named}, but it advertises {advertise}"
    );
    Ok(Membership::Bootstrap(members))
}

/// The registry share of each tenant, from a percentage.
fn share_of(percent: Option<usize>) -> anyhow::Result<Option<Share>> {
    let Some(percent) = percent else {
        return Ok(None);
    };
    ensure!(
        (1..=100).contains(&percent),
        "'registry.tenant_quota_percent' must be 1 to 100 (percent of the registry)"
    );
    Ok(Some(Share {
        things: MAX_MODELS * percent / 100,
        bytes: MAX_REGISTRY_BYTES * percent / 100,
    }))
}

fn coordinator_config(file: &CoordinatorFile) -> anyhow::Result<CoordinatorConfig> {
    let mut config = CoordinatorConfig::default();
    set_count(&mut config.max_streams, file.requests.max_concurrent);
    set_count(&mut config.max_attempts, file.routing.max_attempts);
    set(&mut config.retry_ratio, file.routing.retry_ratio);
    ensure!(
        (0.0..=10.0).contains(&config.retry_ratio),
        "'routing.retry_ratio' must be between 0 and 10"
    );
    let routing = &mut config.routing;
    routing.zone.clone_from(&file.node.zone);
    routing.hedge_after = file.routing.hedge_delay.map(|span| span.0);
    set_span(&mut routing.slow_start, file.routing.slow_start_window);
    set_span(&mut config.activation_timeout, file.activation.timeout);
    set_count(
        &mut config.max_pending_activations,
        file.activation.max_pending,
    );
    let liveness = &mut config.liveness;
    set_span(&mut liveness.suspect_after, file.liveness.suspect_timeout);
    set_span(&mut liveness.dead_after, file.liveness.dead_timeout);
    set_span(
        &mut liveness.replace_after,
        file.placement.replacement_delay,
    );
    ensure!(
        liveness.suspect_after < liveness.dead_after,
        "'liveness.suspect_timeout' must be shorter than 'liveness.dead_timeout'"
    );
    set_span(&mut config.rebalance_after, file.placement.rebalance_delay);
    Ok(config)
}

fn api_config(file: &CoordinatorFile) -> ApiConfig {
    let mut api = ApiConfig::default();
    set_requests(&mut api, &file.requests);
    set_http(&mut api, &file.http);
    set_span(&mut api.edge.keep_alive, file.streams.keep_alive_interval);
    set_resume(&mut api.resume, &file.resume);
    set_responses(&mut api.responses, &file.stored_responses);
    set_span(&mut api.edge.drain_timeout, file.shutdown.drain_timeout);
    // Shared memory works only if all clients are on this machine.
    let mut addresses = std::iter::once(&file.listen.public).chain(&file.listen.additional);
    let is_loopback = |it: SocketAddr| it.ip().is_loopback();
    let alone = addresses.all(|address| address.parse().is_ok_and(is_loopback));
    api.shared_memory = file.listen.shared_memory.unwrap_or(alone);
    api
}

fn set_requests(api: &mut ApiConfig, section: &RequestsSection) {
    set_size(&mut api.edge.max_body_bytes, section.max_body_size);
    set_size(&mut api.edge.max_tensor_bytes, section.max_tensor_size);
    set_size(
        &mut api.edge.max_inflight_body_bytes,
        section.max_body_memory,
    );
    set_span(&mut api.edge.request_timeout, section.default_timeout);
    set_span(&mut api.edge.max_request_timeout, section.max_timeout);
}

fn set_http(api: &mut ApiConfig, section: &HttpSection) {
    set_count(&mut api.edge.max_connections, section.max_connections);
    // Unless configured, one address cannot use all connections.
    api.edge.max_connections_per_address = (api.edge.max_connections / 2).max(1);
    set_count(
        &mut api.edge.max_connections_per_address,
        section.max_connections_per_address,
    );
    set_span(&mut api.edge.header_timeout, section.header_timeout);
    set_span(&mut api.edge.body_timeout, section.body_timeout);
    set_span(&mut api.edge.idle_timeout, section.idle_timeout);
    set_span(&mut api.edge.write_stall, section.write_timeout);
}

fn set_resume(config: &mut ResumeConfig, section: &ResumeSection) {
    set_span(&mut config.window, section.window);
    set_size(&mut config.stream_bytes, section.max_stream_size);
    set_size(&mut config.tenant_bytes, section.max_tenant_size);
    set_size(&mut config.total_bytes, section.max_total_size);
}

fn set_responses(config: &mut ResponsesConfig, section: &StoredResponses) {
    set_span(&mut config.age, section.max_age);
    set_count(&mut config.tenant_count, section.max_per_tenant);
    set_size(&mut config.response_bytes, section.max_response_size);
    set_size(&mut config.tenant_bytes, section.max_tenant_size);
    set_size(&mut config.total_bytes, section.max_total_size);
}

#[cfg(test)]
mod tests;
