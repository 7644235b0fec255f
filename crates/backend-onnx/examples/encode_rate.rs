//! Measures texts per second of a text encoder, in alternating rounds: a bare loop over ONNX
//! Runtime with the best of several batch sizes, and the worker's backend with 1, 8 and 32 callers
//! of one text each, and in bulk. With THREADS and SECONDS, runs the bare loop alone, for SECONDS
//! per batch size, and prints for the best one the texts per second, the batch size, and the CPU
//! milliseconds per text over all threads.
//!
//!     cargo run --release -p volley-backend-onnx --example encode_rate -- \
//!         DIRECTORY [WORDS [THREADS SECONDS]]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::TryStreamExt;
use futures::future::try_join_all;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_onnx_text::bare::BareEncoder;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{Input, ModelName, ModelRef, ModelVersion, Parameters, PredictRequest};

/// As in the `volley` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 7;
const BATCHES: [usize; 4] = [1, 8, 32, 128];
const CALLERS: [usize; 3] = [1, 8, 32];
const TEXTS: usize = 512;
/// The unit of `/proc/PID/stat` in milliseconds, which Linux fixes for user space.
const TICK_MS: f64 = 10.0;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .context("give the directory of an encoder")?;
    let words: usize = arguments.next().map_or(Ok(6), |words| words.parse())?;
    let text = "river ".repeat(words);
    let runtime = Runtime::init(&Runtime::locate(None)?)?;
    let threads = arguments
        .next()
        .map(|threads| threads.parse())
        .transpose()?;
    let config = OnnxConfig {
        device: device()?,
        threads: threads.unwrap_or(1),
        ..OnnxConfig::default()
    };
    let mut bare = BareEncoder::load(&runtime, Path::new(&directory), &text, config)?;
    if threads.is_some() {
        let seconds = arguments.next().context("give seconds")?;
        return alone(&mut bare, Duration::from_secs(seconds.parse()?));
    }
    let tokio = tokio::runtime::Runtime::new()?;
    let model = tokio.block_on(load(runtime, &directory, config))?;
    let mut best = Vec::new();
    let mut ours = vec![Vec::new(); CALLERS.len() + 1];
    for round in 0..=ROUNDS {
        let rates = BATCHES.map(|rows| bare.rate(rows, TEXTS));
        let rates = rates.into_iter().collect::<Result<Vec<_>, _>>()?;
        let bare_rate = rates.into_iter().fold(0.0, f64::max);
        let mut rates = Vec::new();
        for callers in CALLERS {
            rates.push(tokio.block_on(apart(&model, &text, callers))?);
        }
        rates.push(tokio.block_on(bulk(&model, &text))?);
        if round != 0 {
            best.push(bare_rate);
            for (ours, rate) in ours.iter_mut().zip(rates) {
                ours.push(rate / bare_rate);
            }
        }
    }
    let mut out = std::io::stdout();
    writeln!(
        out,
        "bare loop, best batch: {:.0} texts/s",
        median(&mut best)
    )?;
    let names = CALLERS.map(|callers| format!("{callers} callers"));
    for (name, ratios) in names
        .iter()
        .map(String::as_str)
        .chain(["bulk"])
        .zip(&mut ours)
    {
        writeln!(out, "{name}: {:.2} of it", median(ratios))?;
    }
    Ok(())
}

/// Runs the bare loop without other load, and prints the best batch size.
fn alone(bare: &mut BareEncoder, limit: Duration) -> anyhow::Result<()> {
    let mut best = (0.0, 0, 0.0);
    for rows in BATCHES {
        bare.rate(rows, rows)?;
        let (cpu, started, mut texts) = (cpu_ms()?, Instant::now(), 0);
        while started.elapsed() < limit {
            bare.rate(rows, rows)?;
            texts += rows;
        }
        let texts = texts as f64;
        let rate = texts / started.elapsed().as_secs_f64();
        if best.0 < rate {
            best = (rate, rows, (cpu_ms()? - cpu) / texts);
        }
    }
    let (rate, rows, cpu) = best;
    writeln!(std::io::stdout(), "{rate:.1} {rows} {cpu:.4}")?;
    Ok(())
}

/// CPU milliseconds of this process.
fn cpu_ms() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program name, in parentheses, may contain any character.
    let (_, rest) = stat.rsplit_once(')').context("/proc/self/stat is odd")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let tick = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok());
    Ok(TICK_MS * (tick(11).unwrap_or(0.0) + tick(12).unwrap_or(0.0)))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn load(
    runtime: Runtime,
    directory: &str,
    config: OnnxConfig,
) -> anyhow::Result<Arc<dyn Backend>> {
    let assignment = Assignment {
        model: ModelName::new("encoder")?,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::ONNX,
            source: ModelSource::Path(directory.to_owned()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    };
    Ok(OnnxLoader::new(Ok(runtime), config)
        .load(&assignment)
        .await?)
}

fn request(text: &str, rows: usize) -> anyhow::Result<PredictRequest> {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![text; rows]));
    let rows = RecordBatch::try_from_iter([("text", texts)])?;
    let model = ModelRef::deployed(ModelName::new("encoder")?);
    Ok(PredictRequest::new(model, Input::Batch(rows)))
}

/// Callers that each send one text after the other.
async fn apart(model: &Arc<dyn Backend>, text: &str, callers: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    let each = TEXTS / callers;
    try_join_all((0..callers).map(|_| async move {
        for _ in 0..each {
            let answer = model.predict(request(text, 1)?).await?;
            answer.try_collect::<Vec<_>>().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok((each * callers) as f64 / started.elapsed().as_secs_f64())
}

/// One caller that sends all texts at once.
async fn bulk(model: &Arc<dyn Backend>, text: &str) -> anyhow::Result<f64> {
    let started = Instant::now();
    let answer = model.predict(request(text, TEXTS)?).await?;
    answer.try_collect::<Vec<_>>().await?;
    Ok(TEXTS as f64 / started.elapsed().as_secs_f64())
}

/// The CPU, unless `VOLLEY_TEST_DEVICE` is set.
fn device() -> anyhow::Result<Device> {
    match std::env::var("VOLLEY_TEST_DEVICE") {
        Ok(name) => Device::from_name(&name).context("VOLLEY_TEST_DEVICE is auto, cpu or cuda"),
        Err(_) => Ok(Device::Cpu),
    }
}
