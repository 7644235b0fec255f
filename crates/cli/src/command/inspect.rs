//! `volley model inspect`: how a worker interprets a model directory. `volley model manifest`: the
//! files of a directory with their hashes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::{Value, json};
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{OnnxConfig, OnnxLoader, Runtime, describe, resolve_device};
use volley_backend_python::{PythonConfig, PythonLoader, is_python};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::signature::{DIMENSIONS, route_of};
use volley_types::{ModelName, ModelRef, ModelVersion, ParamValue, Parameters, PredictError, Task};

use crate::terminal::Terminal;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// Reads the directory, loads the model, and prints the result.
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
    let understood = match is_python(&path) {
        true => inspect_python(&path, name, parameters).await?,
        false => inspect_graph(&path, name, parameters).await?,
    };
    let mut out = Terminal::stdout();
    if as_json {
        out.json(&understood.to_json())
    } else {
        out.table(&["", "MODEL"], &understood.rows())
    }
}

/// Loads a Python model with the interpreter of this machine.
async fn inspect_python(
    path: &Path,
    name: ModelName,
    parameters: Parameters,
) -> anyhow::Result<InspectedModel> {
    let config = PythonConfig {
        enabled: true,
        ..PythonConfig::default()
    };
    let loader = PythonLoader::new(config, Metrics::new());
    let assignment = assignment(
        volley_backend_python::INFO.name,
        path,
        name.clone(),
        parameters,
    );
    let (description, backend) = loader.inspect(&assignment).await.map_err(told)?;
    let signature = backend
        .signature(&ModelRef::deployed(name))
        .await
        .map_err(told)?;
    let interpreter = description.interpreter.display().to_string();
    let route = route_of(&signature).map(|route| format!("/models/NAME/{route}"));
    let details = [
        ("interface", description.interface),
        ("route", route.unwrap_or_default()),
        ("description", description.description),
        ("interpreter", interpreter),
    ];
    Ok(InspectedModel {
        kind: "python",
        task: signature.task,
        inputs: columns(&signature.input),
        outputs: columns(&signature.declared_output()),
        device: "a process of its own".to_owned(),
        capacity: backend.capacity(),
        memory_bytes: backend.memory_bytes(),
        details: details
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect(),
    })
}

/// Loads a model of ONNX Runtime.
async fn inspect_graph(
    path: &Path,
    name: ModelName,
    parameters: Parameters,
) -> anyhow::Result<InspectedModel> {
    let library = Runtime::locate(None).map_err(told)?;
    let runtime = Runtime::init(&library).map_err(told)?;
    let config = resolve_device(&runtime, OnnxConfig::default());
    let mut description = describe(path, &parameters, &config).map_err(told)?;
    let device = volley_backend_onnx::device(&runtime, path, &parameters, &config);
    let device = device.map_err(told)?;
    let backend = load(runtime, path, name.clone(), parameters, config).await?;
    let model = ModelRef::deployed(name);
    let signature = backend.signature(&model).await.map_err(told)?;
    let vectors = signature.output.fields().iter();
    let dimensions = vectors.filter_map(|field| field.metadata().get(DIMENSIONS));
    let dimensions = dimensions.map(|size| ("dimensions", size.clone()));
    description.details.extend(dimensions);
    Ok(InspectedModel {
        kind: description.kind,
        task: signature.task,
        inputs: columns(&signature.input),
        outputs: columns(&signature.output),
        device,
        capacity: backend.capacity(),
        memory_bytes: backend.memory_bytes(),
        details: description.details,
    })
}

/// A model as a worker interprets it.
struct InspectedModel {
    kind: &'static str,
    task: Task,
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    device: String,
    capacity: usize,
    memory_bytes: u64,
    details: Vec<(&'static str, String)>,
}

impl InspectedModel {
    fn to_json(&self) -> Value {
        let object = |columns: &[(String, String)]| -> Vec<_> {
            let columns = columns.iter();
            columns
                .map(|(name, kind)| json!({ "name": name, "type": kind }))
                .collect()
        };
        let details = self.details.iter();
        let details: serde_json::Map<_, _> = details
            .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
            .collect();
        json!({
            "kind": self.kind,
            "task": self.task.as_str(),
            "inputs": object(&self.inputs),
            "outputs": object(&self.outputs),
            "device": self.device,
            "capacity": self.capacity,
            "memory_bytes": self.memory_bytes,
            "details": details,
        })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let named = |what: &'static str, columns: &[(String, String)]| -> Vec<Vec<String>> {
            let columns = columns.iter();
            columns
                .map(|(name, kind)| row(what, format!("{name}: {kind}")))
                .collect()
        };
        let mut rows = vec![
            row("kind", self.kind.to_owned()),
            row("task", self.task.as_str().to_owned()),
        ];
        rows.extend(named("input", &self.inputs));
        rows.extend(named("output", &self.outputs));
        let details = self.details.iter();
        rows.extend(details.map(|(name, value)| row(name, value.clone())));
        rows.push(row("device", self.device.clone()));
        rows.push(row("at once", self.capacity.to_string()));
        rows.push(row("memory", size(self.memory_bytes)));
        rows
    }
}

/// The names of columns with their types.
fn columns(schema: &arrow_schema::Schema) -> Vec<(String, String)> {
    let columns = schema.fields().iter();
    columns
        .map(|field| (field.name().clone(), kind(field)))
        .collect()
}

/// The parameters that the version would be registered with.
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

/// The type of a column, with the shape of its tensors.
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
    let assignment = assignment(BackendName::ONNX, path, model, parameters);
    let loader = OnnxLoader::new(Ok(runtime), config);
    loader.load(&assignment).await.map_err(told)
}

fn assignment(
    backend: BackendName,
    path: &Path,
    model: ModelName,
    parameters: Parameters,
) -> Assignment {
    Assignment {
        model,
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend,
            source: ModelSource::Path(path.to_string_lossy().into_owned()),
            parameters,
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}

/// Includes the cause in the message: without a worker, no log contains it.
fn told(error: PredictError) -> anyhow::Error {
    match std::error::Error::source(&error) {
        Some(cause) => anyhow::anyhow!("{}\n  {cause}", error.message),
        None => anyhow::anyhow!("{}", error.message),
    }
}
