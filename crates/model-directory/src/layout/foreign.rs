//! Detects models in formats other than ONNX, and suggests the command that exports them.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Config, files_ending};

/// File extensions of a format, its name, and the command that converts a model to ONNX.
const FORMATS: [(&[&str], &str, &str); 7] = [
    (
        &["gguf"],
        "GGUF",
        "python -m onnxruntime_genai.models.builder -i FILE.gguf -o OUTPUT -p int4 -e cpu",
    ),
    (
        &["pkl", "pickle", "joblib", "cloudpickle"],
        "pickle",
        "python -c \"import joblib, skl2onnx; m = joblib.load('FILE'); \
         open('model.onnx', 'wb').write(skl2onnx.to_onnx(m, X[:1]).SerializeToString())\"",
    ),
    (
        &["h5", "keras"],
        "Keras",
        "python -m tf2onnx.convert --keras FILE --output model.onnx",
    ),
    (
        &["tflite"],
        "TensorFlow Lite",
        "python -m tf2onnx.convert --tflite FILE --output model.onnx",
    ),
    (
        &["pb"],
        "TensorFlow",
        "python -m tf2onnx.convert --saved-model DIRECTORY --output model.onnx",
    ),
    (
        &["pt", "pth"],
        "PyTorch",
        "python -c \"import torch; torch.onnx.export(MODEL, INPUTS, 'model.onnx', dynamo=True)\"",
    ),
    (
        &["ubj", "bst"],
        "XGBoost",
        "python -c \"import onnxmltools; onnxmltools.save_model(\
         onnxmltools.convert_xgboost(MODEL, initial_types=TYPES), 'model.onnx')\"",
    ),
];

/// The export task for an architecture whose name has this ending (names of transformers and
/// optimum).
const TASKS: [(&str, &str); 8] = [
    ("ForCausalLM", "text-generation-with-past"),
    ("LMHeadModel", "text-generation-with-past"),
    ("ForSequenceClassification", "text-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForMaskedLM", "fill-mask"),
    ("ForQuestionAnswering", "question-answering"),
    ("ForImageClassification", "image-classification"),
    ("Model", "feature-extraction"),
];

/// Fields in the `config.json` of text models, and of image and audio models.
const OF_TEXT: [&str; 3] = ["vocab_size", "max_position_embeddings", "pad_token_id"];
const OF_SENSES: [&str; 5] = [
    "image_size",
    "num_channels",
    "vision_config",
    "num_mel_bins",
    "conv_dim",
];

/// File names of PEFT adapters.
const ADAPTERS: [&str; 3] = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
];

/// The error for a directory without a graph but with files of another format, in it or in a folder
/// of it. It names the format and the export command. `None` if no known format is found.
pub(crate) fn refusal(directory: &Path) -> Option<String> {
    refusal_of_own(directory).or_else(|| {
        let entries = std::fs::read_dir(directory).ok()?.flatten();
        let mut folders: Vec<_> = entries.map(|entry| entry.path()).collect();
        folders.retain(|path| path.is_dir());
        folders.sort();
        let found = |path: &PathBuf| Some((path.clone(), refusal_of_own(path)?));
        let (folder, error) = folders.iter().find_map(found)?;
        let name = folder.file_name()?.to_string_lossy().into_owned();
        Some(format!("in the folder '{}': {error}", name.escape_debug()))
    })
}

fn refusal_of_own(directory: &Path) -> Option<String> {
    let has = |ending: &str| !files_ending(directory, ending).is_empty();
    let has_file = |name: &str| directory.join(name).is_file();
    if has("xml") && has("bin") {
        return Some(told(
            "OpenVINO",
            "optimum-cli export onnx --model MODEL OUTPUT",
            "MODEL is the source of the OpenVINO files",
        ));
    }
    if let Some(file) = ADAPTERS.into_iter().find(|name| has_file(name)) {
        return Some(adapter(file));
    }
    // Many exports keep other files, for example optimizer states, beside the weights.
    if has("safetensors") || has_file("pytorch_model.bin") {
        let format = match has("safetensors") {
            true => "safetensors",
            false => "PyTorch",
        };
        if !has_file("config.json") {
            return Some(without_config(format));
        }
        // Without a known task, the command chooses it, or names the choices.
        let task = task(directory).map_or_else(String::new, |task| format!("--task {task} "));
        let command = format!("optimum-cli export onnx --model DIRECTORY {task}OUTPUT");
        return Some(told(format, &command, "register OUTPUT"));
    }
    let mut formats = FORMATS.iter();
    let (_, format, command) =
        formats.find(|(endings, ..)| endings.iter().any(|ending| has(ending)))?;
    Some(told(format, command, "register its output"))
}

/// The error for a PEFT adapter with this file.
fn adapter(file: &str) -> String {
    format!(
        "the model is a PEFT adapter ({file}): it only has changes to another model. Merge it into \
         its base model first (`merge_and_unload()` of `peft`, then `save_pretrained` of the model \
         and its tokenizer), export the merged model with `optimum-cli export onnx --model MERGED \
         OUTPUT`, and register OUTPUT"
    )
}

/// The error for weights of Hugging Face without the description of their model.
fn without_config(format: &str) -> String {
    format!(
        "the model has the format {format}, but only ONNX is served, and config.json, which \
         describes the model, is missing; add the files that were saved with the weights, export \
         them with `optimum-cli export onnx --model DIRECTORY OUTPUT`, and register OUTPUT"
    )
}

/// As [`refusal`], for a path to a single file.
pub(super) fn refusal_of_file(file: &Path) -> Option<String> {
    let ending = file.extension()?.to_str()?;
    let name = file.file_name()?.to_str()?;
    if let Some(file) = ADAPTERS.into_iter().find(|adapter| *adapter == name) {
        return Some(adapter(file));
    }
    if ending == "safetensors" {
        let command = "optimum-cli export onnx --model DIRECTORY OUTPUT";
        return Some(told(
            "safetensors",
            command,
            "DIRECTORY is the directory of the file",
        ));
    }
    let mut formats = FORMATS.iter();
    let (_, format, command) = formats.find(|(endings, ..)| endings.contains(&ending))?;
    Some(told(format, command, "register its output"))
}

fn told(format: &str, command: &str, what: &str) -> String {
    format!(
        "the model has the format {format}, but only ONNX is served; export it with `{command}`: \
         {what}"
    )
}

/// The export task for the architecture in `config.json`; `None` if it does not tell.
fn task(directory: &Path) -> Option<&'static str> {
    let text = std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
    let config: Config = serde_json::from_str(&text).unwrap_or_default();
    let of = |name: &String| {
        let mut tasks = TASKS.iter();
        tasks.find(|(ending, _)| name.ends_with(ending))
    };
    let found = config.architectures.iter().find_map(of);
    found.map(|(_, task)| *task)
}

/// Whether `config.json` describes a model whose only input is text.
pub(super) fn reads_text(config: &str) -> bool {
    let config: Map<String, Value> = serde_json::from_str(config).unwrap_or_default();
    let has = |name: &&str| config.get(*name).is_some_and(|value| !value.is_null());
    OF_TEXT.iter().any(has) && !OF_SENSES.iter().any(has)
}
