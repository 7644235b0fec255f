//! What a directory is understood to be, for people.

use std::path::Path;

use serde_json::Value;
use volley_types::{Parameters, PredictError};

use crate::layout::{self, Layout};
use crate::loader::{Found, VARIANT};
use crate::registered::Registered;
use crate::session::{self, Place};
use crate::{OnnxConfig, Runtime, encode, generate};

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
    let registered = Registered::read(parameters)?;
    let variant = parameters.text(VARIANT);
    let Found {
        directory,
        layout,
        config,
        variant,
        declared,
        ..
    } = Found::new(path, &registered, *config, variant.as_deref())?;
    let variant = variant.as_deref();
    let graph = match &layout {
        Layout::Graph(graph) => Some(graph.clone()),
        Layout::Encoder => Some(layout::graph(&directory, variant)?),
        Layout::Decoder => None,
    };
    let (kind, mut details) = match &graph {
        None => ("decoder", generate::details(&directory, variant, &config)?),
        Some(graph) if layout == Layout::Encoder => {
            let details = encode::details(&directory, graph, &registered, &config)?;
            ("text encoder", details)
        }
        Some(_) => ("graph", Vec::new()),
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
    let registered = Registered::read(parameters)?;
    let variant = parameters.text(VARIANT);
    let found = Found::new(path, &registered, *config, variant.as_deref())?;
    Ok(match session::place(runtime, &found.config)? {
        Place::Host => "cpu".to_owned(),
        Place::Cuda(gpu) => format!("cuda, GPU {gpu}"),
    })
}

/// What kind of tokenizer a directory has, and how many tokens that knows; `None` where there is
/// none that can be read.
fn tokenizer(directory: &Path) -> Option<String> {
    let text = std::fs::read(directory.join("tokenizer.json")).ok()?;
    let file: Value = serde_json::from_slice(&text).ok()?;
    let model = &file["model"];
    let known = match &model["vocab"] {
        Value::Object(tokens) => tokens.len(),
        Value::Array(tokens) => tokens.len(),
        _ => 0,
    };
    let kind = model["type"].as_str().unwrap_or("tokenizer.json");
    Some(format!("{kind} of {known} tokens"))
}
