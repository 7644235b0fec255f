//! Class labels of classifiers, as `ai.onnx.ml`'s operators declare them.
//!
//! Exporters of scikit-learn, LightGBM and XGBoost end a classifier in `ZipMap`, whose output is,
//! for each row, a map from class to probability. The type of the output does not list the classes;
//! the attributes of the node do.

use std::collections::{BTreeMap, HashSet};

use super::own_graph::GraphNode;

/// Maximum number of classes of one output.
const MAX_CLASSES: usize = 65_536;

/// Operators of classifiers. Some exporters declare a wrong shape for their label output.
const CLASSIFIERS: [&str; 4] = [
    "LinearClassifier",
    "SVMClassifier",
    "TreeEnsembleClassifier",
    "ZipMap",
];

/// The classes of one output, in the classifier's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classes {
    /// Integer labels.
    Numbers(Vec<i64>),
    /// String labels.
    Texts(Vec<String>),
}

impl Default for Classes {
    fn default() -> Self {
        Self::Numbers(Vec::new())
    }
}

impl Classes {
    /// Whether an attribute of this name holds classes.
    pub(super) fn are_named_by(attribute: &str) -> bool {
        matches!(attribute, "classlabels_int64s" | "classlabels_strings")
    }

    /// Appends a class. Up to one class over the limit is kept, so that [`ClassMaps`] detects and
    /// ignores the list.
    pub(super) fn push_number(&mut self, class: i64) {
        if let Self::Numbers(classes) = self
            && classes.len() <= MAX_CLASSES
        {
            classes.push(class);
        }
    }

    /// As [`Self::push_number`].
    pub(super) fn push_text(&mut self, class: String) {
        match self {
            Self::Texts(classes) if classes.len() <= MAX_CLASSES => classes.push(class),
            Self::Numbers(classes) if classes.is_empty() => *self = Self::Texts(vec![class]),
            Self::Texts(_) | Self::Numbers(_) => {}
        }
    }

    /// Whether there are no classes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(classes) => classes.len(),
            Self::Texts(classes) => classes.len(),
        }
    }

    /// The class labels as texts.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Numbers(classes) => classes.iter().map(ToString::to_string).collect(),
            Self::Texts(classes) => classes.clone(),
        }
    }

    fn are_good(&self) -> bool {
        let different = match self {
            Self::Numbers(classes) => classes.iter().collect::<HashSet<_>>().len(),
            Self::Texts(classes) => classes.iter().collect::<HashSet<_>>().len(),
        };
        (1..=MAX_CLASSES).contains(&self.len()) && different == self.len()
    }
}

/// The classes found so far.
#[derive(Debug, Default)]
pub(crate) struct ClassMaps {
    /// Classes by the name of the value that holds the maps.
    pub maps: BTreeMap<String, Classes>,
    /// Whether one of [`CLASSIFIERS`] was found.
    pub classifies: bool,
}

impl ClassMaps {
    /// Records a node of the model's own graph. Nodes arrive in execution order.
    pub(crate) fn node(&mut self, node: &GraphNode, classes: Option<Classes>) {
        self.classifies |= CLASSIFIERS.contains(&node.operator.as_str());
        let Some(output) = node.outputs.first() else {
            return;
        };
        let classes = match node.operator.as_str() {
            "ZipMap" => classes.filter(Classes::are_good),
            "Identity" => {
                let input = node.inputs.first();
                input.and_then(|input| self.maps.get(input)).cloned()
            }
            _ => None,
        };
        self.maps
            .extend(classes.map(|classes| (output.clone(), classes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(operator: &str, input: &str, output: &str) -> GraphNode {
        GraphNode {
            operator: operator.to_owned(),
            inputs: vec![input.to_owned()],
            outputs: vec![output.to_owned()],
            ..GraphNode::default()
        }
    }

    #[test]
    fn classes_follow_the_map_to_its_output() {
        let mut classes = Classes::default();
        classes.push_text("no".to_owned());
        classes.push_text("yes".to_owned());
        let mut found = ClassMaps::default();
        found.node(&node("ZipMap", "p", "m"), Some(classes.clone()));
        found.node(&node("Identity", "m", "out"), None);
        found.node(&node("Identity", "p", "other"), None);
        assert_eq!(found.maps.get("out"), Some(&classes));
        assert!(!found.maps.contains_key("other"));
        assert!(found.classifies);
    }

    #[test]
    fn classes_that_are_none_twice_or_too_many_are_not_known() {
        let of = |numbers: &mut dyn Iterator<Item = i64>| {
            let mut classes = Classes::default();
            numbers.for_each(|number| classes.push_number(number));
            let mut found = ClassMaps::default();
            found.node(&node("ZipMap", "p", "m"), Some(classes));
            found.maps.contains_key("m")
        };
        assert!(of(&mut (0..3)));
        assert!(!of(&mut (0..0)));
        assert!(!of(&mut [1, 1].into_iter()));
        assert!(!of(&mut (0..70_000)));
    }
}
