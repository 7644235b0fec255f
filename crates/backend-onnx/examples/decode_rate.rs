//! Prints decode rates of a generation model. `decode_rate` alone compares the two loops below on
//! the demo model, in turns. `decode_rate DIRECTORY PROMPT` does as it is told: for each line
//! `bare ROWS TOKENS` (a bare loop over ONNX Runtime) or `engine ROWS TOKENS` (the same through
//! the backend that a worker runs, one request for each row) on standard input it generates once
//! and prints the tokens in a second, so that a benchmark can have them take turns.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::TryStreamExt;
use futures::future::try_join_all;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::bare::BareModel;
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_types::registry::{Assignment, BackendKind, ModelSource, ModelVersionSpec};
use volley_types::{
    Input, ModelName, ModelRef, ModelVersion, ParamValue, Parameters, PredictRequest,
};

/// As in the `volley` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/storyteller");
const DEMO_PROMPT: &str = "Tell me a story about a fox.";
const DEMO_TOKENS: usize = 256;
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => compare(&mut Loops::load(DEMO, DEMO_PROMPT)?),
        [directory, prompt] => obey(&mut Loops::load(directory, prompt)?),
        _ => bail!(
            "usage: decode_rate, or decode_rate DIRECTORY PROMPT and lines of bare|engine ROWS TOKENS"
        ),
    }
}

/// Runs what standard input asks for.
fn obey(loops: &mut Loops) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let [kind, rows, tokens] = words.as_slice() else {
            bail!("write bare|engine ROWS TOKENS")
        };
        let (rows, tokens) = (rows.parse()?, tokens.parse()?);
        let rate = match *kind {
            "bare" => loops.bare(rows, tokens)?,
            "engine" => loops.engine(rows, tokens)?,
            _ => bail!("write bare|engine ROWS TOKENS"),
        };
        writeln!(std::io::stdout(), "{rate}")?;
    }
    Ok(())
}

/// Both loops at 1, 8 and 32 requests at once; the first round of each warms up.
fn compare(loops: &mut Loops) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "tokens/s, {DEMO_TOKENS} tokens a request, median of {ROUNDS} in turns"
    )?;
    for rows in [1, 8, 32] {
        let (mut bare, mut engine, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let rates = (
                loops.bare(rows, DEMO_TOKENS)?,
                loops.engine(rows, DEMO_TOKENS)?,
            );
            if round != 0 {
                bare.push(rates.0);
                engine.push(rates.1);
                ratio.push(rates.1 / rates.0);
            }
        }
        let (bare, engine, ratio) = (median(bare), median(engine), median(ratio));
        writeln!(
            out,
            "{rows:>2} at once: bare {bare:>6.0}, engine {engine:>6.0}, ratio {ratio:.2}"
        )?;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The two loops, on the same model.
struct Loops {
    bare: BareModel,
    engine: Arc<dyn Backend>,
    prompt: String,
    // Outlives the engine.
    tokio: tokio::runtime::Runtime,
}

impl Loops {
    fn load(directory: &str, prompt: &str) -> anyhow::Result<Self> {
        let runtime = Runtime::init(&Runtime::locate(None)?)?;
        let config = OnnxConfig {
            device: Device::Cpu,
            ..OnnxConfig::default()
        };
        let bare = BareModel::load(&runtime, Path::new(directory), prompt, config)?;
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let loader = OnnxLoader::new(Ok(runtime), config);
        let engine = tokio.block_on(loader.load(&assignment(directory)?))?;
        Ok(Self {
            bare,
            engine,
            prompt: prompt.to_owned(),
            tokio,
        })
    }

    fn bare(&mut self, rows: usize, tokens: usize) -> anyhow::Result<f64> {
        Ok(self.bare.run(rows, tokens)?.0.rate())
    }

    fn engine(&self, rows: usize, tokens: usize) -> anyhow::Result<f64> {
        let run = through_engine(&self.engine, &self.prompt, rows, tokens);
        self.tokio.block_on(run)
    }
}

fn assignment(directory: &str) -> anyhow::Result<Assignment> {
    Ok(Assignment {
        model: ModelName::new("decode")?,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendKind::Onnx,
            source: ModelSource::Path(directory.to_owned()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    })
}

async fn through_engine(
    engine: &Arc<dyn Backend>,
    prompt: &str,
    rows: usize,
    tokens: usize,
) -> anyhow::Result<f64> {
    let column: ArrayRef = Arc::new(StringArray::from(vec![prompt]));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", column, true)])?;
    let model = ModelRef::deployed(ModelName::new("decode")?);
    let limit = i64::try_from(tokens).context("too many tokens")?;
    let parameters: Parameters = [
        ("max_tokens".to_owned(), ParamValue::Int(limit)),
        ("ignore_eos".to_owned(), ParamValue::Bool(true)),
    ]
    .into_iter()
    .collect();
    let started = Instant::now();
    let streams = (0..rows).map(|_| {
        let (batch, model, parameters) = (batch.clone(), model.clone(), parameters.clone());
        let engine = engine.clone();
        tokio::spawn(async move {
            let mut request = PredictRequest::new(model, Input::Batch(batch));
            request.parameters = parameters;
            let batches: Vec<_> = engine.predict(request).await?.try_collect().await?;
            let chunks = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            anyhow::Ok(chunks)
        })
    });
    for chunks in try_join_all(streams).await? {
        ensure!(1 < chunks?, "a stream without chunks");
    }
    Ok((rows * tokens) as f64 / started.elapsed().as_secs_f64())
}
