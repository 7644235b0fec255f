//! Prints decode rates of a generation model: `decode_rate DIRECTORY PROMPT`. For each line
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

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, prompt] = arguments.as_slice() else {
        bail!("usage: decode_rate DIRECTORY PROMPT; then lines of bare|engine ROWS TOKENS");
    };
    let runtime = Runtime::init(&Runtime::locate(None)?)?;
    let config = OnnxConfig {
        device: Device::Cpu,
        ..OnnxConfig::default()
    };
    let mut bare = BareModel::load(&runtime, Path::new(directory), prompt, config)?;
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let loader = OnnxLoader::new(Ok(runtime), config);
    let engine = tokio.block_on(loader.load(&assignment(directory)?))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let [kind, rows, tokens] = words.as_slice() else {
            bail!("write bare|engine ROWS TOKENS")
        };
        let (rows, tokens) = (rows.parse()?, tokens.parse()?);
        let rate = match *kind {
            "bare" => bare.run(rows, tokens)?.0.rate(),
            "engine" => tokio.block_on(through_engine(&engine, prompt, rows, tokens))?,
            _ => bail!("write bare|engine ROWS TOKENS"),
        };
        writeln!(std::io::stdout(), "{rate}")?;
    }
    Ok(())
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
