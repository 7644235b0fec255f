//! A small decoder whose answers are the same however many of them are decoded together.

use std::path::{Path, PathBuf};

use crate::judges::root;

/// What its conversations are made of.
const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";

/// Makes the model in `folder`: random weights of 32 bits, which the tests of the backend have,
/// with a longer context and with conversations. Those of the storyteller have 4 bits, and which
/// of two of its tokens wins hangs once in some hundred on what else is decoded in the same step.
///
/// # Panics
/// When a file cannot be read or written.
#[must_use]
pub fn model(folder: &Path) -> PathBuf {
    let source = root().join("crates/backend-onnx/tests/models/plain-decoder");
    let target = folder.join("teller");
    std::fs::create_dir_all(target.join("onnx")).expect("a folder");
    for file in [
        "onnx/model.onnx",
        "generation_config.json",
        "tokenizer.json",
    ] {
        std::fs::copy(source.join(file), target.join(file)).expect("a copy");
    }
    let config = std::fs::read_to_string(source.join("config.json")).expect("a file");
    let (short, long) = (
        "\"max_position_embeddings\": 128",
        "\"max_position_embeddings\": 16384",
    );
    assert!(config.contains(short), "the context's length is known");
    std::fs::write(target.join("config.json"), config.replace(short, long)).expect("a file");
    std::fs::write(target.join("chat_template.jinja"), TEMPLATE).expect("a file");
    target
}
