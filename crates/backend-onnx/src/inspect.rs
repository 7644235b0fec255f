//! What a directory is understood to be, for people.

use std::path::Path;

use volley_types::PredictError;

use crate::layout::{self, Layout};
use crate::loader::Found;
use crate::registered::Registered;
use crate::{OnnxConfig, encode, generate};

/// What a model's directory is understood to be, before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What kind of directory it is: `decoder`, `text encoder` or `graph`.
    pub kind: &'static str,
    /// What its files say, by name.
    pub details: Vec<(&'static str, String)>,
}

/// Reads the files of a directory, or of a single graph.
///
/// # Errors
/// `InvalidInput` when it is none that is known, or a file is malformed.
pub fn describe(
    path: &Path,
    variant: Option<&str>,
    config: &OnnxConfig,
) -> Result<Description, PredictError> {
    let Found {
        directory,
        layout,
        config,
        variant,
        declared,
        ..
    } = Found::new(path, &Registered::default(), *config, variant)?;
    let variant = variant.as_deref();
    let (kind, mut details) = match &layout {
        Layout::Decoder => ("decoder", generate::details(&directory, variant, &config)?),
        Layout::Encoder => ("text encoder", encode::details(&directory)?),
        Layout::Graph(_) => ("graph", Vec::new()),
    };
    let graph = match layout {
        Layout::Graph(graph) => Some(graph),
        Layout::Encoder => Some(layout::graph(&directory, variant)?),
        Layout::Decoder => None,
    };
    details.extend(graph.map(|graph| ("graph", graph.display().to_string())));
    if let Some(declared) = declared {
        details.push(("described by", "config.pbtxt".to_owned()));
        details.extend(declared.details);
    }
    Ok(Description { kind, details })
}
