//! Rejects text models whose files do not say how texts become tokens. As a graph of tensors such a
//! model would load and then reject every text.

use std::path::Path;

use volley_onnx_runtime::graph;
use volley_tokens::vocabulary;
use volley_types::PredictError;

/// Files that only models have which Hugging Face libraries saved.
const MARKS: [&str; 5] = [
    "modules.json",
    vocabulary::TOKENIZER,
    vocabulary::VOCABULARY,
    "tokenizer_config.json",
    "config.json",
];
/// The input for token ids.
const TOKENS: &str = "input_ids";
/// Inputs of models that read more than text.
const OF_SENSES: [&str; 3] = ["pixel_values", "input_values", "input_features"];

/// Rejects the graph at `graph` in `directory` if it is that of a text model. `registered` is
/// whether a registration has the content of `config.json`.
///
/// # Errors
/// `InvalidInput` naming the missing files.
pub(super) fn check(directory: &Path, graph: &Path, registered: bool) -> Result<(), PredictError> {
    let has = |name: &str| directory.join(name).is_file();
    let marks: Vec<_> = MARKS.into_iter().filter(|name| has(name)).collect();
    if marks.is_empty() || !reads_tokens(&directory.join(graph)) {
        return Ok(());
    }
    let config = has("config.json") || registered;
    let mut missing = Vec::new();
    if !config {
        missing.push("config.json");
    }
    // A vocabulary alone did not suffice if there is a configuration.
    if !has(vocabulary::TOKENIZER) && (config || !has(vocabulary::VOCABULARY)) {
        missing.push(vocabulary::TOKENIZER);
    }
    Err(PredictError::invalid(format!(
        "the model reads tokens (its graph has the input '{TOKENS}', and its directory has {}), \
         but {} missing; add {}, or serve the graph's tensors with task = \"tensors\" in \
         model.toml",
        marks.join(", "),
        match missing.as_slice() {
            [one] => format!("{one} is"),
            more => format!("{} are", more.join(" and ")),
        },
        if missing.len() < 2 { "it" } else { "them" },
    )))
}

/// Whether tokens are the graph's only kind of input. A graph that cannot be read is rejected when
/// it is loaded.
fn reads_tokens(graph: &Path) -> bool {
    let Ok(outline) = graph::outline(graph) else {
        return false;
    };
    let has = |name: &&str| outline.inputs.contains(*name);
    has(&TOKENS) && !OF_SENSES.iter().any(has)
}

#[cfg(test)]
mod tests {
    use volley_onnx_runtime::wire::field;

    use super::super::tests::directory;
    use super::*;
    use crate::layout::{Layout, recognise};
    use crate::registered::RegisteredConfig;

    /// A graph with these inputs.
    fn graph(inputs: &[&str]) -> Vec<u8> {
        let inputs = inputs
            .iter()
            .map(|name| field(11, &field(1, name.as_bytes())));
        field(7, &inputs.collect::<Vec<_>>().concat())
    }

    fn found(files: &[&str], inputs: &[&str], others: &[(&str, &str)]) -> Result<Layout, String> {
        let files = files.iter().map(|name| (*name, "{}"));
        let folder = directory(&files.chain(others.iter().copied()).collect::<Vec<_>>());
        std::fs::write(folder.path().join("model.onnx"), graph(inputs)).unwrap();
        let found = recognise(folder.path(), &RegisteredConfig::default(), None);
        found
            .map(|(_, layout)| layout)
            .map_err(|error| error.message)
    }

    #[test]
    fn a_text_model_without_its_configuration_is_rejected_by_name() {
        let tokens = [TOKENS, "attention_mask"];
        for (files, missing) in [
            (
                &["modules.json", "1_Pooling/config.json", "vocab.txt"][..],
                "config.json is missing",
            ),
            (
                &["modules.json", "tokenizer.json"],
                "config.json is missing",
            ),
            (&["tokenizer.json"], "config.json is missing"),
            (&["vocab.txt"], "config.json is missing"),
            (
                &["modules.json"],
                "config.json and tokenizer.json are missing",
            ),
            (
                &["tokenizer_config.json"],
                "config.json and tokenizer.json are missing",
            ),
            (&["config.json"], "tokenizer.json is missing"),
            (&["config.json", "vocab.txt"], "tokenizer.json is missing"),
        ] {
            let message = found(files, &tokens, &[]).unwrap_err();
            assert!(message.contains(missing), "{files:?}: {message}");
            assert!(message.contains(files[0]), "{files:?}: {message}");
        }
    }

    #[test]
    fn tensors_are_served_where_they_are_meant() {
        let graph = Ok(Layout::Graph("model.onnx".into()));
        let tensors = ("model.toml", "task = \"tensors\"");
        assert_eq!(found(&["vocab.txt"], &[TOKENS], &[tensors]), graph);
        assert_eq!(found(&[], &[TOKENS], &[]), graph);
        assert_eq!(found(&["config.json"], &["x"], &[]), graph);
        let sees = [TOKENS, "pixel_values"];
        assert_eq!(found(&["config.json"], &sees, &[]), graph);
    }
}
