//! Changes a decoder's graph to compute the logits of chosen positions only.
//!
//! Exported graphs compute logits for every prefilled position, although only the last ones are
//! used. For a chunk of 256 tokens and a vocabulary of 150,000 these are 150 MB, and in a small
//! model a quarter of all work. The change inserts one node before the last product, which gathers
//! the chosen positions of each row. A matrix product handles each row independently, so the
//! remaining logits are bit-identical. Only the structure of the file is read and written; the
//! field numbers are those of `onnx.proto`.

use std::collections::HashSet;

use volley_onnx_runtime::wire::{field, number};

/// The input with the positions of each row that get logits, of shape `[rows, positions, 1]`.
pub(super) const LAST: &str = "volley.last";
/// The input of the last product after the change.
const CHOSEN: &str = "volley.chosen";
/// Maximum size of a graph file in bytes. Larger files contain their weights, and are not copied.
pub(super) const MOST: u64 = 64 << 20;
/// Minimum opset version: from it on, `GatherND` has `batch_dims`.
const OPSET: u64 = 12;
/// Maximum number of nodes between the last product and the logits.
const BEHIND: usize = 8;

/// Returns the model with the additional input [`LAST`], if its graph ends in a product whose
/// result, possibly scaled or cast, is `logits`; otherwise `None`.
pub(super) fn trimmed(model: &[u8], logits: &str) -> Option<Vec<u8>> {
    let parts = fields(model)?;
    let is_current = |part: &Field<'_>| part.number == 8 && OPSET <= current(part.bytes);
    let mut graphs = parts.iter().filter(|part| part.number == 7);
    let (graph, None) = (graphs.next()?, graphs.next()) else {
        return None;
    };
    parts.iter().find(|part| is_current(part))?;
    let graph = trimmed_graph(graph.bytes, logits)?;
    let mut out = Vec::with_capacity(model.len() + 512);
    for part in &parts {
        match part.number {
            7 => out.extend(field(7, &graph)),
            _ => out.extend_from_slice(part.whole),
        }
    }
    Some(out)
}

/// The version of ONNX's default operator set in an `OperatorSetIdProto`; 0 for other sets.
fn current(set: &[u8]) -> u64 {
    let parts = fields(set).unwrap_or_default();
    let own = |part: &Field<'_>| part.number == 1 && !matches!(part.bytes, b"" | b"ai.onnx");
    if parts.iter().any(own) {
        return 0;
    }
    let version = parts.iter().find(|part| part.number == 2);
    version.map_or(0, |part| part.value)
}

struct Node<'a> {
    /// Index among the parts of the graph.
    part: usize,
    inputs: Vec<&'a [u8]>,
    outputs: Vec<&'a [u8]>,
    operator: &'a [u8],
    /// Its attributes; nested graphs in them may read outer values.
    attributes: Vec<&'a [u8]>,
}

impl<'a> Node<'a> {
    fn read(part: usize, bytes: &'a [u8]) -> Option<Self> {
        let mut node = Self {
            part,
            inputs: Vec::new(),
            outputs: Vec::new(),
            operator: b"",
            attributes: Vec::new(),
        };
        for field in fields(bytes)? {
            match field.number {
                1 => node.inputs.push(field.bytes),
                2 => node.outputs.push(field.bytes),
                4 => node.operator = field.bytes,
                5 => node.attributes.push(field.bytes),
                _ => {}
            }
        }
        Some(node)
    }

    /// Whether a nested graph in it may read `name`: its bytes contain the name.
    fn may_read_inside(&self, name: &[u8]) -> bool {
        let holds = |bytes: &[u8]| bytes.windows(name.len().max(1)).any(|part| part == name);
        self.attributes.iter().any(|attribute| {
            let parts = fields(attribute).unwrap_or_default();
            // The fields of a single graph and of a list of graphs.
            let graphs = parts.iter().filter(|part| matches!(part.number, 6 | 11));
            graphs.into_iter().any(|graph| holds(graph.bytes))
        })
    }
}

fn trimmed_graph(graph: &[u8], logits: &str) -> Option<Vec<u8>> {
    let parts = fields(graph)?;
    let nodes = parts
        .iter()
        .enumerate()
        .filter(|(_, part)| part.number == 1);
    let nodes = nodes.map(|(index, part)| Node::read(index, part.bytes));
    let nodes: Vec<Node<'_>> = nodes.collect::<Option<_>>()?;
    let named = |number: u64, name: u64| {
        let parts = parts.iter().filter(move |part| part.number == number);
        let names = parts.map(move |part| text(part.bytes, name));
        names.collect::<Option<Vec<_>>>()
    };
    let outputs: HashSet<&[u8]> = named(12, 1)?.into_iter().collect();
    let known = nodes.iter().flat_map(|node| &node.outputs);
    let mut known = known.copied().chain(named(11, 1)?);
    if known.any(|name| name == LAST.as_bytes() || name == CHOSEN.as_bytes()) {
        return None;
    }
    let given = parts.iter().filter(|part| part.number == 12);
    let mut given = given.filter(|part| text(part.bytes, 1) == Some(logits.as_bytes()));
    if rank(given.next()?.bytes)? != 3 {
        return None;
    }
    let constants = nodes.iter().filter(|node| node.operator == b"Constant");
    let constants = constants.flat_map(|node| node.outputs.iter().copied());
    let constants: HashSet<&[u8]> = constants.chain(named(5, 8)?).collect();
    let product = product(&nodes, &constants, &outputs, logits.as_bytes())?;
    let mut out = Vec::with_capacity(graph.len() + 512);
    for (index, part) in parts.iter().enumerate() {
        if index == product.part {
            out.extend(field(1, &chooses(product.inputs[0])));
            out.extend(field(1, &reads_chosen(part.bytes)?));
        } else {
            out.extend_from_slice(part.whole);
        }
    }
    out.extend(field(11, &input()));
    Some(out)
}

/// The last product of a graph, if no node after it uses other positions.
fn product<'a, 'b>(
    nodes: &'b [Node<'a>],
    constants: &HashSet<&[u8]>,
    outputs: &HashSet<&[u8]>,
    logits: &'a [u8],
) -> Option<&'b Node<'a>> {
    let mut wanted = logits;
    for _ in 0..BEHIND {
        let readers = nodes.iter().flat_map(|node| &node.inputs);
        let readers = readers.filter(|name| **name == wanted).count();
        let elsewhere = readers + usize::from(outputs.contains(wanted));
        if elsewhere != 1 || nodes.iter().any(|node| node.may_read_inside(wanted)) {
            return None;
        }
        let node = nodes.iter().find(|node| node.outputs.contains(&wanted))?;
        wanted = match (node.operator, node.inputs.as_slice()) {
            (b"MatMul", [hidden, weights]) if !constants.contains(hidden) => {
                return (hidden != weights).then_some(node);
            }
            (b"MatMulNBits", [hidden, ..]) if !constants.contains(hidden) => return Some(node),
            (b"Cast" | b"Tanh", [before]) => before,
            (b"Mul" | b"Div" | b"Add", [before, by]) if constants.contains(by) => before,
            (b"Mul" | b"Add", [by, before]) if constants.contains(by) => before,
            _ => return None,
        };
    }
    None
}

/// The node that gathers the chosen positions of each row of `hidden`.
fn chooses(hidden: &[u8]) -> Vec<u8> {
    let rows_apart = [field(1, b"batch_dims"), number(3, 1), number(20, 2)].concat();
    [
        field(1, hidden),
        field(1, LAST.as_bytes()),
        field(2, CHOSEN.as_bytes()),
        field(3, LAST.as_bytes()),
        field(4, b"GatherND"),
        field(5, &rows_apart),
    ]
    .concat()
}

/// The node of the product, with the chosen positions as its first input.
fn reads_chosen(node: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(node.len() + CHOSEN.len());
    let mut first = true;
    for part in fields(node)? {
        if part.number == 1 && std::mem::take(&mut first) {
            out.extend(field(1, CHOSEN.as_bytes()));
        } else {
            out.extend_from_slice(part.whole);
        }
    }
    Some(out)
}

/// The declaration of the additional input.
fn input() -> Vec<u8> {
    let rows = field(1, &field(2, b"volley.rows"));
    let kept = field(1, &field(2, b"volley.kept"));
    let one = field(1, &number(1, 1));
    let shape = [rows, kept, one].concat();
    // 7 is INT64.
    let tensor = [number(1, 7), field(2, &shape)].concat();
    [field(1, LAST.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// Number of dimensions that a `ValueInfoProto` declares.
fn rank(value: &[u8]) -> Option<usize> {
    let shape = text(text(text(value, 2)?, 1)?, 2)?;
    Some(
        fields(shape)?
            .iter()
            .filter(|part| part.number == 1)
            .count(),
    )
}

/// The bytes of the first field with that number.
fn text(message: &[u8], number: u64) -> Option<&[u8]> {
    let parts = fields(message)?;
    let found = parts.iter().find(|part| part.number == number);
    found.map(|part| part.bytes)
}

/// A field of a message.
struct Field<'a> {
    number: u64,
    /// The bytes including the tag.
    whole: &'a [u8],
    /// The content of a length-delimited field.
    bytes: &'a [u8],
    /// The value of a varint field.
    value: u64,
}

fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut found = Vec::new();
    let mut left = message;
    while !left.is_empty() {
        let from = left;
        let (tag, behind) = varint(left)?;
        let (mut bytes, mut value) = (&[][..], 0);
        left = match tag & 7 {
            0 => {
                let behind = varint(behind)?;
                value = behind.0;
                behind.1
            }
            1 => behind.get(8..)?,
            5 => behind.get(4..)?,
            2 => {
                let (length, behind) = varint(behind)?;
                let length = usize::try_from(length).ok()?;
                bytes = behind.get(..length)?;
                &behind[length..]
            }
            _ => return None,
        };
        found.push(Field {
            number: tag >> 3,
            whole: &from[..from.len() - left.len()],
            bytes,
            value,
        });
    }
    Some(found)
}

/// Reads a varint. Also returns the remaining bytes.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn model(name: &str) -> Vec<u8> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read(root.join(name)).unwrap()
    }

    #[test]
    fn graphs_that_end_in_a_product_are_trimmed_once() {
        for name in [
            "../../models/storyteller/model.onnx",
            "../backend-onnx/tests/models/plain-decoder/onnx/model.onnx",
            "../backend-onnx/tests/models/plain-decoder/onnx/model_fp16.onnx",
            "../backend-onnx/tests/models/half-decoder/model.onnx",
            "../backend-onnx/tests/models/positioned-decoder/model.onnx",
        ] {
            let whole = model(name);
            let trimmed_once = trimmed(&whole, "logits").unwrap_or_else(|| panic!("{name}"));
            assert!(whole.len() < trimmed_once.len());
            assert!(trimmed(&trimmed_once, "logits").is_none(), "{name}");
            assert!(trimmed(&whole, "other").is_none());
        }
        // It already chooses positions itself.
        let merged =
            model("../backend-onnx/tests/models/merged-decoder/onnx/decoder_model_merged.onnx");
        assert!(trimmed(&merged, "logits").is_none());
    }

    #[test]
    fn what_others_read_too_is_left_alone() {
        let node = |operator: &str, inputs: &[&str], output: &str| {
            let inputs = inputs.iter().flat_map(|name| field(1, name.as_bytes()));
            let rest = [field(2, output.as_bytes()), field(4, operator.as_bytes())];
            field(1, &[inputs.collect(), rest.concat()].concat())
        };
        let shape = field(2, &[field(1, b""), field(1, b""), field(1, b"")].concat());
        let kind = field(2, &field(1, &shape));
        let output = |name: &str| field(12, &[field(1, name.as_bytes()), kind.clone()].concat());
        let weights = field(5, &field(8, b"weights"));
        let scale = field(5, &field(8, b"scale"));
        let product = node("MatMul", &["hidden", "weights"], "raw");
        let scaled = node("Mul", &["scale", "raw"], "cast");
        let cast = node("Cast", &["cast"], "logits");
        let trims = |more: &[Vec<u8>], version| {
            let graph = [
                &product,
                &scaled,
                &cast,
                &weights,
                &scale,
                &output("logits"),
            ];
            let graph: Vec<u8> = graph.into_iter().chain(more).flatten().copied().collect();
            let opset = field(8, &[field(1, b""), number(2, version)].concat());
            trimmed(&[opset, field(7, &graph)].concat(), "logits").is_some()
        };
        assert!(trims(&[], 13));
        assert!(!trims(&[], 11), "no such operator yet");
        assert!(!trims(&[output("raw")], 13));
        assert!(!trims(&[node("ReduceMax", &["cast"], "most")], 13));
        assert!(!trims(&[node("Neg", &["logits"], "turned")], 13));
        let branch = |reads: &str| {
            let inner = node("Neg", &[reads], "turned");
            let attribute = [field(1, b"then_branch"), field(6, &inner)].concat();
            let named = [field(1, b"hidden"), field(2, b"chosen"), field(4, b"If")];
            field(1, &[named.concat(), field(5, &attribute)].concat())
        };
        assert!(trims(&[branch("weights")], 13));
        assert!(!trims(&[branch("raw")], 13), "a graph inside reads it");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = trimmed(&bytes, "logits");
            let _ = trimmed(&field(7, &bytes), "logits");
            let _ = trimmed_graph(&field(1, &bytes), "logits");
        }
    }
}
