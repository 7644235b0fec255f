//! Metrics as alerts and dashboards name them.

use std::collections::BTreeSet;

use serde_json::Value;

/// What a family's samples add to its name.
const ENDINGS: [&str; 4] = ["_total", "_bucket", "_sum", "_count"];

/// The families of Volley's that a text names.
#[must_use]
pub fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let own = words.filter(|word| word.starts_with("volley_"));
    own.map(|word| {
        let family = ENDINGS.iter().find_map(|ending| word.strip_suffix(ending));
        family.unwrap_or(word).to_owned()
    })
    .collect()
}

/// Every expression of a Grafana dashboard: of panels, annotations and variables.
#[must_use]
pub fn expressions(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut values = vec![dashboard];
    while let Some(value) = values.pop() {
        match value {
            Value::Object(object) => {
                for key in ["expr", "query"] {
                    if let Some(Value::String(text)) = object.get(key) {
                        found.push(text.clone());
                    }
                }
                values.extend(object.values());
            }
            Value::Array(items) => values.extend(items),
            _ => {}
        }
    }
    found
}
