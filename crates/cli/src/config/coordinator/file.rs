//! The keys of a coordinator's file. `docs/reference/configuration.md` is generated from the
//! comments: the last line of one gives the key's default, where it has one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use volley_artifacts::upload;
use volley_types::PredictError;
use volley_types::registry::ModelUrl;

use crate::config::otlp::OtlpSection;
use crate::config::security::CoordinatorSection;
use crate::config::{Count, Size, Span};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: Node,
    pub(super) listen: Listen,
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) grpc: Grpc,
    #[serde(default)]
    pub(super) browser: Browser,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) security: CoordinatorSection,
    #[serde(default)]
    pub(super) egress: Egress,
    #[serde(default)]
    pub(super) uploads: Uploads,
    pub(super) otlp: Option<OtlpSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// The coordinator's number, unique in the cluster. A coordinator that lost its data returns
    /// with a new number.
    pub(super) id: u64,
    /// Directory for this coordinator's copy of the registry and its audit log.
    pub(super) data_dir: PathBuf,
    /// Availability zone of this coordinator. Requests prefer workers whose `zone` label has the
    /// same value.
    pub(super) zone: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    /// Address that serves REST, and gRPC in Triton's dialect.
    pub(super) public: String,
    /// More addresses that serve the same as `public`, for clients that expect another port:
    /// Triton's REST port is 8000, the port of MLServer and KServe is 8080. Each address has its
    /// own `limits.max_connections`.
    #[serde(default)]
    pub(super) also: Vec<String>,
    /// Address for administration. If it is set, only this address serves the routes that need
    /// the role `model-admin` or `cluster-admin`, and the other addresses answer them with 403.
    /// This address also serves all other routes.
    pub(super) admin: Option<String>,
    /// Address that serves Flight and Raft to other nodes.
    pub(super) internal: String,
    /// Address at which other nodes reach `internal`. Required if `internal` listens on every
    /// address.
    /// Default: the value of `internal`
    pub(super) advertise: Option<String>,
    /// Whether clients may register system shared memory.
    /// Default: `true` if `public` and `also` are loopback addresses, else `false`
    pub(super) shared_memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    /// The first members of a new cluster: a table from id to internal address. Use the same table
    /// in each member's file. You may start the members in any order; the cluster forms once all
    /// of them run. A node with an empty directory asks the other members whether the cluster
    /// exists. A node that has a membership ignores the table.
    #[serde(default)]
    pub(super) bootstrap: BTreeMap<String, String>,
    /// Internal addresses of a running cluster. The node asks them in turn until one admits it.
    #[serde(default)]
    pub(super) join: Vec<String>,
    /// Whether the node waits until `volley cluster add` or `volley cluster replace` admits it.
    #[serde(default)]
    pub(super) wait: bool,
    /// Log entries between two snapshots.
    /// Default: `1000`
    pub(super) snapshot_every: Option<Count>,
    /// How long a write may wait for its acknowledgment before it fails with `unavailable`. If
    /// `raft_multiplier` is set, this must be longer than the leader's lease.
    /// Default: `"2s"` times `raft_multiplier`
    pub(super) write_timeout: Option<Span>,
    /// Factor by which all Raft timeouts are lengthened, from 1 to 10, for slow disks and slow
    /// networks. Use the same value on all coordinators.
    /// Default: `1`
    pub(super) raft_multiplier: Option<u32>,
    /// Highest feature level that this node accepts. Set a lower level during an upgrade to keep a
    /// rollback possible.
    /// Default: the highest level of this version
    pub(super) compatibility_level: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Grpc {
    /// Address for Triton's dialect. Triton's own port is 8001.
    pub(super) triton: Option<String>,
    /// Address for the dialect of MLServer and KServe. Their own port is 8081.
    pub(super) mlserver: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Browser {
    /// Web origins such as `"https://app.example"` whose pages may call this coordinator (CORS)
    /// and open WebSockets to it. Pages of other origins get 403. The hosts of these origins are
    /// also accepted in `Host` by a loopback listener without keys. `volley up` and
    /// `volley coordinator` accept more origins as `--cors-origin`.
    pub(super) origins: Vec<String>,
}

/// Where connectors and models that are registered may lead.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Egress {
    /// Whether URLs may name private and loopback addresses.
    /// Default: `true`
    pub(super) allow_private: Option<bool>,
    /// The only hosts that URLs may name: names, addresses, or `"*.example.org"` for all names
    /// below a domain.
    /// Default: every host
    pub(super) allowed_hosts: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Predictions that may run at the same time. More are rejected with 429. While at least half
    /// of them run, each tenant is limited to an equal share.
    /// Default: `10000`
    pub(super) max_streams: Option<Count>,
    /// Connections to REST. More are rejected with 503.
    /// Default: `20000`
    pub(super) max_connections: Option<Count>,
    /// Connections from one address, or from one /64 network over IPv6. More are rejected with 429.
    /// No address is exempt. Raise the limit if a proxy or load balancer makes all callers share
    /// one address.
    /// Default: half of `max_connections`
    pub(super) max_connections_per_address: Option<Count>,
    /// Wrong credentials that one address (one /64 network over IPv6) may present in a burst. After
    /// that, the address gets 429 with `Retry-After` for every credential except those that
    /// succeeded from there before.
    /// Default: `200`
    pub(super) failed_auth_burst: Option<Count>,
    /// Wrong credentials that the address may then present per minute.
    /// Default: `60`
    pub(super) failed_auth_per_minute: Option<Count>,
    /// Memory for all request bodies and their parsed form. A body counts the memory that it needs
    /// when it is read: a JSON array of numbers at most five times its text, other JSON by its
    /// values. A body that does not fit at the moment gets 429; one that can never fit gets 413.
    /// Default: `"2GiB"`
    pub(super) max_inflight_body_bytes: Option<Size>,
    /// Largest request body in bytes. The flag for `volley up` is `--max-body-bytes`.
    /// Default: `16777216`
    pub(super) max_body_bytes: Option<Count>,
    /// Largest body or message with tensors of the Open Inference Protocol in bytes, over REST and
    /// gRPC. The flag for `volley up` is `--max-tensor-bytes`.
    /// Default: `67108864`
    pub(super) max_tensor_bytes: Option<Count>,
    /// Replicas that are tried for one prediction before its first chunk.
    /// Default: `3`
    pub(super) max_tries: Option<Count>,
    /// Time over which a new replica receives a growing share of the requests.
    /// Default: `"10s"`
    pub(super) slow_start: Option<Span>,
    /// Time after which a request without a response is also sent to a second replica. Generations
    /// are never sent twice. `retry_ratio` limits these requests too.
    /// Default: never
    pub(super) hedge_after: Option<Span>,
    /// How long a request waits for a model that was scaled to zero.
    /// Default: `"1m"`
    pub(super) wake_timeout: Option<Span>,
    /// Requests that may wait for such models at the same time. More are rejected with 429.
    /// Default: `256`
    pub(super) max_waking: Option<Count>,
    /// Share of the registry's limits (entries of each kind, and bytes) that one tenant may use, in
    /// percent.
    /// Default: `25`
    pub(super) tenant_share: Option<usize>,
    /// Average number of retries per request. With 0.2, a failing cluster receives at most 20 %
    /// more load.
    /// Default: `0.2`
    pub(super) retry_ratio: Option<f64>,
    /// Deadline of a prediction whose caller sets none.
    /// Default: `"5m"`
    pub(super) request_timeout: Option<Span>,
    /// Longest deadline that a caller may set.
    /// Default: `"1h"`
    pub(super) max_request_timeout: Option<Span>,
    /// Time for the headers of a request to arrive.
    /// Default: `"10s"`
    pub(super) header_timeout: Option<Span>,
    /// Time for the body of a request to arrive.
    /// Default: `"30s"`
    pub(super) body_timeout: Option<Span>,
    /// Silence on a stream after which a comment is sent. Many clients and proxies close a silent
    /// connection after 30 s.
    /// Default: `"15s"`
    pub(super) keep_alive: Option<Span>,
    /// A client that reads nothing for this time is disconnected. So is a WebSocket that does not
    /// answer pings.
    /// Default: `"1m"`
    pub(super) write_stall: Option<Span>,
    /// Connections without a request are closed after this time, even if they answer HTTP/2 pings.
    /// Over HTTP/1, the next request must also arrive within `header_timeout`.
    /// Default: `"5m"`
    pub(super) idle_timeout: Option<Span>,
    /// How long a resumable stream waits for its client to return.
    /// Default: `"1m"`
    pub(super) resume_window: Option<Span>,
    /// Bytes that are kept of one resumable stream.
    /// Default: `4194304`
    pub(super) resume_stream_bytes: Option<Count>,
    /// Bytes that are kept of one tenant's resumable streams.
    /// Default: `67108864`
    pub(super) resume_tenant_bytes: Option<Count>,
    /// Bytes that are kept of all resumable streams.
    /// Default: `268435456`
    pub(super) resume_total_bytes: Option<Count>,
    /// How long a coordinator keeps a stored response.
    /// Default: `"1h"`
    pub(super) responses_age: Option<Span>,
    /// Stored responses of one tenant. The oldest are deleted first.
    /// Default: `4096`
    pub(super) responses_tenant_count: Option<Count>,
    /// Largest stored response in bytes, including its conversation. A larger response is not
    /// stored and contains `"store": false`.
    /// Default: `4194304`
    pub(super) responses_response_bytes: Option<Count>,
    /// Bytes of one tenant's stored responses.
    /// Default: `33554432`
    pub(super) responses_tenant_bytes: Option<Count>,
    /// Bytes of all stored responses.
    /// Default: `134217728`
    pub(super) responses_total_bytes: Option<Count>,
    /// How long running streams may take to end after SIGTERM.
    /// Default: `"30s"`
    pub(super) drain_timeout: Option<Span>,
    /// After SIGTERM, how long the coordinator still accepts requests while its readiness is
    /// already false, and closes HTTP/1 connections after their responses. Behind a load balancer,
    /// set it a little longer than the interval between two health checks.
    /// Default: `"500ms"`
    pub(super) drain_grace: Option<Span>,
    /// Silence after which a worker is suspect and tried last.
    /// Default: `"1500ms"`
    pub(super) suspect_after: Option<Span>,
    /// Silence after which a worker is dead and receives no requests.
    /// Default: `"3s"`
    pub(super) dead_after: Option<Span>,
    /// Time after which the replicas of a dead worker are placed on other workers.
    /// Default: `"10s"`
    pub(super) replace_after: Option<Span>,
    /// How long a model, a worker and the leader must be unchanged before replicas move from full
    /// workers to emptier ones. The cluster settings decide whether they move at all. Use the same
    /// value on all coordinators.
    /// Default: `"1m"`
    pub(super) rebalance_after: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Uploads {
    /// URL of the place for the files of models that come with a load. It ends in `/`, and every
    /// worker reaches it: `"s3://bucket/models/"` or `"file:///mnt/models/"`. The settings of a
    /// bucket are in the environment, for example `AWS_REGION`. Volley stores the same files once
    /// and deletes none. If it is not set, loads with files are rejected.
    pub(super) store: Option<String>,
}

impl Uploads {
    pub(super) fn store(self) -> anyhow::Result<Option<ModelUrl>> {
        let Some(text) = self.store else {
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
}
