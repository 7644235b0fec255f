//! Mutants of small models, for tests in this process and in child processes.

use std::path::Path;

use arrow_schema::DataType;

/// Models to mutate, with the element type of their input `x`, pairs of numbers. The last one never
/// ends.
pub(crate) const SEEDS: [(&str, DataType); 8] = [
    ("identity-float32", DataType::Float32),
    ("identity-int64", DataType::Int64),
    ("external", DataType::Float32),
    ("defective", DataType::Float32),
    ("nobatch", DataType::Float32),
    ("picky", DataType::Float32),
    ("ragged", DataType::Float32),
    ("hostile/loop-for-ever", DataType::Float32),
];

/// Number of mutants: `VOLLEY_MUTANTS`, or `default`.
pub(crate) fn count(default: u64) -> u64 {
    number("VOLLEY_MUTANTS", default)
}

/// Seed of the mutants: `VOLLEY_SEED`.
pub(crate) fn seed() -> u64 {
    number("VOLLEY_SEED", 7)
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Writes a mutant of the model in `directory`, whose graph is `bytes`, to `scratch`.
pub(crate) fn write(directory: &Path, bytes: &[u8], scratch: &Path, random: &mut fastrand::Rng) {
    let mut bytes = bytes.to_vec();
    mutate(&mut bytes, random);
    std::fs::write(scratch.join("model.onnx"), &bytes).unwrap();
    let data = directory.join("model.onnx.data");
    if data.is_file() {
        std::fs::copy(data, scratch.join("model.onnx.data")).unwrap();
    }
}

/// Makes one or more changes to a file. Most keep its length, and with it the structure of the
/// file, so that parsing does not fail early.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let (changes, kinds) = if random.u8(..10) < 8 { (2, 3) } else { (4, 8) };
    for _ in 0..random.usize(1..changes) {
        if bytes.is_empty() {
            return;
        }
        let at = random.usize(..bytes.len());
        match random.u8(..kinds) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
            3 => bytes.truncate(at),
            4 => bytes.insert(at, random.u8(..)),
            5 => drop(bytes.remove(at)),
            6 => {
                let end = (at + random.usize(1..32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.usize(..bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => {
                // Replace a small number with a large one.
                let large = [0xff, 0xff, 0xff, 0xff, random.u8(..0x80)];
                bytes.splice(at..=at, large);
            }
        }
    }
}
