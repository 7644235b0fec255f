//! What a directory is understood to be, for people.

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

/// Classes of an output that are told by name.
const TOLD_CLASSES: usize = 10;

/// What a model's directory is understood to be, before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What kind of directory it is: `decoder`, `text encoder` or `graph`.
    pub kind: &'static str,
    /// What its files say, by name.
    pub details: Vec<(&'static str, String)>,
}

/// Reads the files of a directory, or of a single graph, with what a version would be registered
/// with.
///
/// # Errors
/// `InvalidInput` when it is none that is known, or a file is malformed.
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

/// Where the sessions of a model run with this configuration: what `auto` comes to here.
///
/// # Errors
/// `InvalidInput` when the directory is none that is known, or asks for CUDA where there is none.
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

/// The classes of each output that has them by name.
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

/// What kind of tokenizer a directory has, and how many tokens that knows; `None` where there is
/// none that can be read.
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
