//! The command line.

pub(crate) mod ops;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, RangedI64ValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use volley_config::Size;
use volley_telemetry::LogFormat;

mod access;
mod config;
mod dev;
mod named;
#[cfg(any(feature = "sql", test))]
mod sql;

pub(crate) use access::{Key, KeyQuota, Secret};
pub(crate) use config::{Config, Migrate};
pub(crate) use dev::Dev;
pub(crate) use named::{Alias, Pipeline};
#[cfg(any(feature = "sql", test))]
pub(crate) use sql::Sql;
#[cfg(feature = "sql")]
pub(crate) use sql::SqlFormat;

/// The address that client commands call where none is given.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8420";

/// Inference cluster in one binary: coordinators and workers, local and remote models.
#[derive(Debug, Parser)]
#[command(name = "volley", version, about, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Coordinator URLs, separated by commas. If one cannot be reached, the next one is tried.
    #[arg(long, env = "VOLLEY_URL", global = true, value_delimiter = ',', default_value = DEFAULT_URL)]
    pub(crate) url: Vec<String>,
    /// API key for client commands. Prefer the environment variable, which other users of this
    /// machine cannot see.
    #[arg(long, env = "VOLLEY_API_KEY", global = true, hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// CA bundle (PEM) that verifies the coordinators' certificates [default: the system's roots].
    #[arg(long, env = "VOLLEY_CA_FILE", global = true)]
    pub(crate) ca_file: Option<PathBuf>,
    /// Log filter in the syntax of RUST_LOG, such as `info` or `volley_coordinator=debug,warn`
    /// [default: depends on the command].
    #[arg(long, env = "VOLLEY_LOG", global = true)]
    pub(crate) log: Option<String>,
    /// Format of log lines.
    #[arg(long, env = "VOLLEY_LOG_FORMAT", global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) log_format: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Text for a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in this process: one coordinator, one worker and two demo models.
    Up(Up),
    /// Serve one Python file while you write it: reload on save, and print requests and responses.
    Dev(Dev),
    /// Run a coordinator.
    Coordinator(Coordinator),
    /// Run a worker.
    Worker {
        /// Configuration file (TOML).
        #[arg(long, short)]
        config: PathBuf,
        #[command(flatten)]
        fake: AllowFake,
    },
    /// Hold one model: what a worker runs for models in processes of their own.
    #[command(hide = true)]
    ModelHost,
    /// Manage models: register, deploy, undeploy, delete, list and show.
    #[command(subcommand)]
    Model(Model),
    /// Manage connectors to remote models: create, delete, list and show.
    #[command(subcommand)]
    Connector(Connector),
    /// Manage coordinators: show, add, remove, replace, and transfer leadership.
    #[command(subcommand)]
    Cluster(ops::Cluster),
    /// Back up the registry (models, connectors, deployments, keys) to a file or an object store.
    Backup(ops::Backup),
    /// Create the first coordinator of a new cluster from a backup.
    Restore(ops::Restore),
    /// Rebuild the cluster from one surviving coordinator after a permanent loss of quorum.
    Recover(ops::Recover),
    /// Manage aliases: names that split, mirror and switch traffic between models.
    #[command(subcommand)]
    Alias(Alias),
    /// Manage pipelines: graphs of models behind one name.
    #[command(subcommand)]
    Pipeline(Pipeline),
    /// Manage API keys: create, list, rotate, revoke, and set quotas.
    #[command(subcommand)]
    Key(Key),
    /// Manage encrypted secrets for connectors.
    #[command(subcommand)]
    Secret(Secret),
    /// Verify the integrity of a node's audit log.
    Audit {
        /// Audit log, `audit.jsonl` in the node's data directory.
        file: PathBuf,
    },
    /// Send a prediction to a model and stream generated text to the terminal.
    Predict(Predict),
    #[cfg(feature = "sql")]
    Sql(Sql),
    /// Show nodes, roles, the leader, replicas and load.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Drain a worker or a coordinator: it receives no new work, other nodes take over, and
    /// running work finishes.
    Drain(ops::Drain),
    /// Return a drained node to service.
    Undrain(ops::DrainTarget),
    /// Live view of requests, queues and latency per node.
    Top(ops::Top),
    /// Check this machine, a node's configuration and the coordinators, and suggest fixes.
    Doctor(ops::Doctor),
    /// Rewrite configuration files in the format of this version.
    #[command(subcommand)]
    Config(Config),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Coordinator {
    /// Configuration file (TOML).
    #[arg(long, short)]
    pub(crate) config: PathBuf,
    /// Web origin whose pages may call this coordinator, such as `https://app.example`, in
    /// addition to 'browser.origins'. Repeatable.
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    pub(crate) cors_origins: Vec<String>,
}

/// Whether scripted models may be loaded.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AllowFake {
    /// Allow models of the backend 'fake'. They return scripted text and can fail or stall on
    /// request, for tests and drills.
    #[arg(long, env = "VOLLEY_ALLOW_FAKE_BACKEND", value_parser = FalseyValueParser::new())]
    pub(crate) allow_fake_backend: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Allow Python models. Their code runs as your user, so every caller who may register models
    /// runs code on this machine.
    #[arg(long)]
    pub(crate) allow_python: bool,
    /// Directory for all data [default: volley/up in the user's data directory].
    #[arg(long, env = "VOLLEY_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// IP address for REST and gRPC. All other listeners stay on the loopback address.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// File with the first API key. With it, every caller needs a key. You can also set the key in
    /// VOLLEY_BOOTSTRAP_KEY.
    #[arg(long)]
    pub(crate) bootstrap_key_file: Option<PathBuf>,
    /// File with a master key from `volley secret master-key`, which encrypts the secrets of
    /// connectors. Repeatable; the first key encrypts new secrets.
    #[arg(long = "master-key-file", value_name = "FILE")]
    pub(crate) master_key_files: Vec<PathBuf>,
    /// REST port. The next three ports are for Flight and Raft, the worker, and the worker's
    /// metrics. 0 selects four free ports.
    #[arg(long, default_value_t = 8420)]
    pub(crate) port: u16,
    /// Additional port that serves the same as the REST port, for clients with a fixed port: 8000
    /// for Triton, 8080 for MLServer and KServe. Repeatable.
    #[arg(long = "extra-http-port", value_name = "PORT")]
    pub(crate) extra_http_ports: Vec<u16>,
    /// Port for administration. Models, connectors, keys, secrets and nodes can then only be
    /// changed there; the REST port returns 403 for such requests.
    #[arg(long)]
    pub(crate) admin_port: Option<u16>,
    /// Additional port for Triton's gRPC, which the REST port also serves. Triton uses 8001.
    #[arg(long)]
    pub(crate) grpc_triton_port: Option<u16>,
    /// Port for the gRPC of MLServer and KServe, which use 8081.
    #[arg(long)]
    pub(crate) grpc_mlserver_port: Option<u16>,
    /// Web origin whose pages may call this cluster, such as `https://app.example` or
    /// `http://localhost:3000`. Repeatable.
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    pub(crate) cors_origins: Vec<String>,
    #[command(flatten)]
    pub(crate) fake: AllowFake,
    /// Largest request body, such as 64MiB [default: 16MiB].
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_body_size: Option<Size>,
    /// Largest body or message with tensors of the Open Inference Protocol, such as 256MiB
    /// [default: 64MiB].
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_tensor_size: Option<Size>,
}

/// Where replicas go, and how many.
#[derive(Debug, Args)]
pub(crate) struct PlacementArgs {
    /// Only use workers with this label, `name=value`. Repeatable.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Spread replicas over the values of this label.
    #[arg(long, value_name = "LABEL")]
    pub(crate) spread: Option<String>,
    /// Memory of one replica, in bytes.
    #[arg(long)]
    pub(crate) memory_bytes: Option<u64>,
    /// During a rollout: replicas above the requested number.
    #[arg(long)]
    pub(crate) max_surge: Option<u32>,
    /// During a rollout: replicas that may be missing.
    #[arg(long)]
    pub(crate) max_unavailable: Option<u32>,
    /// Keep this many replicas of the previously deployed version next to this one.
    #[arg(long, conflicts_with = "max_replicas")]
    pub(crate) keep_previous: Option<u32>,
    /// Scale with the load, up to this number of replicas.
    #[arg(long)]
    pub(crate) max_replicas: Option<u32>,
    /// Smallest number of replicas. 0 unloads an idle model.
    #[arg(long, requires = "max_replicas")]
    pub(crate) min_replicas: Option<u32>,
    /// Target utilization of the replicas' capacity, in percent.
    #[arg(long, requires = "max_replicas")]
    pub(crate) target_percent: Option<u32>,
    /// Add a replica if requests wait longer than this, in milliseconds.
    #[arg(long, requires = "max_replicas")]
    pub(crate) queue_wait_ms: Option<u32>,
    /// Idle time before a model is scaled to zero, in milliseconds.
    #[arg(long, requires = "max_replicas")]
    pub(crate) idle_ms: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rollout {
    /// Pause the rollout. Both versions keep serving.
    Pause {
        /// Name of the model.
        model: String,
    },
    /// Resume the rollout.
    Resume {
        /// Name of the model.
        model: String,
    },
    /// Roll back to the previous version.
    Undo {
        /// Name of the model.
        model: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Register a model, or the next version of a model.
    Register(Register),
    /// Deploy a model (`name`, or `name:version`).
    Deploy {
        /// Name of the model.
        model: String,
        /// Number of replicas [default: the current number, or 1 if the model is not deployed].
        #[arg(long, value_parser = replicas())]
        replicas: Option<u32>,
        /// Allow workers to unload the model while it is idle. The next request then waits until
        /// the model is loaded again [default: unchanged].
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        overcommit: Option<bool>,
        /// Wait until every replica is ready or loading has failed.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        options: PlacementArgs,
    },
    /// Control a rollout from one version to the next: pause, resume and undo.
    #[command(subcommand)]
    Rollout(Rollout),
    /// Stop serving a model.
    Undeploy {
        /// Name of the model.
        model: String,
    },
    /// Delete a model and all its versions.
    Delete {
        /// Name of the model.
        model: String,
    },
    /// List all models.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Inspect a local model directory, without a cluster.
    Inspect {
        /// Model directory, or a single .onnx file.
        path: PathBuf,
        /// Graph to inspect if there are several: the part of its file name between `model_` and
        /// `.onnx`.
        #[arg(long)]
        variant: Option<String>,
        /// File with the `model_config` (OpenSearch's form) to apply.
        #[arg(long)]
        model_config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the volley-model.json of a local directory. Workers need this file to fetch a
    /// directory over HTTP and to verify its contents.
    Manifest {
        /// Model directory.
        path: PathBuf,
    },
    /// Show one model.
    Show {
        /// Name of the model.
        model: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("source").args(["path", "from", "repository", "connector", "text", "fake"]))]
#[command(group = ArgGroup::new("model").required(true).multiple(true).args(["path", "from", "repository", "connector", "text", "fake", "backend"]))]
pub(crate) struct Register {
    /// Name of the model, which is also its id.
    #[arg(required_unless_present = "repository", conflicts_with = "repository")]
    pub(crate) name: Option<String>,
    /// ONNX model: directory on the workers.
    #[arg(long)]
    pub(crate) path: Option<PathBuf>,
    /// ONNX model to fetch: URL of an archive (.zip, .tar.gz), a graph (.onnx), or a directory
    /// (ends in /). Schemes: file, https, http, s3, gs, az.
    // Not `--url`, which is where the cluster is.
    #[arg(long, value_name = "URL")]
    pub(crate) from: Option<String>,
    /// SHA-256 of the fetched file; for a directory, of its volley-model.json.
    // A conflict of `from` with the given source would turn `requires` off.
    #[arg(long, value_name = "HEX", requires = "from")]
    #[arg(conflicts_with_all = ["path", "repository", "connector", "text", "fake"])]
    pub(crate) sha256: Option<String>,
    /// Triton model repository: directory on the workers. Registers all its models under the names
    /// of their directories.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) repository: Option<PathBuf>,
    /// Remote model: id of its connector.
    #[arg(long)]
    pub(crate) connector: Option<String>,
    /// Built-in model that splits its prompt into words.
    #[arg(long)]
    pub(crate) text: bool,
    /// Scripted model for tests and drills. Workers load it if they run with --allow-fake-backend.
    #[arg(long)]
    pub(crate) fake: bool,
    /// Backend that runs the model [default: onnx for files, remote for a connector].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["repository", "text", "fake"])]
    pub(crate) backend: Option<String>,
    /// Description for people.
    #[arg(long, default_value = "")]
    pub(crate) description: String,
    /// Default parameter, `name=value`. Repeatable.
    #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
    pub(crate) parameters: Vec<(String, serde_json::Value)>,
    /// Deploy the model immediately, with this number of replicas [default: the current number, or
    /// 1 if the model is not deployed].
    #[arg(long, num_args = 0..=1, value_name = "REPLICAS", value_parser = replicas())]
    pub(crate) deploy: Option<Option<u32>>,
    /// Wait until every replica is ready or loading has failed.
    #[arg(long, requires = "deploy")]
    pub(crate) wait: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Connector {
    /// Create a connector.
    Create {
        /// Id of the connector [default: random].
        #[arg(long)]
        id: Option<String>,
        /// Wire format of the server, such as openai [default: the URL decides].
        #[arg(long)]
        provider: Option<String>,
        /// Full URL for POST requests, such as https://host/v1/chat/completions.
        #[arg(long)]
        endpoint: String,
        /// Name of the model at the server.
        #[arg(long)]
        model: String,
        /// Where workers read the API key: env:NAME, file:/path or secret:NAME.
        #[arg(long)]
        credential: Option<String>,
        /// Default parameter, `name=value`. Repeatable.
        #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
        parameters: Vec<(String, serde_json::Value)>,
        /// Call the server once. If the call fails, no connector is created.
        #[arg(long)]
        test: bool,
    },
    /// Delete a connector.
    Delete {
        /// Id.
        id: String,
    },
    /// List all connectors, as JSON.
    List,
    /// Show a connector, as JSON.
    Show {
        /// Id.
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// Model: `name` or `name:version`.
    pub(crate) model: String,
    /// Prompt for a generation. `-` reads it from standard input.
    pub(crate) prompt: Option<String>,
    /// Inputs of a tensor model as JSON. `@file` reads a file, `-` reads standard input.
    #[arg(long, short, conflicts_with = "prompt")]
    pub(crate) input: Option<String>,
    /// Parameter, `name=value`. Repeatable.
    #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
    pub(crate) parameters: Vec<(String, serde_json::Value)>,
    /// Print the complete response as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of replicas within the limits of a deployment.
fn replicas() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(volley_registry::MAX_REPLICAS))
}

/// `name=value`; the value is JSON where it parses as such, else text.
fn parse_parameter(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("write name=value")?;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}
