//! Detects the kind of model in a directory from its files.

mod foreign;
mod text;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use volley_types::PredictError;

use crate::overrides;
use crate::overrides::ModelKind;
use crate::registered::RegisteredConfig;
use crate::triton;
use crate::triton::TritonConfig;
use volley_tokens::vocabulary;

/// The kind of a model directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A decoder that generates text.
    Decoder,
    /// A text encoder that embeds, ranks or classifies text.
    Encoder,
    /// A single graph with tensor inputs and outputs; the path is relative to the directory.
    Graph(PathBuf),
}

impl Layout {
    /// The kind of model.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Decoder => ModelKind::Decoder,
            Self::Encoder => ModelKind::Encoder,
            Self::Graph(_) => ModelKind::Graph,
        }
    }
}

/// The subfolder of graphs in exports with several graphs.
const FOLDER: &str = "onnx";
/// File names of a graph, without variant and extension: the usual name, and that of a decoder with
/// merged graphs for prompts and steps.
const STEMS: [&str; 2] = ["model", "decoder_model_merged"];
/// The same for a decoder in two graphs: the one that continues from a KV cache, and the one that
/// reads whole prompts.
const HALVES: [&str; 2] = ["decoder_with_past_model", "decoder_model"];
/// Variants in order of preference, if none is configured. The plain variant is the one that the
/// model's authors evaluated; the others trade quality for size.
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

/// 16-bit variants in order of preference, for sessions on a GPU.
const GPU_VARIANTS: [&str; 2] = ["fp16", "q4f16"];

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
}

/// Detects the kind of a model directory or a single graph, and returns it with the model's
/// directory. In a repository of numbered versions, that is the newest version, or the one selected
/// by `declared`.
///
/// # Errors
/// `InvalidInput` when the layout is unknown, or a declared version does not exist.
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

/// As [`recognise`], for the directory of one version.
///
/// # Errors
/// As [`recognise`].
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
        // Some embedding models are exports of decoders; `modules.json` marks them.
        let decodes = is_decoder(directory, registered.all_config()) && !has("modules.json");
        let told = registered.task.map(|task| task.as_str().to_owned());
        let layout = match told.or_else(|| task(directory)).as_deref() {
            Some("tensors") => Layout::Graph(graph(directory, None)?),
            // Only a vocabulary marks the BERT family, which does not generate text.
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
    let graph = match named.filter(|name| !name.is_empty()) {
        Some(name) => named_graph(directory, name)?,
        None => graph(directory, None)?,
    };
    // A Triton configuration declares tensors.
    if declared.is_none() && task(directory).as_deref() != Some("tensors") {
        text::check(directory, &graph, registered.config.is_some())?;
    }
    Ok(Layout::Graph(graph))
}

/// The graph that `default_model_filename` names.
fn named_graph(directory: &Path, name: &str) -> Result<PathBuf, PredictError> {
    let printable: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let what = if name.contains(['/', '\\']) || name == ".." {
        "is not the name of a file; name a file in the folder of the version"
    } else if !directory.join(name).is_file() {
        "does not exist in the folder of the version; correct the name, or leave it out"
    } else {
        return Ok(PathBuf::from(name));
    };
    Err(PredictError::invalid(format!(
        "config.pbtxt: the file '{printable}' in 'default_model_filename' {what}"
    )))
}

/// Finds the graph of a directory, as a path relative to it: the requested variant, else the
/// preferred existing one, else the only graph.
///
/// # Errors
/// `InvalidInput` when there is no graph, or several with unknown names.
pub fn graph(directory: &Path, variant: Option<&str>) -> Result<PathBuf, PredictError> {
    let find = |variant: &str| whole(directory, variant);
    match first_variant(variant, find)? {
        Some(found) => Ok(found),
        None => only(directory),
    }
}

/// The graphs of a decoder, relative to its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderGraphs {
    /// The graph for decode steps. Most exports use it for prompts too.
    pub steps: PathBuf,
    /// The graph for whole prompts, if the export has two graphs.
    pub prompts: Option<PathBuf>,
}

/// As [`graph`], for a decoder, which may consist of two graphs.
///
/// # Errors
/// As [`graph`].
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

/// Calls `find` for the requested variant, or for all variants in order of preference.
///
/// # Errors
/// `InvalidInput` when the requested variant does not exist.
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

/// The single graph of a variant.
fn whole(directory: &Path, variant: &str) -> Option<PathBuf> {
    let places = STEMS.into_iter().flat_map(|stem| places(stem, variant));
    let mut there = places.filter(|place| directory.join(place).is_file());
    there.next()
}

/// The two graphs of a variant, if both exist in the same folder.
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

/// The possible paths of a graph.
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

/// The existing variant that is fastest on GPUs, if there is one.
pub fn gpu_variant(directory: &Path, kind: ModelKind) -> Option<String> {
    let mut variants = GPU_VARIANTS.iter();
    let found = variants.find(|variant| match kind {
        ModelKind::Decoder => decoder_graphs(directory, Some(variant)).is_ok(),
        ModelKind::Encoder | ModelKind::Graph => graph(directory, Some(variant)).is_ok(),
    });
    found.map(|variant| (*variant).to_owned())
}

/// Whether `config.json`, or the registered one, describes a model that generates text.
fn is_decoder(directory: &Path, registered: Option<&str>) -> bool {
    let file = || std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
    let text = registered.map_or_else(file, str::to_owned);
    let config: Config = serde_json::from_str(&text).unwrap_or_default();
    let generates = |name: &String| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
    config.architectures.iter().any(generates)
}

/// Whether `config.json`, or the registered one, describes a text model.
fn reads_text(directory: &Path, registered: &RegisteredConfig) -> bool {
    let file = || std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
    let config = registered.all_config().map_or_else(file, str::to_owned);
    // Only models of images or audio have a configuration of their preprocessing.
    foreign::reads_text(&config) && !directory.join("preprocessor_config.json").is_file()
}

/// The task in `model.toml`. It is validated when the file is read completely.
fn task(directory: &Path) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(overrides::FILE)).ok()?;
    let table = text.parse::<toml::Table>().ok()?;
    Some(table.get("task")?.as_str()?.to_owned())
}

/// A served version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its name; a number in Triton's layout.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
}

/// The served versions of a directory, with the default version last: the declared ones, or the
/// highest number, or the last name in alphabetical order if none is a number. A folder is a
/// version by its name if it has a graph. Empty if the directory has a graph itself or no versions.
///
/// # Errors
/// `InvalidInput` when a declared version does not exist.
pub fn versions(
    path: &Path,
    declared: Option<&TritonConfig>,
) -> Result<Vec<Version>, PredictError> {
    if path.is_file() || !files_ending(path, "onnx").is_empty() {
        return Ok(Vec::new());
    }
    let may_be_named = declared.is_some() || !is_model(path);
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let there = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str()?.to_owned();
        let is_version = match name.parse::<u64>() {
            Ok(_) => true,
            Err(_) => may_be_named && name != FOLDER && !name.starts_with('.'),
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

/// Whether a directory without graphs of its own is a model itself. Its other folders then hold
/// parts or other forms of the model, not versions.
fn is_model(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).is_file();
    let files = ["genai_config.json", "config.json", "modules.json"];
    files.into_iter().any(has)
        || has(vocabulary::TOKENIZER)
        || !files_ending(&directory.join(FOLDER), "onnx").is_empty()
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
