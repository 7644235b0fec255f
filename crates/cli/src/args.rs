//! The command line.

pub(crate) mod ops;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use volley_telemetry::LogFormat;

mod access;
mod named;

pub(crate) use access::{KeyLimits, Keys, Secrets};
pub(crate) use named::{Aliases, Pipelines};

/// The address that client commands call where none is given.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8420";

/// An inference cluster in one binary: coordinators and workers, local and remote models.
#[derive(Debug, Parser)]
#[command(name = "volley", version, about, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Coordinators to call, separated by commas; the next is tried when one cannot be reached.
    #[arg(long, env = "VOLLEY_URL", global = true, value_delimiter = ',', default_value = DEFAULT_URL)]
    pub(crate) url: Vec<String>,
    /// The API key for client commands; better given in the environment, where other users of
    /// this machine do not see it.
    #[arg(long, env = "VOLLEY_API_KEY", global = true, hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// The certificates of the authority that the coordinators' own are checked by, where it is
    /// not one that this machine trusts.
    #[arg(long, env = "VOLLEY_CA_FILE", global = true)]
    pub(crate) ca_file: Option<PathBuf>,
    /// What to log, for example `info` or `volley_coordinator=debug,warn`.
    #[arg(long, env = "VOLLEY_LOG", global = true)]
    pub(crate) log: Option<String>,
    /// How log lines look.
    #[arg(long, env = "VOLLEY_LOG_FORMAT", global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) log_format: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
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
    /// Run a whole cluster in this process: one coordinator, one worker, two demo models.
    Up(Up),
    /// Run a coordinator.
    Coordinator {
        /// Its configuration file.
        #[arg(long, short)]
        config: PathBuf,
    },
    /// Run a worker.
    Worker {
        /// Its configuration file.
        #[arg(long, short)]
        config: PathBuf,
    },
    /// Hold one model: what a worker runs for models in processes of their own.
    #[command(hide = true)]
    ModelHost,
    /// Register, deploy, undeploy, delete, list and show models.
    #[command(subcommand)]
    Model(Model),
    /// Create, delete, list and show connectors to remote models.
    #[command(subcommand)]
    Connector(Connector),
    /// Add and remove coordinators.
    #[command(subcommand)]
    Node(Node),
    /// Show, add, remove and replace coordinators, and choose who leads them.
    #[command(subcommand)]
    Cluster(ops::Cluster),
    /// Keep the registry (models, connectors, deployments, keys) in a file or an object store.
    Backup(ops::Backup),
    /// Make a new cluster of a backup: its first coordinator's data, on this machine.
    Restore(ops::Restore),
    /// Make a new cluster of what one coordinator has left, when most of them are lost for ever.
    Recover(ops::Recover),
    /// Point names at models and versions: split, mirror and switch traffic.
    #[command(subcommand)]
    Aliases(Aliases),
    /// Put graphs of models behind one name.
    #[command(subcommand)]
    Pipelines(Pipelines),
    /// Make, list, rotate and revoke API keys.
    #[command(subcommand)]
    Keys(Keys),
    /// Secrets that the cluster holds sealed, for connectors.
    #[command(subcommand)]
    Secrets(Secrets),
    /// Check that a node's audit trail was changed by nobody.
    Audit {
        /// The file, `audit.jsonl` in the node's data directory.
        file: PathBuf,
    },
    /// Ask a model; text is streamed to the terminal as it comes.
    Predict(Predict),
    /// Run SQL over Parquet, CSV and NDJSON files, with models as functions.
    #[cfg(feature = "sql")]
    Sql(Sql),
    /// Show nodes, roles, leader, replicas and load.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a worker or a coordinator out of work: it gets nothing new, others take over, and it
    /// finishes what it has.
    Drain(ops::Drain),
    /// Put a node to work again.
    Undrain(ops::Drained),
    /// Show who works on what right now: requests, queues, times to first chunk.
    Top(ops::Top),
    /// Check this machine, a node's configuration and the coordinators, and say what to do.
    Doctor(ops::Doctor),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where everything is kept [default: the user's data directory, in volley/up].
    #[arg(long, env = "VOLLEY_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The IP address to serve REST and gRPC on; everything else stays on this machine.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// A file with the first API key; from then on every caller needs one. Also taken from the
    /// environment variable VOLLEY_BOOTSTRAP_KEY.
    #[arg(long)]
    pub(crate) bootstrap_key_file: Option<PathBuf>,
    /// A file with a master key, made by `volley secrets master-key`: the cluster takes secrets of
    /// connectors, sealed under it. May be given several times; the first seals.
    #[arg(long = "master-key-file", value_name = "FILE")]
    pub(crate) master_key_files: Vec<PathBuf>,
    /// The REST port; the next three are for Flight and Raft, the worker, and its metrics. 0
    /// takes any four that are free.
    #[arg(long, default_value_t = 8420)]
    pub(crate) port: u16,
    /// Another port for all that the REST port has, for clients that know no other: Triton's is
    /// 8000, MLServer's and KServe's 8080. May be given several times.
    #[arg(long = "also-port", value_name = "PORT")]
    pub(crate) also_ports: Vec<u16>,
    /// Another port for gRPC as Triton speaks it, which the REST port does too; Triton's own is
    /// 8001.
    #[arg(long)]
    pub(crate) triton_grpc: Option<u16>,
    /// A port for gRPC as MLServer and KServe speak it; their own is 8081.
    #[arg(long)]
    pub(crate) mlserver_grpc: Option<u16>,
}

/// Where replicas go, and how many.
#[derive(Debug, Args)]
pub(crate) struct Placing {
    /// Only workers with this label, `name=value`; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Spread the replicas over the values of this label.
    #[arg(long, value_name = "LABEL")]
    pub(crate) spread: Option<String>,
    /// Bytes that a replica takes of its worker's memory.
    #[arg(long)]
    pub(crate) memory_bytes: Option<u64>,
    /// While a version replaces another: replicas beyond the number asked for.
    #[arg(long)]
    pub(crate) max_surge: Option<u32>,
    /// While a version replaces another: replicas that may be missing.
    #[arg(long)]
    pub(crate) max_unavailable: Option<u32>,
    /// Keep this many replicas of the version deployed before beside this one.
    #[arg(long, conflicts_with = "max_replicas")]
    pub(crate) beside: Option<u32>,
    /// Let the number of replicas follow the load, up to this many.
    #[arg(long)]
    pub(crate) max_replicas: Option<u32>,
    /// The fewest replicas; 0 lets an idle model go.
    #[arg(long, requires = "max_replicas")]
    pub(crate) min_replicas: Option<u32>,
    /// The part of all places that shall be taken, in percent.
    #[arg(long, requires = "max_replicas")]
    pub(crate) target_percent: Option<u32>,
    /// A queue wait above this asks for one more replica.
    #[arg(long, requires = "max_replicas")]
    pub(crate) queue_wait_ms: Option<u32>,
    /// How long a model is idle before it is let go.
    #[arg(long, requires = "max_replicas")]
    pub(crate) idle_ms: Option<u32>,
}

/// What is done to a roll.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Roll {
    /// Halt it; both versions go on serving.
    Pause,
    /// Go on.
    Resume,
    /// Go back to the version before.
    Back,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Register a model, or the next version of one.
    Register(Register),
    /// Deploy a model (`name`, or `name:version`).
    Deploy {
        /// The model.
        model: String,
        /// How many workers shall hold it.
        #[arg(long, default_value_t = 1)]
        replicas: u32,
        /// Workers may unload it while it is idle, to make room for others; the next request
        /// then waits until it is loaded again.
        #[arg(long)]
        overcommit: bool,
        /// Wait until every replica is ready, or loading failed.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        options: Placing,
    },
    /// Steer the roll from one version to the next.
    Roll {
        /// What to do.
        #[arg(value_enum)]
        action: Roll,
        /// The model.
        model: String,
    },
    /// Stop serving a model.
    Undeploy {
        /// The model.
        model: String,
    },
    /// Delete a model and all its versions.
    Delete {
        /// The model.
        model: String,
    },
    /// List all models.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tell what a model's directory on this machine is understood to be, without a cluster.
    Inspect {
        /// The directory, or a single .onnx file.
        path: PathBuf,
        /// One of several graphs, by what stands between `model_` and `.onnx`.
        #[arg(long)]
        variant: Option<String>,
        /// A file with the `model_config`, in OpenSearch's form, that it would be registered with.
        #[arg(long)]
        model_config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the volley-model.json of a directory on this machine: what a directory needs to be
    /// fetched over HTTP, and to be checked wherever it comes from.
    Manifest {
        /// The directory.
        path: PathBuf,
    },
    /// Show one model.
    Show {
        /// The model.
        model: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("source").required(true).args(["path", "from", "connector", "text", "fake"]))]
pub(crate) struct Register {
    /// The model's name, which becomes its id.
    pub(crate) name: String,
    /// An ONNX model: its directory on the workers.
    #[arg(long)]
    pub(crate) path: Option<PathBuf>,
    /// An ONNX model that workers fetch: an archive (.zip, .tar.gz), a graph (.onnx), or a
    /// directory (ends in /), at file, https, http, s3, gs or az.
    // Not `--url`, which is where the cluster is.
    #[arg(long, value_name = "URL")]
    pub(crate) from: Option<String>,
    /// The SHA-256 of what is fetched; of a directory, that of its volley-model.json.
    #[arg(long, value_name = "HEX", requires = "from")]
    pub(crate) sha256: Option<String>,
    /// A remote model: its connector.
    #[arg(long)]
    pub(crate) connector: Option<String>,
    /// The word-splitting model, which needs nothing.
    #[arg(long)]
    pub(crate) text: bool,
    /// The scripted model, for tests and drills.
    #[arg(long)]
    pub(crate) fake: bool,
    /// A sentence for people.
    #[arg(long, default_value = "")]
    pub(crate) description: String,
    /// A default parameter, `name=value`; may be repeated.
    #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
    pub(crate) parameters: Vec<(String, serde_json::Value)>,
    /// Deploy it at once, on this many workers.
    #[arg(long, num_args = 0..=1, default_missing_value = "1")]
    pub(crate) deploy: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Connector {
    /// Create a connector.
    Create {
        /// Its id [default: made up].
        #[arg(long)]
        id: Option<String>,
        /// Whose wire format the server speaks.
        #[arg(long, default_value = "openai", value_parser = ["openai", "anthropic"])]
        provider: String,
        /// The full URL to POST to, for example https://host/v1/chat/completions.
        #[arg(long)]
        endpoint: String,
        /// The model's name at the server.
        #[arg(long)]
        model: String,
        /// Where each worker finds the key: env:NAME or file:/path.
        #[arg(long)]
        credential: Option<String>,
        /// A default parameter, `name=value`; may be repeated.
        #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
        parameters: Vec<(String, serde_json::Value)>,
    },
    /// Delete a connector.
    Delete {
        /// Its id.
        id: String,
    },
    /// List all connectors, as JSON.
    List,
    /// Show a connector, as JSON.
    Show {
        /// Its id.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// Add a coordinator that is running.
    Join {
        /// Its id.
        id: u64,
        /// Its internal address, host:port.
        address: String,
    },
    /// Remove a coordinator.
    Leave {
        /// Its id.
        id: u64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The model (`name`, or `name:version`).
    pub(crate) model: String,
    /// The prompt of a generation; `-` reads it from standard input.
    pub(crate) prompt: Option<String>,
    /// The inputs of a tensor model, as JSON; `@file` reads a file, `-` standard input.
    #[arg(long, short, conflicts_with = "prompt")]
    pub(crate) input: Option<String>,
    /// A parameter, `name=value`; may be repeated.
    #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
    pub(crate) parameters: Vec<(String, serde_json::Value)>,
    /// Print the whole answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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

/// `volley sql`.
#[cfg(feature = "sql")]
#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// The statement; `FROM 'file.parquet'` reads a file.
    pub(crate) statement: String,
    /// A coordinator's Flight: `grpc://HOST:PORT`, or `grpc+tls://HOST:PORT` with --ca-file.
    #[arg(long, env = "VOLLEY_FLIGHT", default_value = "grpc://127.0.0.1:8421")]
    pub(crate) flight: String,
    /// A file or folder under a name of its own: `--table books=books.csv`; repeatable.
    #[arg(long = "table", value_name = "NAME=PATH", value_parser = table)]
    pub(crate) tables: Vec<(String, String)>,
    /// How rows are printed.
    #[arg(long, value_enum, default_value_t = SqlFormat::Table)]
    pub(crate) format: SqlFormat,
    /// Rows of one call of a model.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(usize))]
    pub(crate) rows_per_call: usize,
    /// How long one call of a model may take.
    #[arg(long, default_value = "10m")]
    pub(crate) call_timeout: humantime::Duration,
}

/// How `volley sql` prints rows.
#[cfg(feature = "sql")]
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SqlFormat {
    /// For people; at most 10,000 rows.
    Table,
    /// Comma-separated values, as rows come.
    Csv,
    /// One JSON object a line, as rows come.
    Json,
}

#[cfg(feature = "sql")]
fn table(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.to_owned()))
        }
        _ => Err("a table must have the form NAME=PATH".to_owned()),
    }
}
