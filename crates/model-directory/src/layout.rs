//! What kind of model a directory holds, told by its files.

mod foreign;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use volley_types::PredictError;

use crate::overrides;
use crate::overrides::ModelKind;
use crate::registered::RegisteredConfig;
use crate::triton;
use crate::triton::TritonConfig;
use volley_tokens::vocabulary;

/// A kind of directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A decoder: generates text.
    Decoder,
    /// A text encoder: embeds, ranks or classifies text.
    Encoder,
    /// A graph alone: tensors in, tensors out.
    Graph(PathBuf),
}

impl Layout {
    /// What kind of model it is.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Decoder => ModelKind::Decoder,
            Self::Encoder => ModelKind::Encoder,
            Self::Graph(_) => ModelKind::Graph,
        }
    }
}

/// The folder of the graphs in an export that keeps several.
const FOLDER: &str = "onnx";
/// The names of a graph, without its variant and its ending: the usual one, and that of a decoder
/// whose graphs for prompts and for steps were merged.
const STEMS: [&str; 2] = ["model", "decoder_model_merged"];
/// Those of a decoder in two graphs: the one that goes on behind a past, and the one that reads
/// whole prompts.
const HALVES: [&str; 2] = ["decoder_with_past_model", "decoder_model"];
/// Variants, the one to take first where nobody says which. The plain one is what its makers
/// measured; the others trade quality for size.
const VARIANTS: [&str; 9] = [
    "",
    "quantized",
    "int8",
    "uint8",
    "q8",
    "q4",
    "fp16",
    "q4f16",
    "bnb4",
];

/// Variants whose numbers have 16 bits, the first to take where sessions run on a GPU.
const GPU_VARIANTS: [&str; 2] = ["fp16", "q4f16"];

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
}

/// Tells the kind of a directory, or of a single graph, and the directory that it lies in: of a
/// repository of numbered versions, the newest's, or the one that is `declared`.
///
/// # Errors
/// `InvalidInput` when it is none that is known.
pub fn recognise(
    path: &Path,
    registered: &RegisteredConfig,
    declared: Option<&TritonConfig>,
) -> Result<(PathBuf, Layout), PredictError> {
    if path.is_file() {
        return match (path.parent(), path.extension()) {
            (Some(parent), Some(ending)) if ending == "onnx" => {
                let graph = path.file_name().map(PathBuf::from).unwrap_or_default();
                Ok((parent.to_path_buf(), Layout::Graph(graph)))
            }
            _ => Err(PredictError::invalid(
                foreign::refusal_of_file(path).unwrap_or_else(|| {
                    "the model's path is a file that does not end in .onnx; give its directory"
                        .to_owned()
                }),
            )),
        };
    }
    let newest = versions(path, declared)?.pop();
    let directory = newest.map_or_else(|| path.to_path_buf(), |version| version.directory);
    let layout = within(&directory, registered, declared)?;
    Ok((directory, layout))
}

/// As [`recognise`], of the directory of one version.
///
/// # Errors
/// As there.
pub fn within(
    directory: &Path,
    registered: &RegisteredConfig,
    declared: Option<&TritonConfig>,
) -> Result<Layout, PredictError> {
    let has = |name: &str| directory.join(name).is_file();
    if has("genai_config.json") {
        return Ok(Layout::Decoder);
    }
    let has_config = has("config.json") || registered.config.is_some();
    let has_tokenizer = has(vocabulary::TOKENIZER);
    if has_config && (has_tokenizer || reads_text(directory, registered)) {
        // Some embed with what was a decoder: then the files around it say so.
        let decodes = is_decoder(directory, registered.all_config()) && !has("modules.json");
        let told = registered.task.map(|task| task.as_str().to_owned());
        let layout = match told.or_else(|| task(directory)).as_deref() {
            Some("tensors") => Layout::Graph(graph(directory, None)?),
            // A vocabulary is BERT's, whose family writes nothing.
            _ if !has_tokenizer && (decodes || !has(vocabulary::VOCABULARY)) => {
                graph(directory, None)?;
                return Err(vocabulary::missing(directory));
            }
            Some("generate") => Layout::Decoder,
            None if decodes => Layout::Decoder,
            _ => Layout::Encoder,
        };
        return Ok(layout);
    }
    let named = declared.and_then(|declared| declared.graph.as_deref());
    let named = named.filter(|name| directory.join(name).is_file() && !name.contains('/'));
    let graph = match named {
        Some(name) => PathBuf::from(name),
        None => graph(directory, None)?,
    };
    Ok(Layout::Graph(graph))
}

/// The graph in a directory, from there on: the variant that is asked for, or the first there
/// is, or the only one.
///
/// # Errors
/// `InvalidInput` when there is none, or several with names that say nothing.
pub fn graph(directory: &Path, variant: Option<&str>) -> Result<PathBuf, PredictError> {
    let find = |variant: &str| whole(directory, variant);
    match first_variant(variant, find)? {
        Some(found) => Ok(found),
        None => only(directory),
    }
}

/// The graphs of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderGraphs {
    /// The one that goes on behind a past, which most read prompts with too.
    pub steps: PathBuf,
    /// The one that reads whole prompts, where an export has two.
    pub prompts: Option<PathBuf>,
}

/// As [`graph`], of a decoder, which may be in two graphs.
///
/// # Errors
/// As there.
pub fn decoder_graphs(
    directory: &Path,
    variant: Option<&str>,
) -> Result<DecoderGraphs, PredictError> {
    let one = |steps| DecoderGraphs {
        steps,
        prompts: None,
    };
    let find = |variant: &str| {
        let found = whole(directory, variant).map(one);
        found.or_else(|| halves(directory, variant))
    };
    match first_variant(variant, find)? {
        Some(found) => Ok(found),
        None => only(directory).map(one),
    }
}

/// What `find` has for the variant that is asked for, or for the first that is there.
///
/// # Errors
/// `InvalidInput` when the one that is asked for is not there.
fn first_variant<T>(
    variant: Option<&str>,
    find: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, PredictError> {
    let Some(variant) = variant else {
        return Ok(VARIANTS.into_iter().find_map(find));
    };
    let plain = variant
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let found = if plain { find(variant) } else { None };
    found.map(Some).ok_or_else(|| {
        PredictError::invalid(
            "the model's directory has no graph of this 'variant'; leave it out, or set it to the \
             part of a file name between 'model_' and '.onnx'",
        )
    })
}

/// The graph of a variant, where it is one.
fn whole(directory: &Path, variant: &str) -> Option<PathBuf> {
    let places = STEMS.into_iter().flat_map(|stem| places(stem, variant));
    let mut there = places.filter(|place| directory.join(place).is_file());
    there.next()
}

/// The two graphs of a variant, where both are there, beside each other.
fn halves(directory: &Path, variant: &str) -> Option<DecoderGraphs> {
    let [steps, prompts] = HALVES.map(|stem| places(stem, variant));
    let pairs = steps.into_iter().zip(prompts);
    let is_there = |graph: &Path| directory.join(graph).is_file();
    let mut there = pairs.filter(|(steps, prompts)| is_there(steps) && is_there(prompts));
    there.next().map(|(steps, prompts)| DecoderGraphs {
        steps,
        prompts: Some(prompts),
    })
}

/// Where a graph may be.
fn places(stem: &str, variant: &str) -> [PathBuf; 2] {
    let name = match variant {
        "" => format!("{stem}.onnx"),
        variant => format!("{stem}_{variant}.onnx"),
    };
    [PathBuf::from(&name), Path::new(FOLDER).join(&name)]
}

/// The only graph of a directory.
fn only(directory: &Path) -> Result<PathBuf, PredictError> {
    let mut graphs = files_ending(directory, "onnx");
    if graphs.is_empty() {
        let folder = Path::new(FOLDER);
        let names = files_ending(&directory.join(folder), "onnx").into_iter();
        graphs = names.map(|name| folder.join(name)).collect();
    }
    match (graphs.pop(), graphs.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => Err(PredictError::invalid(
            "the model's directory has several .onnx files, and none is model.onnx; give the path \
             of one",
        )),
        (None, _) => Err(PredictError::invalid(
            foreign::refusal(directory).unwrap_or_else(|| {
                "the model's directory has no .onnx file and no genai_config.json".to_owned()
            }),
        )),
    }
}

/// The variant that GPUs are fastest with, where there is one.
pub fn gpu_variant(directory: &Path, kind: ModelKind) -> Option<String> {
    let mut variants = GPU_VARIANTS.iter();
    let found = variants.find(|variant| match kind {
        ModelKind::Decoder => decoder_graphs(directory, Some(variant)).is_ok(),
        ModelKind::Encoder | ModelKind::Graph => graph(directory, Some(variant)).is_ok(),
    });
    found.map(|variant| (*variant).to_owned())
}

/// Whether `config.json`, or what was registered in its place, names a model that generates text.
fn is_decoder(directory: &Path, registered: Option<&str>) -> bool {
    let file = || std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
    let text = registered.map_or_else(file, str::to_owned);
    let config: Config = serde_json::from_str(&text).unwrap_or_default();
    let generates = |name: &String| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
    config.architectures.iter().any(generates)
}

/// Whether `config.json`, or what was registered in its place, describes a model of text.
fn reads_text(directory: &Path, registered: &RegisteredConfig) -> bool {
    let file = || std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
    let config = registered.all_config().map_or_else(file, str::to_owned);
    // Only what reads pictures or sounds is said how to prepare them.
    foreign::reads_text(&config) && !directory.join("preprocessor_config.json").is_file()
}

/// The task that `model.toml` gives. Whether it is one is found when the file is read in full.
fn task(directory: &Path) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(overrides::FILE)).ok()?;
    let table = text.parse::<toml::Table>().ok()?;
    Some(table.get("task")?.as_str()?.to_owned())
}

/// A version that is served, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its name, a number where Triton's layout is used.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
}

/// The versions of a directory that are served, the one that answers where none is named last:
/// those that are declared, or the highest number. None where a graph lies beside them, or there
/// are none.
///
/// # Errors
/// `InvalidInput` when versions are declared that are not there.
pub fn versions(
    path: &Path,
    declared: Option<&TritonConfig>,
) -> Result<Vec<Version>, PredictError> {
    if path.is_file() || !files_ending(path, "onnx").is_empty() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let there = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str()?.to_owned();
        let is_version = match name.parse::<u64>() {
            Ok(_) => true,
            // Only a repository's directories of other names are versions.
            Err(_) => declared.is_some() && name != FOLDER && !name.starts_with('.'),
        };
        let graphs = || !files_ending(&entry.path(), "onnx").is_empty();
        let numbered = name.parse::<u64>().is_ok();
        (is_version && entry.path().is_dir() && (numbered || graphs())).then_some(name)
    });
    let mut there: Vec<String> = there.collect();
    there.sort_by(|a, b| triton::order(a, b));
    let chosen = match declared {
        Some(declared) => declared.versions(&there)?,
        None => there.pop().into_iter().collect(),
    };
    let version = |name: String| Version {
        directory: path.join(&name),
        name,
    };
    Ok(chosen.into_iter().map(version).collect())
}

fn files_ending(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = PathBuf::from(entry.file_name());
        (name.extension()? == ending && entry.path().is_file()).then_some(name)
    });
    names.collect()
}

#[cfg(test)]
mod tests;
