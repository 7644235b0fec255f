//! Detects graphs in which one operator can take much memory outside of the runs' arena.
//!
//! Tensors lie in the arena, which is bounded. The contents of texts and the containers of some
//! operators do not, and a run can only be stopped between two operators. Such a graph runs in a
//! process of its own, whose memory has a hard limit.
//!
//! An operator that takes at most a few times the memory of its own tensors is not reported: the
//! arena bounds it too. Types are followed as far as is needed to tell texts from numbers: the output
//! of an operator that reads texts counts as texts, unless the operator makes numbers or labels. The
//! operators are those of ONNX Runtime 1.31.

use super::copies::Copies;
use super::element_type::STRING;
use super::own_graph::{GraphNode, OwnGraph};

/// Bytes of a constant text up to which its copies are small beside the tensor that holds them.
const SHORT_TEXT: u64 = 64;

/// Operators with containers of many times the size of their tensors.
fn has_containers(operator: &str) -> bool {
    matches!(
        operator,
        "CastMap"
            | "DictVectorizer"
            | "NonMaxSuppression"
            | "NonZero"
            | "SplitToSequence"
            | "StringConcat"
            | "StringSplit"
            | "Tokenizer"
            | "Unique"
    )
}

/// Operators whose output can be of any size, whatever the size of their inputs.
fn repeats(operator: &str) -> bool {
    matches!(
        operator,
        "ArrayFeatureExtractor"
            | "Compress"
            | "ConstantOfShape"
            | "Expand"
            | "Gather"
            | "GatherElements"
            | "GatherND"
            | "If"
            | "Loop"
            | "OneHot"
            | "Pad"
            | "Range"
            | "Resize"
            | "Scan"
            | "Tile"
            | "Upsample"
            | "Where"
    )
}

/// Whether the node selects each element of its first input at most once.
fn selects(node: &GraphNode, graph: &OwnGraph) -> bool {
    let is_selection = matches!(node.operator.as_str(), "ArrayFeatureExtractor" | "Gather");
    let indices = node.inputs.get(1);
    is_selection && indices.is_some_and(|indices| graph.distinct.contains(indices))
}

/// Operators whose output holds all elements of several inputs.
fn joins(operator: &str) -> bool {
    matches!(
        operator,
        "Concat" | "ConcatFromSequence" | "SequenceConstruct" | "SequenceInsert"
    )
}

/// Operators that make numbers, or short labels, of texts.
fn reduces(operator: &str) -> bool {
    matches!(
        operator,
        "CategoryMapper"
            | "Equal"
            | "LabelEncoder"
            | "OneHotEncoder"
            | "RegexFullMatch"
            | "Shape"
            | "Size"
            | "TfIdfVectorizer"
    )
}

/// Operators that answer with one of their labels.
fn labels(operator: &str) -> bool {
    operator == "LabelEncoder" || operator.ends_with("Classifier")
}

/// Whether one operator of the graph can take much memory outside of the arena, or the graph is too
/// large to examine.
pub(super) fn grows(graph: &OwnGraph) -> bool {
    let nested = |found: fn(&str) -> bool| graph.nested.iter().any(|operator| found(operator));
    if graph.is_too_large() || nested(has_containers) {
        return true;
    }
    let has_long_constants = SHORT_TEXT < graph.longest_text;
    if has_long_constants && nested(labels) {
        return true;
    }
    // The values that may hold long texts.
    let mut texts = Copies::default();
    for (name, kind) in &graph.kinds {
        if *kind == STRING && (has_long_constants || !graph.constants.contains(name)) {
            texts.input(name);
        }
    }
    let (mut has_maps, mut repeats_values) = (nested(makes_maps), nested(repeats));
    for node in &graph.nodes {
        let operator = node.operator.as_str();
        let repeats = repeats(operator) && !selects(node, graph);
        let inputs = || node.inputs.iter().map(String::as_str);
        let outputs = || node.outputs.iter().map(String::as_str);
        let reads_texts = inputs().any(|name| texts.contains(name));
        if has_containers(operator)
            || has_long_constants && labels(operator)
            || reads_texts && repeats
        {
            return true;
        }
        has_maps |= makes_maps(operator);
        repeats_values |= repeats && operator != "ArrayFeatureExtractor";
        if reads_texts && !reduces(operator) {
            texts.node(inputs(), outputs());
        } else if has_long_constants && operator == "Constant" && node.kind == Some(STRING) {
            outputs().for_each(|name| texts.input(name));
        }
    }
    let has_texts = !texts.is_empty() || has_long_constants && graph.nested_texts;
    // The caller's rows bound the maps if nothing repeats them.
    has_texts && (nested(repeats) || nested(joins))
        || texts.are_many()
        || has_maps && repeats_values
}

/// Whether the operator makes a map for each row, which takes many times the memory of the row.
fn makes_maps(operator: &str) -> bool {
    operator == "ZipMap"
}

#[cfg(test)]
mod tests {
    use super::super::constant::Constant;
    use super::super::element_type::INT64;
    use super::*;

    fn node(operator: &str, inputs: &[&str], output: &str) -> GraphNode {
        GraphNode {
            operator: operator.to_owned(),
            inputs: inputs.iter().map(|name| (*name).to_owned()).collect(),
            outputs: vec![output.to_owned()],
            ..GraphNode::default()
        }
    }

    fn graph(nodes: &[GraphNode]) -> OwnGraph {
        let mut graph = OwnGraph::default();
        graph.input("number".to_owned(), Some(INT64));
        graph.input("text".to_owned(), Some(STRING));
        graph.constant("labels".to_owned(), Some(STRING), &Constant::default());
        graph.constant("columns".to_owned(), Some(INT64), &Constant::integer(1));
        for node in nodes {
            graph.node(node.clone(), false);
        }
        graph
    }

    fn found(nodes: &[GraphNode]) -> bool {
        grows(&graph(nodes))
    }

    #[test]
    fn containers_and_copies_of_texts_are_found() {
        assert!(found(&[node("Unique", &["number"], "y")]));
        assert!(found(&[node("NonZero", &["number"], "y")]));
        assert!(found(&[node("StringConcat", &["text", "text"], "y")]));
        assert!(found(&[node("Expand", &["text", "number"], "y")]));
        assert!(found(&[node("Gather", &["text", "number"], "y")]));
        let renamed = node("Identity", &["text"], "same");
        assert!(found(&[renamed, node("Tile", &["same", "number"], "y")]));
        let doubled = |from, to| node("Concat", &[from, from], to);
        let chain = ["text", "a", "b", "c", "d"];
        let chain: Vec<_> = chain.windows(2).map(|of| doubled(of[0], of[1])).collect();
        assert!(found(&chain));
        let mut long = graph(&[node("Expand", &["labels", "number"], "y")]);
        long.longest_text = SHORT_TEXT + 1;
        assert!(grows(&long));
    }

    #[test]
    fn numbers_and_short_labels_are_not() {
        assert!(!found(&[node("Expand", &["number", "number"], "y")]));
        assert!(!found(&[node("StringNormalizer", &["text"], "y")]));
        assert!(!found(&[node("Concat", &["text", "labels"], "y")]));
        assert!(!found(&[node("Gather", &["text", "columns"], "y")]));
        let encoded = node("OneHotEncoder", &["text"], "encoded");
        assert!(!found(&[
            encoded,
            node("Tile", &["encoded", "number"], "y")
        ]));
        let label = node("ArrayFeatureExtractor", &["labels", "number"], "y");
        assert!(!found(std::slice::from_ref(&label)));
        let mut long = graph(std::slice::from_ref(&label));
        long.longest_text = SHORT_TEXT + 1;
        assert!(grows(&long));
    }

    #[test]
    fn maps_are_small_if_the_rows_are_those_of_the_request() {
        let maps = node("ZipMap", &["scores"], "y");
        let scores = node("Scaler", &["number"], "scores");
        assert!(!found(&[scores, maps.clone()]));
        let scores = node("Expand", &["number", "number"], "scores");
        assert!(found(&[scores, maps]));
    }

    #[test]
    fn nested_graphs_are_examined_by_their_operators() {
        let mut nested = graph(&[]);
        nested.node(node("Expand", &["a", "b"], "y"), true);
        assert!(grows(&nested));
        let mut numbers = OwnGraph::default();
        numbers.node(node("Expand", &["a", "b"], "y"), true);
        assert!(!grows(&numbers));
        numbers.node(node("Concat", &["a", "b"], "y"), true);
        assert!(!grows(&numbers));
        numbers.node(node("Unique", &["a"], "y"), true);
        assert!(grows(&numbers));
    }
}
