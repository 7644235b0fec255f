//! Measures the cost of running a model in its own process: the same requests to the same model,
//! loaded in this process and in a child process, in alternating rounds. Each line is the median of
//! the rounds, and each ratio the median of the ratios per round.
//!
//!     cargo run --release -p volley-model-host --example isolation_rate -- [ENCODER [DECODER [GRAPH]]]
//!
//! Without arguments it uses the small models of this repository, which run for microseconds and so
//! show the maximum relative cost. `scripts/bench-peers.sh isolation` passes models of common size.
//! CPU time is that of both processes together.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_model_host::{HostedLoader, Program, Use, runtime};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{
    Input, ModelName, ModelRef, ModelVersion, ParamValue, Parameters, PredictRequest,
};

/// As in the `volley` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 7;
/// Minimum duration of a round.
const TURN: Duration = Duration::from_millis(700);
const TOKENS: i64 = 128;
/// The unit of `/proc/PID/stat`, which Linux fixes for user space.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Serialize, Deserialize)]
struct Settings {
    library: PathBuf,
    onnx: OnnxConfig,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["model-host"] {
        let config = runtime::receive_config().await?;
        let Settings { library, onnx } = config.settings()?;
        let loader = OnnxLoader::new(Runtime::init(&library), onnx);
        return Ok(config.serve(&loader).await?);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = |at: usize, default: &str| {
        let given = arguments.get(at).map(PathBuf::from);
        let path = given.unwrap_or_else(|| here.join(default));
        path.canonicalize()
            .with_context(|| format!("no model at {}", path.display()))
    };
    let places = Loaders::new()?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| | in the worker, 1/s | in a process, 1/s | ratio | p50 in ms | | CPU-µs | |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    let encoder = directory(0, "../backend-onnx/tests/models/text-embed")?;
    places.measure(&encoder, Kind::Text, &[1, 8, 32]).await?;
    let graph = directory(2, "../../models/classifier")?;
    places.measure(&graph, Kind::Pixels, &[1, 8, 32]).await?;
    let decoder = directory(1, "../../models/storyteller")?;
    places.measure(&decoder, Kind::Story, &[1, 8, 32]).await
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One text to embed.
    Text,
    /// One row of tensors.
    Pixels,
    /// A generation; each token counts.
    Story,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "texts",
            Self::Pixels => "rows of tensors",
            Self::Story => "tokens",
        }
    }

    fn request(self) -> anyhow::Result<PredictRequest> {
        let text = |text| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let batch = match self {
            Self::Text => RecordBatch::try_from_iter([("text", text("river bank in the rain"))])?,
            Self::Pixels => {
                let item = Arc::new(Field::new("item", DataType::Float32, false));
                let values: ArrayRef = Arc::new(Float32Array::from(vec![0.5; 64]));
                let rows = FixedSizeListArray::try_new(item, 64, values, None)?;
                RecordBatch::try_from_iter([("pixels", Arc::new(rows) as ArrayRef)])?
            }
            Self::Story => RecordBatch::try_from_iter_with_nullable([(
                "prompt",
                text("Tell me a story about a fox."),
                true,
            )])?,
        };
        let model = ModelRef::deployed(ModelName::new("measured")?);
        let mut request = PredictRequest::new(model, Input::Batch(batch));
        if self == Self::Story {
            request.parameters = [
                ("max_tokens".to_owned(), ParamValue::Int(TOKENS)),
                ("ignore_eos".to_owned(), ParamValue::Bool(true)),
            ]
            .into_iter()
            .collect();
        }
        Ok(request)
    }

    /// Number of counted units of a request.
    fn weight(self) -> f64 {
        match self {
            Self::Text | Self::Pixels => 1.0,
            Self::Story => TOKENS as f64,
        }
    }
}

/// The two ways to load a model.
struct Loaders {
    here: OnnxLoader,
    beside: HostedLoader,
}

/// The results of a round.
#[derive(Clone, Copy)]
struct Turn {
    /// Counted units per second.
    rate: f64,
    /// Median latency of the requests, in milliseconds.
    latency: f64,
    /// CPU time per counted unit, in microseconds.
    cpu: f64,
}

impl Loaders {
    fn new() -> anyhow::Result<Self> {
        let library = Runtime::locate(None)?;
        let onnx = OnnxConfig {
            device: Device::Cpu,
            threads: 1,
            ..OnnxConfig::default()
        };
        let runtime = Runtime::init(&library)?;
        let settings = serde_json::to_value(Settings { library, onnx })?;
        let inner = Arc::new(OnnxLoader::new(Ok(runtime.clone()), onnx));
        let program = Program::this(&["model-host"], settings);
        Ok(Self {
            here: OnnxLoader::new(Ok(runtime), onnx),
            beside: HostedLoader::new(inner, program, Use::Serve, Metrics::new()),
        })
    }

    /// Measures both ways in alternating rounds, for each number of concurrent callers. The first
    /// round is a warm-up.
    async fn measure(&self, model: &Path, kind: Kind, callers: &[usize]) -> anyhow::Result<()> {
        let assignment = assignment(model)?;
        let here = self.here.load(&assignment).await?;
        let beside = self.beside.load(&assignment).await?;
        for callers in callers.iter().copied() {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for round in 0..=ROUNDS {
                let (first, second) = if round % 2 == 0 {
                    (&here, &beside)
                } else {
                    (&beside, &here)
                };
                let first = turn(first, kind, callers).await?;
                let second = turn(second, kind, callers).await?;
                if round != 0 {
                    let (own, other) = if round % 2 == 0 {
                        (first, second)
                    } else {
                        (second, first)
                    };
                    ours.push(own);
                    theirs.push(other);
                }
            }
            print(kind, callers, &ours, &theirs)?;
        }
        Ok(())
    }
}

fn print(kind: Kind, callers: usize, ours: &[Turn], theirs: &[Turn]) -> anyhow::Result<()> {
    let middle = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
    let ratios = ours.iter().zip(theirs);
    let ratio = median(ratios.map(|(own, other)| other.rate / own.rate).collect());
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| {}, {callers} at once | {:.0} | {:.0} | {ratio:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
        kind.name(),
        middle(ours, |turn| turn.rate),
        middle(theirs, |turn| turn.rate),
        middle(ours, |turn| turn.latency),
        middle(theirs, |turn| turn.latency),
        middle(ours, |turn| turn.cpu),
        middle(theirs, |turn| turn.cpu),
    )?;
    Ok(())
}

/// Runs callers that each send the next request as soon as the answer arrives.
async fn turn(model: &Arc<dyn Backend>, kind: Kind, callers: usize) -> anyhow::Result<Turn> {
    let (cpu, started) = (cpu()?, Instant::now());
    let each = (0..callers).map(|_| {
        let model = model.clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            while started.elapsed() < TURN {
                let since = Instant::now();
                let answer = model.predict(kind.request()?).await?;
                let batches: Vec<_> = answer.try_collect().await?;
                ensure!(!batches.is_empty(), "an answer without rows");
                took.push(since.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(took)
        })
    });
    let mut took = Vec::new();
    for caller in try_join_all(each).await? {
        took.extend(caller?);
    }
    let (elapsed, counted) = (started.elapsed(), took.len() as f64 * kind.weight());
    let used = self::cpu()?.saturating_sub(cpu);
    Ok(Turn {
        rate: counted / elapsed.as_secs_f64(),
        latency: median(took),
        cpu: used.as_secs_f64() * 1e6 / counted,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// CPU time of this process and its children.
fn cpu() -> anyhow::Result<Duration> {
    let own = std::process::id().to_string();
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Ok(stat) = std::fs::read_to_string(Path::new("/proc").join(&name).join("stat")) else {
            continue;
        };
        // The program name, in parentheses, may contain any character.
        let Some((_, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if name.to_str() == Some(&own) || fields.get(1) == Some(&own.as_str()) {
            let tick = |at: usize| fields.get(at).and_then(|it| it.parse::<u32>().ok());
            ticks += tick(11).unwrap_or(0) + tick(12).unwrap_or(0);
        }
    }
    Ok(TICK * ticks)
}

fn assignment(directory: &Path) -> anyhow::Result<Assignment> {
    Ok(Assignment {
        model: ModelName::new("measured")?,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::ONNX,
            source: ModelSource::Path(directory.to_string_lossy().into_owned()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    })
}
