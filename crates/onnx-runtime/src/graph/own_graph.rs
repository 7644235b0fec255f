//! The nodes and values of the model's own graph, without weights: what the checks of a graph read.

use std::collections::{HashMap, HashSet};

use super::constant::Constant;
use super::element_type::{ElementType, STRING};

/// Maximum bytes of names that are examined.
const MAX_BYTES: usize = 64 << 20;

/// A node of the model's own graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphNode {
    pub operator: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// The declared type of its output.
    pub kind: Option<ElementType>,
    /// For a constant: whether dividing integers by it is safe.
    pub(super) divides_safely: bool,
}

impl Default for GraphNode {
    fn default() -> Self {
        Self {
            operator: String::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            kind: None,
            divides_safely: true,
        }
    }
}

/// The model's own graph, in file order, and the operators of the graphs that are nested in it.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnGraph {
    pub(super) nodes: Vec<GraphNode>,
    /// Types of the inputs and constants.
    pub(super) kinds: HashMap<String, ElementType>,
    pub(super) constants: HashSet<String>,
    /// Constants of integers that differ from each other.
    pub(super) distinct: HashSet<String>,
    /// Constants that are safe divisors.
    pub(super) safe_divisors: HashSet<String>,
    /// Operators of nested graphs and of functions.
    pub(super) nested: HashSet<String>,
    /// Bytes of the longest text in a constant or an attribute, at any depth.
    pub(super) longest_text: u64,
    /// Whether a nested constant or conversion has the type of texts.
    pub(super) nested_texts: bool,
    bytes: usize,
}

impl OwnGraph {
    pub(super) fn input(&mut self, name: String, kind: Option<ElementType>) {
        self.bytes += name.len();
        self.kinds.extend(kind.map(|kind| (name, kind)));
    }

    /// Records a constant of the model's graph.
    pub(super) fn constant(&mut self, name: String, kind: Option<ElementType>, value: &Constant) {
        if value.divides_safely() {
            self.safe_divisors.insert(name.clone());
        }
        if value.is_distinct() {
            self.distinct.insert(name.clone());
        }
        self.constants.insert(name.clone());
        self.input(name, kind);
    }

    /// Records a node of the model's graph, or of one nested `inside` it.
    pub(super) fn node(&mut self, node: GraphNode, inside: bool) {
        let names = node.inputs.iter().chain(&node.outputs);
        self.bytes += names.map(String::len).sum::<usize>() + node.operator.len();
        if inside {
            self.nested_texts |= node.kind == Some(STRING);
            self.nested.insert(node.operator);
        } else if self.bytes <= MAX_BYTES {
            self.nodes.push(node);
        }
    }

    /// Whether the graph is too large to examine, so that some of its nodes are missing here.
    pub(super) fn is_too_large(&self) -> bool {
        MAX_BYTES < self.bytes
    }
}
