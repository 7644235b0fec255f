//! Reads the outline of a graph file before ONNX Runtime loads it: the size of the model, and the
//! files that hold its weights.
//!
//! Only lengths, names and small constants are read, never weights. The format is protocol buffers;
//! the field numbers are those of `onnx.proto`.

mod classes;
mod constant;
mod copies;
mod element_type;
mod heap;
mod integer_division;
mod own_graph;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::{Component, Path, PathBuf};

use volley_types::PredictError;

use self::classes::ClassMaps as FoundClasses;
pub use self::classes::Classes;
use self::constant::{Constant, HALVES};
use self::element_type::STRING;
use self::own_graph::{GraphNode, OwnGraph};

/// Maximum nesting depth of messages; ONNX Runtime has the same limit.
const MAX_DEPTH: usize = 100;
/// Maximum bytes of a key or value of an external tensor.
const MAX_TEXT: u64 = 4_096;
/// Maximum number of files with weights of one graph.
const MAX_FILES: usize = 65_536;

/// The outline of a graph file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSummary {
    /// Bytes of the file and of its external weight files.
    pub bytes: u64,
    /// The part of `bytes` that holds 16-bit floating-point weights.
    pub(crate) half_bytes: u64,
    /// The external weight files, relative to the graph's directory.
    pub(crate) external: BTreeSet<PathBuf>,
    /// Whether an input has a 16-bit floating-point type. Among a decoder's inputs, only the keys
    /// and values have floating-point types.
    pub half_inputs: bool,
    /// The names of the model's inputs.
    pub inputs: BTreeSet<String>,
    /// Tensor inputs and outputs of the model that declare no shape, not even a number of
    /// dimensions.
    pub shapeless: BTreeSet<String>,
    /// Whether numbers in a request could crash the process by integer division: see
    /// `integer_division`.
    pub divides: bool,
    /// Whether one operator can take much memory that the runs' arena does not see: see `heap`.
    pub grows_heap: bool,
    /// The classes of each output that holds, for each row, a map from class to number.
    pub classes: BTreeMap<String, Classes>,
    /// Whether the graph has an operator of tabular classifiers: see `classes`.
    pub classifies: bool,
}

/// Reads the outline of the graph at `path`.
///
/// # Errors
/// `InvalidInput` when the file is not an ONNX model or is truncated, when a file is missing or
/// cannot be read, or when its weights lie outside its directory.
pub fn outline(path: &Path) -> Result<GraphSummary, PredictError> {
    let told = |flaw: GraphError| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let error = PredictError::invalid(format!("'{name}' could not be loaded: {}", flaw.text()));
        match flaw {
            GraphError::Io(source) => error.with_source(source),
            _ => error,
        }
    };
    // A pipe or a device has no known length.
    if !path.is_file() {
        return Err(told(GraphError::Missing));
    }
    let file = File::open(path).map_err(|error| told(GraphError::Io(error)))?;
    let length = file
        .metadata()
        .map_err(|error| told(GraphError::Io(error)))?
        .len();
    let walked = walk(BufReader::new(file), length).map_err(told)?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut bytes = length;
    for location in &walked.found {
        let data = std::fs::metadata(directory.join(location));
        let data = data.map_err(|_| told(GraphError::Missing))?;
        if !data.is_file() {
            return Err(told(GraphError::Missing));
        }
        bytes = bytes.saturating_add(data.len());
    }
    Ok(GraphSummary {
        bytes,
        // A file may declare more than it contains.
        half_bytes: walked.half_bytes.min(bytes),
        external: walked.found,
        half_inputs: walked.half_inputs,
        inputs: walked.inputs,
        shapeless: walked.shapeless,
        divides: integer_division::divides(&walked.own),
        grows_heap: heap::grows(&walked.own),
        classifies: walked.classes.classifies,
        classes: walked.classes.maps,
    })
}

/// The defect of a file.
#[derive(Debug)]
enum GraphError {
    Io(std::io::Error),
    Missing,
    Malformed,
    Deep,
    Outside,
    Many,
}

impl GraphError {
    fn text(&self) -> &'static str {
        match self {
            Self::Io(_) => "the file cannot be read; the worker's log has the details",
            Self::Missing => "a file of the model is missing",
            Self::Malformed => "it is not an ONNX model, or is incomplete",
            Self::Deep => "its graphs are nested too deeply",
            Self::Outside => {
                "its weights are not in its own directory; external data must be named by a \
                 relative path without '..'"
            }
            Self::Many => "its weights are spread over too many files",
        }
    }
}

impl From<std::io::Error> for GraphError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Malformed,
            _ => Self::Io(error),
        }
    }
}

/// Depth of the types of the model's own inputs; types of nested graphs are deeper.
const INPUT_DEPTH: usize = 4;
/// Depth of the model's own inputs, outputs, nodes and constants.
const OWN_DEPTH: usize = 2;
/// Kinds of messages on the path to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Model,
    Graph,
    Function,
    Node,
    Attribute,
    Sparse,
    Tensor,
    External,
    Input,
    Output,
    Type,
    TensorType,
}

impl Part {
    /// The kind of message in field `number`, if it may contain a tensor or the type of an input.
    fn within(self, number: u64) -> Option<Self> {
        match (self, number) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Some(Self::Graph),
            (Self::Model, 25) => Some(Self::Function),
            (Self::Graph, 1) | (Self::Function, 7) => Some(Self::Node),
            (Self::Node, 5) | (Self::Function, 11) => Some(Self::Attribute),
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Some(Self::Sparse),
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::Sparse, 1 | 2) => {
                Some(Self::Tensor)
            }
            (Self::Tensor, 13) => Some(Self::External),
            (Self::Graph, 11) => Some(Self::Input),
            (Self::Graph, 12) => Some(Self::Output),
            (Self::Input | Self::Output, 2) => Some(Self::Type),
            (Self::Type, 1) => Some(Self::TensorType),
            _ => None,
        }
    }
}

/// Whether `part` is one of the model's own inputs, outputs, nodes or constants.
fn is_own(part: Part, depth: usize) -> bool {
    let own = [Part::Input, Part::Output, Part::Node, Part::Tensor];
    depth == OWN_DEPTH && own.contains(&part)
}

/// Whether field `number` holds a text of a constant or an attribute.
fn is_text(part: Part, number: u64) -> bool {
    matches!((part, number), (Part::Tensor, 6) | (Part::Attribute, 4 | 9))
}

/// Walks through a model of `length` bytes.
fn walk<R: Read + Seek>(reader: BufReader<R>, length: u64) -> Result<Walk<R>, GraphError> {
    let mut walk = Walk {
        reader,
        at: 0,
        found: BTreeSet::new(),
        half_inputs: false,
        inputs: BTreeSet::new(),
        half_bytes: 0,
        shapeless: BTreeSet::new(),
        own: OwnGraph::default(),
        classes: FoundClasses::default(),
        seen: CurrentItem::default(),
        constant: Constant::default(),
    };
    walk.message(Part::Model, length, 0)?;
    Ok(walk)
}

struct Walk<R> {
    reader: BufReader<R>,
    at: u64,
    /// The files with external tensors.
    found: BTreeSet<PathBuf>,
    half_inputs: bool,
    inputs: BTreeSet<String>,
    half_bytes: u64,
    shapeless: BTreeSet<String>,
    own: OwnGraph,
    classes: FoundClasses,
    seen: CurrentItem,
    /// The current constant, or the last one.
    constant: Constant,
}

/// The input, output, node or constant that is being read.
#[derive(Default)]
struct CurrentItem {
    name: String,
    node: GraphNode,
    /// The element type, if there is one.
    kind: Option<u64>,
    shaped: bool,
    /// The name of the current attribute.
    attribute: String,
    /// The classes that the node names.
    classes: Option<Classes>,
}

impl<R: Read + Seek> Walk<R> {
    /// Reads the message that ends at `end`.
    fn message(&mut self, part: Part, end: u64, depth: usize) -> Result<(), GraphError> {
        if MAX_DEPTH < depth {
            return Err(GraphError::Deep);
        }
        let (mut key, mut value) = (Vec::new(), Vec::new());
        if is_own(part, depth) {
            self.seen = CurrentItem::default();
        }
        if part == Part::Tensor {
            self.constant = Constant::default();
        }
        while self.at < end {
            let tag = self.number(end)?;
            let (number, wire) = (tag >> 3, tag & 7);
            // Wire types: 0 varint, 1 fixed64, 2 length-delimited, 5 fixed32.
            match wire {
                0 => {
                    let value = self.number(end)?;
                    self.note_number(part, number, depth, value);
                }
                1 => self.skip(8, end)?,
                5 => self.skip(4, end)?,
                2 => {
                    let length = self.number(end)?;
                    let inner = self.at.checked_add(length).filter(|inner| *inner <= end);
                    let inner = inner.ok_or(GraphError::Malformed)?;
                    match (part, number) {
                        (Part::External, 1) => key = self.text(length)?,
                        (Part::External, 2) => value = self.text(length)?,
                        _ => self.field(part, number, inner, depth)?,
                    }
                }
                _ => return Err(GraphError::Malformed),
            }
        }
        if part == Part::External && key == b"location" {
            self.keep(&value)?;
        }
        if part == Part::Tensor {
            self.note_constant(depth);
        }
        if part == Part::Node || is_own(part, depth) {
            self.note(part, depth);
        }
        Ok(())
    }

    /// Reads the field of that number, which ends at `end`: a text, a message, or bytes.
    fn field(&mut self, part: Part, number: u64, end: u64, depth: usize) -> Result<(), GraphError> {
        if (part, number, depth) == (Part::TensorType, 2, INPUT_DEPTH) {
            self.seen.shaped = true;
        }
        let length = end - self.at;
        if is_text(part, number) {
            self.own.longest_text = self.own.longest_text.max(length);
        }
        match (part, number, part.within(number)) {
            (Part::Node, 1 | 2 | 4, _) => self.node_text(number, length, end)?,
            (Part::Attribute, 1, _) if depth == OWN_DEPTH + 1 => {
                self.seen.attribute = self.name(length, end)?;
            }
            (Part::Input | Part::Output, 1, _) | (Part::Tensor, 8, _) if depth == OWN_DEPTH => {
                self.seen.name = self.name(length, end)?;
            }
            (Part::Tensor, _, None) if length <= MAX_TEXT && Constant::wants(number) => {
                let bytes = self.text(length)?;
                self.constant.bytes(number, bytes);
            }
            (Part::Attribute, 8 | 9, _)
                if depth == OWN_DEPTH + 1 && Classes::are_named_by(&self.seen.attribute) =>
            {
                self.class_texts(number, end)?;
            }
            (Part::Attribute, 8, _) if self.is_value_of_node(depth) => {
                // Packed integers; exporters do not write them here.
                self.seen.node.divides_safely = false;
                self.skip(length, end)?;
            }
            (_, _, Some(within)) => self.message(within, end, depth + 1)?,
            _ => self.skip(length, end)?,
        }
        Ok(())
    }

    /// Handles a varint field of the current message.
    fn note_number(&mut self, part: Part, number: u64, depth: usize, value: u64) {
        match (part, number) {
            (Part::TensorType, 1) if depth == INPUT_DEPTH => self.seen.kind = Some(value),
            (Part::Tensor, _) => self.constant.number(number, value),
            (Part::Attribute, 3 | 8)
                if self.is_value_of_node(depth) && value.cast_signed() == -1 =>
            {
                self.seen.node.divides_safely = false;
            }
            (Part::Attribute, 8)
                if depth == OWN_DEPTH + 1 && Classes::are_named_by(&self.seen.attribute) =>
            {
                let classes = self.seen.classes.get_or_insert_default();
                classes.push_number(value.cast_signed());
            }
            (Part::Attribute, 3) if depth == OWN_DEPTH + 1 && self.seen.attribute == "to" => {
                self.seen.node.kind = Some(value);
            }
            _ => {}
        }
    }

    /// Whether the current attribute, at `depth`, is the value of a `Constant` node.
    fn is_value_of_node(&self, depth: usize) -> bool {
        depth == OWN_DEPTH + 1 && matches!(self.seen.attribute.as_str(), "value_int" | "value_ints")
    }

    /// Handles the end of a constant at any depth.
    fn note_constant(&mut self, depth: usize) {
        self.half_bytes = self.half_bytes.saturating_add(self.constant.half_bytes());
        self.own.nested_texts |= OWN_DEPTH + 2 < depth && self.constant.kind == Some(STRING);
        if depth == OWN_DEPTH {
            self.seen.kind = self.constant.kind;
        } else if depth == OWN_DEPTH + 2 {
            // The value of a node's attribute.
            self.seen.node.kind = self.constant.kind;
            self.seen.node.divides_safely &= self.constant.divides_safely();
        }
    }

    /// Handles the end of an input, an output, a node or a constant.
    fn note(&mut self, part: Part, depth: usize) {
        let CurrentItem {
            name,
            node,
            kind,
            shaped,
            classes,
            ..
        } = std::mem::take(&mut self.seen);
        if matches!(part, Part::Input | Part::Output) && kind.is_some() && !shaped {
            self.shapeless.insert(name.clone());
        }
        match part {
            Part::Input => {
                self.half_inputs |= kind.is_some_and(|kind| HALVES.contains(&kind));
                self.inputs.insert(name.clone());
                self.own.input(name, kind);
            }
            Part::Tensor => {
                self.own.constant(name, kind, &self.constant);
            }
            Part::Node => {
                if depth == OWN_DEPTH {
                    self.classes.node(&node, classes);
                }
                self.own.node(node, depth != OWN_DEPTH);
            }
            _ => {}
        }
    }

    /// Reads classes up to `end`: one text, or packed numbers.
    fn class_texts(&mut self, number: u64, end: u64) -> Result<(), GraphError> {
        if number == 9 {
            let text = self.name(end - self.at, end)?;
            let classes = self.seen.classes.get_or_insert_default();
            classes.push_text(text);
            return Ok(());
        }
        while self.at < end {
            let value = self.number(end)?.cast_signed();
            let classes = self.seen.classes.get_or_insert_default();
            classes.push_number(value);
        }
        Ok(())
    }

    /// Reads a name in a node: of an input, an output or its operator.
    fn node_text(&mut self, number: u64, length: u64, end: u64) -> Result<(), GraphError> {
        let text = self.name(length, end)?;
        let node = &mut self.seen.node;
        match number {
            1 => node.inputs.push(text),
            2 => node.outputs.push(text),
            _ => node.operator = text,
        }
        Ok(())
    }

    /// Reads a text; returns an empty one if it is too long.
    fn name(&mut self, length: u64, end: u64) -> Result<String, GraphError> {
        if MAX_TEXT < length {
            self.skip(length, end)?;
            return Ok(String::new());
        }
        let text = self.text(length)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn keep(&mut self, location: &[u8]) -> Result<(), GraphError> {
        let location = std::str::from_utf8(location).map_err(|_| GraphError::Outside)?;
        let location = Path::new(location);
        let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.as_os_str().is_empty() || !location.components().all(stays) {
            return Err(GraphError::Outside);
        }
        self.found.insert(location.to_path_buf());
        if MAX_FILES < self.found.len() {
            return Err(GraphError::Many);
        }
        Ok(())
    }

    /// Reads a varint of at most ten bytes.
    fn number(&mut self, end: u64) -> Result<u64, GraphError> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            if end <= self.at {
                return Err(GraphError::Malformed);
            }
            let mut byte = [0];
            self.reader.read_exact(&mut byte)?;
            self.at += 1;
            number |= u64::from(byte[0] & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte[0] & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(GraphError::Malformed)
    }

    fn text(&mut self, length: u64) -> Result<Vec<u8>, GraphError> {
        if MAX_TEXT < length {
            return Err(GraphError::Malformed);
        }
        let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
        self.reader.read_exact(&mut text)?;
        self.at += length;
        Ok(text)
    }

    fn skip(&mut self, length: u64, end: u64) -> Result<(), GraphError> {
        let to = self.at.checked_add(length).filter(|to| *to <= end);
        self.at = to.ok_or(GraphError::Malformed)?;
        let length = i64::try_from(length).map_err(|_| GraphError::Malformed)?;
        Ok(self.reader.seek_relative(length)?)
    }
}

#[cfg(test)]
mod tests;
