//! Detects graphs that divide integers by a number that a request can choose.
//!
//! The minimum 32-bit or 64-bit integer divided by -1 overflows its type. The processor raises a
//! signal, which ends the process; ONNX Runtime (1.31) only checks for zero. Any caller of such a
//! model could crash its worker. The same holds for a model that takes the frame length of its
//! `STFT` from a request, because `STFT` divides by it.
//!
//! Types are followed from the inputs as far as is needed to tell floating-point numbers, whose
//! division is safe, from integers. An unknown type counts as an integer.

use std::collections::{HashMap, HashSet};

/// An element type of ONNX's `TensorProto.DataType`, such as `INT32` or `INT64`.
pub(crate) type ElementType = u64;
const FLOAT: ElementType = 1;
pub(super) const INT32: ElementType = 6;
pub(super) const INT64: ElementType = 7;
const BOOL: ElementType = 9;

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

/// The division-relevant parts of the model's own graph, in file order.
#[derive(Clone, Debug, Default)]
pub(super) struct Division {
    nodes: Vec<GraphNode>,
    kinds: HashMap<String, ElementType>,
    /// Fixed values that are safe divisors.
    constants: HashSet<String>,
    bytes: usize,
    /// A nested graph has a division, or the graph is too large to examine.
    surely: bool,
}

impl Division {
    pub(crate) fn input(&mut self, name: String, kind: Option<ElementType>) {
        self.bytes += name.len();
        self.kinds.extend(kind.map(|kind| (name, kind)));
    }

    /// Records a constant of the model's graph, and whether dividing integers by it is safe.
    pub(super) fn constant(
        &mut self,
        name: String,
        kind: Option<ElementType>,
        divides_safely: bool,
    ) {
        if divides_safely {
            self.constants.insert(name.clone());
        }
        self.input(name, kind);
    }

    /// Records a node of the model's graph, or of one nested `inside` it.
    pub(crate) fn node(&mut self, node: GraphNode, inside: bool) {
        self.surely |= inside && divides(&node.operator);
        let names = node.inputs.iter().chain(&node.outputs);
        self.bytes += names.map(String::len).sum::<usize>() + node.operator.len();
        if MAX_BYTES < self.bytes {
            self.surely = true;
        } else if !inside {
            self.nodes.push(node);
        }
    }

    /// Whether the graph has an unsafe division.
    pub(crate) fn found(mut self) -> bool {
        if self.surely {
            return true;
        }
        for node in std::mem::take(&mut self.nodes) {
            let given = |index: usize| {
                let name = node.inputs.get(index)?;
                self.kinds.get(name).copied()
            };
            let fixed = |index: usize| {
                let name = node.inputs.get(index).filter(|name| !name.is_empty());
                name.is_none_or(|name| self.constants.contains(name))
            };
            if node.operator == "STFT" && !(fixed(1) && fixed(3)) {
                return true;
            }
            if matches!(node.operator.as_str(), "Div" | "Mod") {
                let kind = given(0).or_else(|| given(1));
                if !fixed(1) && kind.is_none_or(|kind| matches!(kind, INT32 | INT64)) {
                    return true;
                }
            }
            let kind = match node.operator.as_str() {
                "Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" => Some(INT64),
                "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or"
                | "Xor" | "Not" | "IsNaN" | "IsInf" => Some(BOOL),
                "Where" | "DequantizeLinear" | "CastLike" => given(1),
                "ConstantOfShape" => node.kind.or(Some(FLOAT)),
                "Cast" | "Constant" => node.kind,
                _ => given(0),
            };
            if node.operator == "Constant" && node.divides_safely {
                self.constants.extend(node.outputs.first().cloned());
            }
            if let (Some(output), Some(kind)) = (node.outputs.into_iter().next(), kind) {
                self.kinds.insert(output, kind);
            }
        }
        false
    }
}

fn divides(operator: &str) -> bool {
    matches!(operator, "Div" | "Mod" | "STFT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(operator: &str, inputs: &[&str], output: &str, kind: Option<ElementType>) -> GraphNode {
        GraphNode {
            operator: operator.to_owned(),
            inputs: inputs.iter().map(|name| (*name).to_owned()).collect(),
            outputs: vec![output.to_owned()],
            kind,
            ..GraphNode::default()
        }
    }

    fn is_there(nodes: &[GraphNode]) -> bool {
        let mut found = Division::default();
        for node in nodes {
            found.node(node.clone(), false);
        }
        found.input("whole".to_owned(), Some(INT64));
        found.input("other".to_owned(), Some(INT32));
        found.input("part".to_owned(), Some(FLOAT));
        found.constant("two".to_owned(), Some(INT64), true);
        found.constant("minus".to_owned(), Some(INT64), false);
        found.found()
    }

    #[test]
    fn whole_numbers_divided_by_what_comes_are_found_and_no_others() {
        assert!(is_there(&[node("Div", &["whole", "whole"], "y", None)]));
        assert!(is_there(&[node("Mod", &["other", "other"], "y", None)]));
        assert!(!is_there(&[node("Div", &["whole", "two"], "y", None)]));
        assert!(is_there(&[node("Div", &["whole", "minus"], "y", None)]));
        assert!(!is_there(&[node("Div", &["part", "part"], "y", None)]));
        assert!(!is_there(&[node("Mul", &["whole", "whole"], "y", None)]));
        let cast = |kind| node("Cast", &["part"], "cast", Some(kind));
        let divided = node("Div", &["cast", "cast"], "y", None);
        assert!(is_there(&[cast(INT32), divided.clone()]));
        assert!(!is_there(&[cast(FLOAT), divided]));
        let mean = node("ReduceMean", &["part"], "mean", None);
        assert!(!is_there(&[
            mean,
            node("Div", &["part", "mean"], "y", None)
        ]));
        let constant = node("Constant", &[], "c", Some(INT64));
        let divided = node("Div", &["whole", "c"], "y", None);
        assert!(!is_there(&[constant.clone(), divided.clone()]));
        let minus = GraphNode {
            divides_safely: false,
            ..constant
        };
        assert!(is_there(&[minus, divided]));
        let frames = |length| node("STFT", &["part", "two", "", length], "y", None);
        assert!(is_there(&[frames("whole")]));
        assert!(!is_there(&[frames("two")]));
        // The types of the inputs are unknown.
        assert!(is_there(&[node("Div", &["a", "b"], "y", None)]));
        let mut inside = Division::default();
        inside.node(node("Div", &["part", "part"], "y", None), true);
        assert!(inside.found());
    }
}
