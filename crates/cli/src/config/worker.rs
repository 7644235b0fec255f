//! The configuration file of a worker.

mod artifacts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use volley_artifacts::ArtifactConfig;
use volley_backend_onnx::{Device, OnnxConfig};
use volley_backend_python::{PythonConfig, Sandbox};
use volley_backend_remote::RemoteConfig;
use volley_backends::{Isolation, OnnxPlan};
use volley_config::WorkerSecurity;
use volley_config::worker::{OnnxSection, PythonSection, RemoteSection, WorkerFile};
use volley_flight::server::FlightServerConfig;
use volley_gateway::EdgeConfig;
use volley_types::WorkerId;
use volley_worker::WorkerConfig;

use super::otlp;
use super::security::SecurityPlan;
use super::{hosts, read_file, set, set_count, set_size, set_span};
use crate::node::worker::{WorkerPlan, python_defaults};

/// Reads and validates the file of a worker.
///
/// # Errors
/// The problem, with the name of the file.
pub(crate) fn read(path: &Path) -> anyhow::Result<WorkerPlan> {
    let file = read_file(path, WorkerFile::parse)?;
    plan(file).with_context(|| format!("in the configuration {}", path.display()))
}

/// Validates the keys and values of a file, and nothing outside the file.
///
/// # Errors
/// The problem.
pub(crate) fn check(text: &str) -> anyhow::Result<()> {
    WorkerFile::parse(text)?;
    Ok(())
}

fn plan(file: WorkerFile) -> anyhow::Result<WorkerPlan> {
    let WorkerFile {
        node,
        listen,
        cluster,
        models,
        queue,
        flight,
        shutdown,
        onnx,
        python,
        remote,
        security,
        artifacts,
        otlp: telemetry,
        version: _,
    } = file;
    ensure!(
        !cluster.coordinators.is_empty(),
        "'cluster.coordinators' is empty"
    );
    let advertise = advertised(listen.advertise, &listen.flight)?;
    let id =
        WorkerId::new(node.id).map_err(|error| anyhow::anyhow!("'node.id': {}", error.message))?;
    let artifacts = artifacts::config(artifacts)?;
    let python = python_config(python, own_files(&security, &artifacts))?;
    let security = SecurityPlan::worker(security, id.clone())?;
    let key =
        "'security.metrics_key_file'; or, on an isolated network, set 'security.insecure = true'";
    security.allow_callers("listen.http", &listen.http, key)?;
    security.allow_nodes("listen.flight", &listen.flight)?;
    let mut worker = WorkerConfig::new(id, advertise, cluster.coordinators);
    worker.dialer = security.dialer();
    worker.labels = node.labels;
    set_count(&mut worker.queue_per_replica, queue.max_per_replica);
    set_count(&mut worker.concurrent_loads, models.max_concurrent_loads);
    worker.memory_budget = models.memory_budget.map(|size| size.0);
    set_span(&mut worker.load_timeout, models.load_timeout);
    set_span(&mut worker.heartbeat_interval, cluster.heartbeat_interval);
    set_span(&mut worker.queue_timeout, queue.timeout);
    set_span(&mut worker.unload_timeout, models.unload_timeout);
    let mut exchanges = FlightServerConfig::default();
    set_span(&mut exchanges.stall_timeout, flight.write_timeout);
    set_count(&mut exchanges.max_exchanges, flight.max_concurrent_streams);
    let mut max_body_memory = EdgeConfig::default().max_inflight_body_bytes;
    set_size(&mut max_body_memory, flight.max_body_memory);
    let mut onnx = onnx_plan(onnx)?;
    // Loading reserves memory of the budget; running is limited to it.
    onnx.config.memory_limit = worker.run_memory();
    Ok(WorkerPlan {
        worker,
        flight: listen.flight,
        http: listen.http,
        exchanges,
        max_body_memory,
        drain_timeout: shutdown
            .drain_timeout
            .map_or(Duration::from_secs(30), |span| span.0),
        onnx,
        python,
        remote: remote_config(remote)?,
        security,
        artifacts,
        allow_fake: false,
        prints: false,
        otlp: otlp::plan(telemetry)?,
    })
}

/// The address for coordinators: `given`, or that of the listener.
fn advertised(given: Option<String>, listener: &str) -> anyhow::Result<String> {
    let advertise = given.unwrap_or_else(|| listener.to_owned());
    ensure!(
        !advertise.starts_with("0.0.0.0:") && !advertise.starts_with("[::]:"),
        "'listen.advertise' is missing: coordinators cannot call {advertise}"
    );
    Ok(advertise)
}

fn onnx_plan(mut section: OnnxSection) -> anyhow::Result<OnnxPlan> {
    let mut plan = OnnxPlan {
        library: section.library.take(),
        process_memory: section.process_memory.take().map(|size| size.0),
        system_memory: volley_worker::system_bytes(),
        ..OnnxPlan::default()
    };
    if let Some(name) = section.isolation.take() {
        plan.isolation = Isolation::from_name(&name).with_context(|| {
            format!(
                "'onnx.isolation' is '{name}'; it must be auto, fetched, none, probe or process"
            )
        })?;
    }
    plan.config = onnx_config(section)?;
    Ok(plan)
}

fn onnx_config(section: OnnxSection) -> anyhow::Result<OnnxConfig> {
    let mut config = OnnxConfig::default();
    if let Some(device) = section.device {
        config.device = Device::from_name(&device).with_context(|| {
            format!("'onnx.device' is '{device}'; it must be auto, cpu or cuda")
        })?;
    }
    set(&mut config.gpu, section.first_gpu);
    set(&mut config.gpus, section.gpu_count);
    set(&mut config.threads, section.threads);
    set_count(&mut config.instances, section.instances);
    let most = OnnxConfig::MAX_INSTANCES;
    ensure!(
        config.instances <= most,
        "'onnx.instances' is more than {most}"
    );
    set_count(&mut config.slots, section.slots);
    set_count(&mut config.tensor_streams, section.tensor_streams);
    set_count(&mut config.max_rows, section.max_rows);
    set_span(&mut config.run_timeout, section.run_timeout);
    set(&mut config.prefix_reuse, section.prefix_reuse);
    set(&mut config.cuda_graphs, section.cuda_graphs);
    config.max_context = section
        .max_context
        .map(|count| count.0)
        .or(config.max_context);
    Ok(config)
}

fn python_config(section: PythonSection, own: Vec<PathBuf>) -> anyhow::Result<PythonConfig> {
    let mut config = python_defaults();
    set(&mut config.enabled, section.enabled);
    set(&mut config.interpreter, section.interpreter);
    set(&mut config.environments, section.environments_dir);
    set(&mut config.offline, section.offline);
    if let Some(count) = section.process_tasks {
        config.process_tasks = count.0 as u64;
    }
    if let Some(name) = section.sandbox {
        config.sandbox = Sandbox::from_name(&name).with_context(|| {
            let names = Sandbox::NAMES;
            format!("'python.sandbox' is '{name}'; it must be {names}")
        })?;
    }
    config.hidden = own;
    config
        .hidden
        .extend(section.hidden_paths.unwrap_or_default());
    let memory = section.process_memory.map(|size| size.0);
    Ok(PythonConfig {
        wheels: section.wheels_dir,
        process_memory: memory.or(config.process_memory),
        gpus: section.gpus,
        ..config
    })
}

/// The files of the worker that its models may not open.
fn own_files(security: &WorkerSecurity, artifacts: &ArtifactConfig) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = security.metrics_key_file.iter().cloned().collect();
    files.extend(security.master_key_files.iter().cloned());
    if let Some(nodes) = &security.nodes {
        files.extend([nodes.certificate.clone(), nodes.key.clone()]);
    }
    files.extend(artifacts.cache_dir.clone());
    files
}

fn remote_config(section: RemoteSection) -> anyhow::Result<RemoteConfig> {
    let mut config = RemoteConfig::default();
    set_count(&mut config.max_streams, section.max_streams);
    set(&mut config.allow_private, section.allow_private);
    config.allowed_hosts = hosts("remote.allowed_hosts", section.allowed_hosts)?;
    set_span(&mut config.connect_timeout, section.connect_timeout);
    set_span(&mut config.first_byte_timeout, section.first_byte_timeout);
    set_span(&mut config.stall_timeout, section.stall_timeout);
    Ok(config)
}
