//! Measures decode rates of a generation model, without prefix reuse, which the bare loop does not
//! have.
//!
//! Without arguments, compares the two loops below on the demo model, in alternating rounds.
//!
//! `decode_rate DIRECTORY PROMPT [THREADS]` (default: one thread within operators) reads commands
//! from standard input, so that a benchmark can alternate between processes. Each line generates
//! once and prints its result:
//!
//! - `bare ROWS TOKENS`: tokens per second of a bare loop over ONNX Runtime
//! - `engine ROWS TOKENS`: tokens per second through the worker's backend, with one request for
//!   each row
//! - `gaps ROWS TOKENS ARRIVALS`: generates for prompts of eight words while ARRIVALS requests with
//!   the whole prompt arrive one after the other. Prints the median, the 99th percentile and the
//!   maximum of the milliseconds between two rows of a reader
//! - `churn ROWS TOKENS SECONDS`: each of ROWS readers sends a new request when its answer ends,
//!   with 0.5 to 1.5 times TOKENS. Prints tokens per second, and the same three statistics of the
//!   milliseconds between two rows

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::TryStreamExt;
use futures::future::try_join_all;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_onnx_generate::bare::BareModel;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
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
const SLOTS: usize = 64;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => compare(&mut Loops::load(DEMO, DEMO_PROMPT, 1)?),
        [directory, prompt] => obey(&mut Loops::load(directory, prompt, 1)?),
        [directory, prompt, threads] => {
            obey(&mut Loops::load(directory, prompt, threads.parse()?)?)
        }
        _ => bail!(
            "usage: decode_rate, or decode_rate DIRECTORY PROMPT [THREADS] and lines of \
             bare|engine ROWS TOKENS"
        ),
    }
}

/// Executes the commands on standard input.
fn obey(loops: &mut Loops) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let mut out = std::io::stdout();
        match words.as_slice() {
            ["bare", rows, tokens] => {
                writeln!(out, "{}", loops.bare(rows.parse()?, tokens.parse()?)?)?;
            }
            ["engine", rows, tokens] => {
                writeln!(out, "{}", loops.engine(rows.parse()?, tokens.parse()?)?)?;
            }
            ["gaps", rows, tokens, arrivals] => {
                let (rows, tokens) = (rows.parse()?, tokens.parse()?);
                let gaps = loops.gaps(rows, tokens, arrivals.parse()?)?;
                let at = |share: f64| gaps[(share * (gaps.len() - 1) as f64) as usize];
                writeln!(out, "{:.2} {:.2} {:.2}", at(0.5), at(0.99), at(1.0))?;
            }
            ["churn", rows, tokens, seconds] => {
                let limit = Duration::from_secs(seconds.parse()?);
                let (rate, gaps) = loops.churn(rows.parse()?, tokens.parse()?, limit)?;
                let at = |share: f64| gaps[(share * (gaps.len() - 1) as f64) as usize];
                writeln!(out, "{rate} {:.2} {:.2} {:.2}", at(0.5), at(0.99), at(1.0))?;
            }
            _ => bail!(
                "write bare|engine ROWS TOKENS, gaps ROWS TOKENS ARRIVALS, or churn ROWS TOKENS \
                 SECONDS"
            ),
        }
    }
    Ok(())
}

/// Compares both loops with 1, 8 and 32 concurrent requests. The first round of each is a warm-up.
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

/// Both loops on the same model.
struct Loops {
    bare: BareModel,
    engine: Arc<dyn Backend>,
    prompt: String,
    // The runtime must outlive the engine.
    tokio: tokio::runtime::Runtime,
}

impl Loops {
    fn load(directory: &str, prompt: &str, threads: usize) -> anyhow::Result<Self> {
        let runtime = Runtime::init(&Runtime::locate(None)?)?;
        let config = OnnxConfig {
            device: device()?,
            threads,
            slots: SLOTS,
            cuda_graphs: std::env::var_os("VOLLEY_TEST_CUDA_GRAPHS").is_some(),
            prefix_reuse: false,
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

    /// Milliseconds between two rows of each of `rows` readers, sorted, while prompts arrive.
    fn gaps(&self, rows: usize, tokens: usize, arrivals: usize) -> anyhow::Result<Vec<f64>> {
        let short: Vec<&str> = self.prompt.split_whitespace().take(8).collect();
        let (engine, short) = (self.engine.clone(), short.join(" "));
        self.tokio.block_on(async {
            let readers = (0..rows).map(|_| {
                let (engine, short) = (engine.clone(), short.clone());
                tokio::spawn(async move { read_gaps(&engine, &short, tokens).await })
            });
            let readers: Vec<_> = readers.collect();
            for _ in 0..arrivals {
                through_engine(&self.engine, &self.prompt, 1, 1).await?;
            }
            let mut gaps = Vec::new();
            for reader in readers {
                gaps.extend(reader.await??.iter().map(|gap| gap.as_secs_f64() * 1e3));
            }
            gaps.sort_by(f64::total_cmp);
            ensure!(!gaps.is_empty(), "too few tokens");
            Ok(gaps)
        })
    }
}

impl Loops {
    /// Tokens per second, and the sorted milliseconds between two rows of a reader, while readers
    /// come and go. Generations that run at the end are dropped.
    fn churn(
        &self,
        rows: usize,
        tokens: usize,
        limit: Duration,
    ) -> anyhow::Result<(f64, Vec<f64>)> {
        let started = Instant::now();
        let readers = (0..rows).map(|reader| {
            let (engine, prompt) = (self.engine.clone(), self.prompt.clone());
            let mut gaps = Vec::new();
            async move {
                let mut told = 0;
                for turn in 0.. {
                    // Lengths differ, so that readers neither end together nor in step.
                    let share = 50 + (reader * 37 + turn * 53) % 101;
                    let request = request(&prompt, (tokens * share / 100).max(1))?;
                    let mut answer = engine.predict(request).await?;
                    let mut last: Option<Instant> = None;
                    loop {
                        let Some(left) = limit.checked_sub(started.elapsed()) else {
                            return anyhow::Ok((told, gaps));
                        };
                        let Ok(batch) = tokio::time::timeout(left, answer.try_next()).await else {
                            return Ok((told, gaps));
                        };
                        let Some(batch) = batch? else { break };
                        told += batch.num_rows();
                        let now = Instant::now();
                        if let Some(last) = last.replace(now) {
                            gaps.push((now - last).as_secs_f64() * 1e3);
                        }
                    }
                }
                Ok((told, gaps))
            }
        });
        let found = self.tokio.block_on(try_join_all(readers))?;
        let told: usize = found.iter().map(|(told, _)| told).sum();
        let mut gaps: Vec<f64> = found.into_iter().flat_map(|(_, gaps)| gaps).collect();
        gaps.sort_by(f64::total_cmp);
        ensure!(!gaps.is_empty(), "too few tokens");
        Ok((told as f64 / started.elapsed().as_secs_f64(), gaps))
    }
}

/// Milliseconds before each row after the first.
async fn read_gaps(
    engine: &Arc<dyn Backend>,
    prompt: &str,
    tokens: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut rows = engine.predict(request(prompt, tokens)?).await?;
    let (mut gaps, mut last) = (Vec::new(), None);
    while rows.try_next().await?.is_some() {
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            gaps.push(now - last);
        }
    }
    Ok(gaps)
}

fn assignment(directory: &str) -> anyhow::Result<Assignment> {
    Ok(Assignment {
        model: ModelName::new("decode")?,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::ONNX,
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
    let started = Instant::now();
    let streams = (0..rows).map(|_| {
        let (engine, request) = (engine.clone(), request(prompt, tokens));
        tokio::spawn(async move {
            let request = request?;
            let batches: Vec<_> = engine.predict(request).await?.try_collect().await?;
            let chunks = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            anyhow::Ok(chunks)
        })
    });
    for chunks in try_join_all(streams).await? {
        ensure!(0 < chunks?, "a stream without chunks");
    }
    Ok((rows * tokens) as f64 / started.elapsed().as_secs_f64())
}

fn request(prompt: &str, tokens: usize) -> anyhow::Result<PredictRequest> {
    let column: ArrayRef = Arc::new(StringArray::from(vec![prompt]));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", column, true)])?;
    let model = ModelRef::deployed(ModelName::new("decode")?);
    let limit = i64::try_from(tokens).context("too many tokens")?;
    let mut request = PredictRequest::new(model, Input::Batch(batch));
    request.parameters = [
        ("max_tokens".to_owned(), ParamValue::Int(limit)),
        ("ignore_eos".to_owned(), ParamValue::Bool(true)),
    ]
    .into_iter()
    .collect();
    Ok(request)
}

/// The CPU, unless `VOLLEY_TEST_DEVICE` is set.
fn device() -> anyhow::Result<Device> {
    match std::env::var("VOLLEY_TEST_DEVICE") {
        Ok(name) => Device::from_name(&name).context("VOLLEY_TEST_DEVICE is auto, cpu or cuda"),
        Err(_) => Ok(Device::Cpu),
    }
}
