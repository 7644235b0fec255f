//! `volley model inspect`: what a directory is, as a worker would understand it; and `volley model
//! manifest`: what is in it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::json;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{OnnxConfig, OnnxLoader, Runtime, describe, settle};
use volley_types::registry::{Assignment, BackendKind, ModelSource, ModelVersionSpec};
use volley_types::signature::DIMENSIONS;
use volley_types::{ModelName, ModelRef, ModelVersion, ParamValue, Parameters, PredictError};

use crate::terminal::Terminal;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// Reads the directory, loads the model, and prints what was understood.
pub(crate) async fn run(
    path: &Path,
    variant: Option<String>,
    model_config: Option<&Path>,
    as_json: bool,
) -> anyhow::Result<()> {
    let path = path
        .canonicalize()
        .with_context(|| format!("{}", path.display()))?;
    let parameters = parameters(variant, model_config)?;
    let name = ModelName::new("inspected").map_err(told)?;
    let library = Runtime::locate(None).map_err(told)?;
    let runtime = Runtime::init(&library).map_err(told)?;
    let config = settle(&runtime, OnnxConfig::default());
    let mut description = describe(&path, &parameters, &config).map_err(told)?;
    let device = volley_backend_onnx::device(&runtime, &path, &parameters, &config);
    let device = device.map_err(told)?;
    let backend = load(runtime, &path, name.clone(), parameters, config).await?;
    let model = ModelRef::deployed(name);
    let signature = backend.signature(&model).await.map_err(told)?;
    let columns = |schema: &arrow_schema::Schema| -> Vec<(String, String)> {
        let columns = schema.fields().iter();
        columns
            .map(|field| (field.name().clone(), kind(field)))
            .collect()
    };
    let vectors = signature.output.fields().iter();
    let dimensions = vectors.filter_map(|field| field.metadata().get(DIMENSIONS));
    let dimensions = dimensions.map(|size| ("dimensions", size.clone()));
    description.details.extend(dimensions);
    let (inputs, outputs) = (columns(&signature.input), columns(&signature.output));
    let mut out = Terminal::stdout();
    if as_json {
        let object = |columns: Vec<(String, String)>| -> Vec<_> {
            let columns = columns.into_iter();
            columns
                .map(|(name, kind)| json!({ "name": name, "type": kind }))
                .collect()
        };
        let details = description.details.into_iter();
        let details: serde_json::Map<_, _> = details
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        return out.json(&json!({
            "kind": description.kind,
            "task": signature.task.as_str(),
            "inputs": object(inputs),
            "outputs": object(outputs),
            "device": device,
            "capacity": backend.capacity(),
            "memory_bytes": backend.memory_bytes(),
            "details": details,
        }));
    }
    let memory = size(backend.memory_bytes());
    let mut rows = vec![
        vec!["kind".to_owned(), description.kind.to_owned()],
        vec!["task".to_owned(), signature.task.as_str().to_owned()],
    ];
    let named = |what: &str, columns: Vec<(String, String)>| -> Vec<Vec<String>> {
        let columns = columns.into_iter();
        columns
            .map(|(name, kind)| vec![what.to_owned(), format!("{name}: {kind}")])
            .collect()
    };
    rows.extend(named("input", inputs));
    rows.extend(named("output", outputs));
    let details = description.details.into_iter();
    rows.extend(details.map(|(name, value)| vec![name.to_owned(), value]));
    rows.push(vec!["device".to_owned(), device]);
    rows.push(vec!["at once".to_owned(), backend.capacity().to_string()]);
    rows.push(vec!["memory".to_owned(), memory]);
    out.table(&["", "MODEL"], &rows)
}

/// What a version would be registered with.
fn parameters(variant: Option<String>, model_config: Option<&Path>) -> anyhow::Result<Parameters> {
    let variant = variant.map(|variant| ("variant".to_owned(), ParamValue::Text(variant)));
    let read = |file: &Path| -> anyhow::Result<_> {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        Ok(("model_config".to_owned(), ParamValue::Json(text)))
    };
    let config = model_config.map(read).transpose()?;
    Ok(variant.into_iter().chain(config).collect())
}

/// Prints the manifest of a directory.
pub(crate) async fn manifest(path: &Path) -> anyhow::Result<()> {
    let path = path.to_owned();
    let text = tokio::task::spawn_blocking(move || volley_artifacts::describe(&path));
    Terminal::stdout().raw(text.await?.map_err(told)?.as_bytes())
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < MIB {
        format!("{:.1} KiB", bytes / KIB)
    } else {
        format!("{:.1} MiB", bytes / MIB)
    }
}

/// The type of a column, with the shape of the tensors that it holds.
fn kind(field: &arrow_schema::Field) -> String {
    let kind = field.data_type().to_string();
    let metadata = field.metadata().get("ARROW:extension:metadata");
    let shape = metadata.and_then(|text| {
        let metadata: serde_json::Value = serde_json::from_str(text).ok()?;
        let shape = metadata.get("shape")?.as_array()?.clone();
        Some(shape.iter().map(ToString::to_string).collect::<Vec<_>>())
    });
    match shape {
        Some(shape) => format!("{kind}, tensors of {}", shape.join(" × ")),
        None => kind,
    }
}

async fn load(
    runtime: Runtime,
    path: &Path,
    model: ModelName,
    parameters: Parameters,
    config: OnnxConfig,
) -> anyhow::Result<Arc<dyn Backend>> {
    let assignment = Assignment {
        model,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendKind::Onnx,
            source: ModelSource::Path(path.to_string_lossy().into_owned()),
            parameters,
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    };
    let loader = OnnxLoader::new(Ok(runtime), config);
    loader.load(&assignment).await.map_err(told)
}

/// With its cause: there is no worker whose log would have it.
fn told(error: PredictError) -> anyhow::Error {
    match std::error::Error::source(&error) {
        Some(cause) => anyhow::anyhow!("{}\n  {cause}", error.message),
        None => anyhow::anyhow!("{}", error.message),
    }
}
