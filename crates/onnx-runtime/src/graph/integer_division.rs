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

use super::element_type::{BOOL, ElementType, FLOAT, INT32, INT64};
use super::own_graph::OwnGraph;

/// Whether the graph has an unsafe division, or is too large to examine.
pub(super) fn divides(graph: &OwnGraph) -> bool {
    let is_division = |operator: &String| matches!(operator.as_str(), "Div" | "Mod" | "STFT");
    if graph.is_too_large() || graph.nested.iter().any(is_division) {
        return true;
    }
    let mut kinds: HashMap<&str, ElementType> = HashMap::new();
    kinds.extend(
        graph
            .kinds
            .iter()
            .map(|(name, kind)| (name.as_str(), *kind)),
    );
    let mut safe = graph
        .safe_divisors
        .iter()
        .map(String::as_str)
        .collect::<HashSet<_>>();
    for node in &graph.nodes {
        let given = |index: usize| {
            let name = node.inputs.get(index)?;
            kinds.get(name.as_str()).copied()
        };
        let fixed = |index: usize| {
            let name = node.inputs.get(index).filter(|name| !name.is_empty());
            name.is_none_or(|name| safe.contains(name.as_str()))
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
            safe.extend(node.outputs.first().map(String::as_str));
        }
        if let (Some(output), Some(kind)) = (node.outputs.first(), kind) {
            kinds.insert(output, kind);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::constant::Constant;
    use super::super::own_graph::GraphNode;
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
        let mut found = OwnGraph::default();
        for node in nodes {
            found.node(node.clone(), false);
        }
        found.input("whole".to_owned(), Some(INT64));
        found.input("other".to_owned(), Some(INT32));
        found.input("part".to_owned(), Some(FLOAT));
        found.constant("two".to_owned(), Some(INT64), &Constant::integer(2));
        found.constant("minus".to_owned(), Some(INT64), &Constant::integer(-1));
        divides(&found)
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
        let mut inside = OwnGraph::default();
        inside.node(node("Div", &["part", "part"], "y", None), true);
        assert!(divides(&inside));
    }
}
