//! A coordinator's file.

mod file;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use volley_cluster::{ClusterConfig, MAX_RAFT_MULTIPLIER};
use volley_coordinator::CoordinatorConfig;
use volley_gateway::{ApiConfig, GrpcSkin, Origins};
use volley_registry::{MAX_MODELS, MAX_REGISTRY_BYTES};
use volley_security::guard::Share;
use volley_types::NodeId;
use volley_types::registry::LEVEL;

use self::file::{Cluster, File, Grpc, Limits, Listen};
use super::otlp;
use super::security::SecurityPlan;
use super::{hosts, read_toml, set, set_count, set_span};
use crate::node::coordinator::{CoordinatorPlan, Membership};

/// How long a coordinator that is stopped goes on taking requests while it says that it is not
/// ready.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Reads and checks a coordinator's file.
///
/// # Errors
/// What is wrong, with the file's name.
pub(crate) fn read(path: &Path) -> anyhow::Result<CoordinatorPlan> {
    let file: File = read_toml(path)?;
    plan(file).with_context(|| format!("in the configuration {}", path.display()))
}

/// As [`read`], for pages of these origins too.
///
/// # Errors
/// As [`read`]; or when one is no origin.
pub(crate) fn read_with(path: &Path, origins: &[String]) -> anyhow::Result<CoordinatorPlan> {
    let mut plan = read(path)?;
    plan.origins = plan.origins.and(&super::cors_origins(origins)?);
    Ok(plan)
}

fn plan(file: File) -> anyhow::Result<CoordinatorPlan> {
    let File {
        node,
        listen,
        cluster: section,
        grpc,
        browser,
        limits,
        security,
        egress,
        uploads,
        otlp: telemetry,
    } = file;
    let origins = Origins::new(&browser.origins)
        .map_err(|error| anyhow::anyhow!("'browser.origins': {}", error.message))?;
    let mut security = SecurityPlan::coordinator(security, NodeId(node.id))?;
    set(&mut security.egress.allow_private, egress.allow_private);
    security.egress.allowed_hosts = hosts("egress.allowed_hosts", egress.allowed_hosts)?;
    set(&mut security.share, share_of(limits.tenant_share)?);
    set_count(&mut security.throttle.burst, limits.failed_auth_burst);
    set_count(
        &mut security.throttle.per_minute,
        limits.failed_auth_per_minute,
    );
    let grpc = allow_listeners(&security, &listen, grpc)?;
    let advertise = listen.advertise.unwrap_or_else(|| listen.internal.clone());
    ensure!(
        !advertise.starts_with("0.0.0.0:") && !advertise.starts_with("[::]:"),
        "'listen.advertise' is missing: other nodes cannot call {advertise}"
    );
    let cluster = ClusterConfig::new(NodeId(node.id), node.data_dir, advertise.clone());
    let mut cluster = cluster.slowed(multiplier(&section)?);
    cluster.dialer = security.dialer();
    set_cluster(&mut cluster, &section)?;
    let membership = membership(section, NodeId(node.id), &advertise)?;
    let (mut coordinator, mut api) = (CoordinatorConfig::default(), ApiConfig::default());
    // Who is on this machine alone, sees its shared memory alone.
    let alone = std::iter::once(&listen.public).chain(&listen.also);
    let is_loopback = |it: SocketAddr| it.ip().is_loopback();
    let mut alone = alone.map(|address| address.parse().is_ok_and(is_loopback));
    let alone = alone.all(|alone| alone);
    api.shared_memory = listen.shared_memory.unwrap_or(alone);
    let mut drain_timeout = api.edge.drain_timeout;
    let mut drain_grace = DRAIN_GRACE;
    set_span(&mut drain_grace, limits.drain_grace);
    apply(limits, &mut coordinator, &mut api, &mut drain_timeout);
    coordinator.routing.zone = node.zone;
    check(&coordinator)?;
    Ok(CoordinatorPlan {
        cluster,
        membership,
        coordinator,
        api,
        origins,
        public: listen.public,
        also: listen.also,
        admin: listen.admin,
        grpc,
        internal: listen.internal,
        uploads: uploads.store()?,
        drain_timeout,
        drain_grace,
        security,
        otlp: otlp::plan(telemetry)?,
    })
}

/// Makes sure that every listener may be opened as it is secured. The listeners for gRPC alone.
fn allow_listeners(
    security: &SecurityPlan,
    listen: &Listen,
    grpc: Grpc,
) -> anyhow::Result<Vec<(GrpcSkin, String)>> {
    let key = "'security.bootstrap_key_file' (or put it into VOLLEY_BOOTSTRAP_KEY); or, where the \
               network itself keeps strangers out, set 'security.insecure = true'";
    security.allow_callers("listen.public", &listen.public, key)?;
    for address in &listen.also {
        security.allow_callers("listen.also", address, key)?;
    }
    if let Some(address) = &listen.admin {
        security.allow_callers("listen.admin", address, key)?;
    }
    let skins = [
        (GrpcSkin::Triton, "grpc.triton", grpc.triton),
        (GrpcSkin::MlServer, "grpc.mlserver", grpc.mlserver),
    ];
    let mut listeners = Vec::new();
    for (skin, what, address) in skins {
        if let Some(address) = address {
            security.allow_callers(what, &address, key)?;
            listeners.push((skin, address));
        }
    }
    security.allow_nodes("listen.internal", &listen.internal)?;
    Ok(listeners)
}

/// How many times as slow as usual the clocks of consensus are.
fn multiplier(section: &Cluster) -> anyhow::Result<u32> {
    let multiplier = section.raft_multiplier.unwrap_or(1);
    ensure!(
        (1..=MAX_RAFT_MULTIPLIER).contains(&multiplier),
        "'cluster.raft_multiplier' must be 1 to {MAX_RAFT_MULTIPLIER}: it is how many times as \
         long as usual the clocks of consensus wait"
    );
    Ok(multiplier)
}

fn set_cluster(cluster: &mut ClusterConfig, section: &Cluster) -> anyhow::Result<()> {
    let every = section.snapshot_every.map(|count| count.0 as u64);
    set(&mut cluster.snapshot_every, every);
    set_span(&mut cluster.write_timeout, section.write_timeout);
    ensure!(
        section.raft_multiplier.is_none() || cluster.timing.election.1 < cluster.write_timeout,
        "'cluster.write_timeout' must be longer than {:?}, the leader's lease with this \
         'cluster.raft_multiplier'; left away, it is twice as long",
        cluster.timing.election.1
    );
    set(&mut cluster.level, section.compatibility_level);
    ensure!(
        (1..=LEVEL).contains(&cluster.level),
        "'cluster.compatibility_level' must be 1 to {LEVEL}: this version speaks no other level"
    );
    Ok(())
}

fn membership(section: Cluster, own: NodeId, advertise: &str) -> anyhow::Result<Membership> {
    let given = (
        !section.bootstrap.is_empty(),
        !section.join.is_empty(),
        section.wait,
    );
    match given {
        (true, false, false) => first_members(section.bootstrap, own, advertise),
        (false, true, false) => Ok(Membership::Join(section.join)),
        (false, false, true) => Ok(Membership::Wait),
        _ => anyhow::bail!(
            "give either 'cluster.bootstrap' (the first members of a new cluster), \
             'cluster.join' (coordinators of a cluster that runs), or 'cluster.wait = true' (it \
             is let in with `volley cluster add` or `replace`)"
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
            .context("the keys of 'cluster.bootstrap' are node ids")?;
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

fn check(coordinator: &CoordinatorConfig) -> anyhow::Result<()> {
    ensure!(
        (0.0..=10.0).contains(&coordinator.retry_ratio),
        "'limits.retry_ratio' must be between 0 and 10"
    );
    ensure!(
        coordinator.liveness.suspect_after < coordinator.liveness.dead_after,
        "'limits.suspect_after' must be shorter than 'limits.dead_after'"
    );
    Ok(())
}

/// The part of the registry that each tenant may fill, from percent.
fn share_of(percent: Option<usize>) -> anyhow::Result<Option<Share>> {
    let Some(percent) = percent else {
        return Ok(None);
    };
    ensure!(
        (1..=100).contains(&percent),
        "'limits.tenant_share' is percent of the registry: 1 to 100"
    );
    Ok(Some(Share {
        things: MAX_MODELS * percent / 100,
        bytes: MAX_REGISTRY_BYTES / 100 * percent,
    }))
}

fn apply(
    limits: Limits,
    coordinator: &mut CoordinatorConfig,
    api: &mut ApiConfig,
    drain_timeout: &mut Duration,
) {
    set_count(&mut coordinator.max_streams, limits.max_streams);
    set_count(&mut coordinator.max_tries, limits.max_tries);
    set_span(&mut coordinator.routing.slow_start, limits.slow_start);
    set_span(&mut coordinator.wake_timeout, limits.wake_timeout);
    set_count(&mut coordinator.max_waking, limits.max_waking);
    coordinator.routing.hedge_after = limits.hedge_after.map(|span| span.0);
    set(&mut coordinator.retry_ratio, limits.retry_ratio);
    set_span(
        &mut coordinator.liveness.suspect_after,
        limits.suspect_after,
    );
    set_span(&mut coordinator.liveness.dead_after, limits.dead_after);
    set_span(
        &mut coordinator.liveness.replace_after,
        limits.replace_after,
    );
    set_span(&mut coordinator.rebalance_after, limits.rebalance_after);
    set_count(&mut api.edge.max_connections, limits.max_connections);
    // One address never takes all places, but where that is written.
    api.edge.max_connections_per_address = (api.edge.max_connections / 2).max(1);
    set_count(
        &mut api.edge.max_connections_per_address,
        limits.max_connections_per_address,
    );
    if let Some(size) = limits.max_inflight_body_bytes {
        api.edge.max_inflight_body_bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
    }
    set_count(&mut api.edge.max_body_bytes, limits.max_body_bytes);
    set_count(&mut api.edge.max_tensor_bytes, limits.max_tensor_bytes);
    set_span(&mut api.edge.request_timeout, limits.request_timeout);
    set_span(
        &mut api.edge.max_request_timeout,
        limits.max_request_timeout,
    );
    set_span(&mut api.edge.header_timeout, limits.header_timeout);
    set_span(&mut api.edge.body_timeout, limits.body_timeout);
    set_span(&mut api.edge.keep_alive, limits.keep_alive);
    set_span(&mut api.edge.write_stall, limits.write_stall);
    set_span(&mut api.edge.idle_timeout, limits.idle_timeout);
    set_span(&mut api.resume.window, limits.resume_window);
    set_count(&mut api.resume.stream_bytes, limits.resume_stream_bytes);
    set_count(&mut api.resume.tenant_bytes, limits.resume_tenant_bytes);
    set_count(&mut api.resume.total_bytes, limits.resume_total_bytes);
    let responses = &mut api.responses;
    set_span(&mut responses.age, limits.responses_age);
    set_count(&mut responses.tenant_count, limits.responses_tenant_count);
    set_count(
        &mut responses.response_bytes,
        limits.responses_response_bytes,
    );
    set_count(&mut responses.tenant_bytes, limits.responses_tenant_bytes);
    set_count(&mut responses.total_bytes, limits.responses_total_bytes);
    set_span(&mut api.edge.drain_timeout, limits.drain_timeout);
    *drain_timeout = api.edge.drain_timeout;
}

#[cfg(test)]
mod tests;
