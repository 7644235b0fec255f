//! Describes model directories for people.

use std::path::Path;

use serde_json::Value;
use volley_types::{Parameters, PredictError};

use crate::loader::ModelDirectory;
use volley_model_directory::layout;
use volley_model_directory::layout::Layout;
use volley_model_directory::overrides::VARIANT;
use volley_model_directory::registered::RegisteredConfig;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::{OnnxConfig, Runtime, graph};
use volley_tokens::vocabulary;

/// Maximum number of class names that are listed for an output.
const TOLD_CLASSES: usize = 10;

/// The recognized layout of a model directory, without loading the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The kind of model: `decoder`, `text encoder` or `graph`.
    pub kind: &'static str,
    /// Settings from its files, as pairs of name and value.
    pub details: Vec<(&'static str, String)>,
}

/// Describes a directory or a single graph, as it would be served with these registration
/// parameters. Blocks on the disk.
///
/// # Errors
/// `InvalidInput` when the layout is unknown or a file is malformed.
pub fn describe(
    path: &Path,
    parameters: &Parameters,
    config: &OnnxConfig,
) -> Result<Description, PredictError> {
    let registered = RegisteredConfig::read(parameters)?;
    let variant = parameters.text(VARIANT);
    let ModelDirectory {
        directory,
        layout,
        config,
        variant,
        declared,
        ..
    } = ModelDirectory::new(path, &registered, *config, variant.as_deref())?;
    let variant = variant.as_deref();
    let graph = match &layout {
        Layout::Graph(graph) => Some(graph.clone()),
        Layout::Encoder => Some(layout::graph(&directory, variant)?),
        Layout::Decoder => None,
    };
    let (kind, mut details) = match &graph {
        None => (
            "decoder",
            volley_onnx_generate::details(&directory, variant, &config)?,
        ),
        Some(graph) if layout == Layout::Encoder => {
            let details = volley_onnx_text::details(&directory, graph, &registered, &config)?;
            ("text encoder", details)
        }
        Some(graph) => ("graph", classes(&graph::outline(&directory.join(graph))?)),
    };
    details.extend(graph.map(|graph| ("graph", graph.display().to_string())));
    details.extend(tokenizer(&directory).map(|told| ("tokenizer", told)));
    if let Some(declared) = declared {
        details.push(("described by", "config.pbtxt".to_owned()));
        details.extend(declared.details(kind == "graph"));
    }
    Ok(Description { kind, details })
}

/// The device on which the model's sessions would run; resolves `auto` on this machine.
///
/// # Errors
/// `InvalidInput` when the layout is unknown, or CUDA is configured but not available.
pub fn device(
    runtime: &Runtime,
    path: &Path,
    parameters: &Parameters,
    config: &OnnxConfig,
) -> Result<String, PredictError> {
    let registered = RegisteredConfig::read(parameters)?;
    let variant = parameters.text(VARIANT);
    let found = ModelDirectory::new(path, &registered, *config, variant.as_deref())?;
    Ok(match session::place(runtime, &found.config)? {
        ExecutionDevice::Host => "cpu".to_owned(),
        ExecutionDevice::Cuda(gpu) => format!("cuda, GPU {gpu}"),
    })
}

/// The class names of each output that has them.
fn classes(outline: &graph::GraphSummary) -> Vec<(&'static str, String)> {
    let told = outline.classes.iter().map(|(output, classes)| {
        let mut names = classes.names();
        let more = names.len().saturating_sub(TOLD_CLASSES);
        names.truncate(TOLD_CLASSES);
        let rest = match more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        ("classes", format!("{output}: {}{rest}", names.join(", ")))
    });
    told.collect()
}

/// The type and vocabulary size of a directory's tokenizer; `None` if it has no readable tokenizer.
fn tokenizer(directory: &Path) -> Option<String> {
    let file: Value = match std::fs::read(directory.join(vocabulary::TOKENIZER)) {
        Ok(text) => serde_json::from_slice(&text).ok()?,
        Err(_) => vocabulary::of_vocabulary(directory).ok()?,
    };
    let model = &file["model"];
    let known = match &model["vocab"] {
        Value::Object(tokens) => tokens.len(),
        Value::Array(tokens) => tokens.len(),
        _ => 0,
    };
    let kind = model["type"].as_str().unwrap_or("tokenizer.json");
    Some(format!("{kind} of {known} tokens"))
}
