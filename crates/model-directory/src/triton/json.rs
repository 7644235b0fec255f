//! Converts configurations to JSON for clients, and from JSON in load requests. Pure.

use serde_json::{Map, Value as Json, json};

use super::text::{Message, Value};

/// Repeated fields.
const LISTS: [&str; 24] = [
    "batch_input",
    "batch_output",
    "bool_false_true",
    "control",
    "control_input",
    "dims",
    "fp32_false_true",
    "gpus",
    "graph_pool",
    "host_policy",
    "initial_state",
    "input",
    "instance_group",
    "int32_false_true",
    "model_warmup",
    "op_library_filename",
    "output",
    "preferred_batch_size",
    "profile",
    "secondary_devices",
    "shape",
    "state",
    "step",
    "versions",
];

/// Map fields.
const MAPS: [&str; 7] = [
    "cc_model_filenames",
    "input_map",
    "inputs",
    "metric_tags",
    "output_map",
    "parameters",
    "priority_queue_policy",
];

/// Further repeated fields, of messages without effect here.
const OTHER_LISTS: [&str; 9] = [
    "agents",
    "buckets",
    "cpu_execution_accelerator",
    "gpu_execution_accelerator",
    "graph_spec",
    "metric_control",
    "resources",
    "source_input",
    "target_name",
];

/// Whether a field may occur several times.
pub(super) fn is_repeated(field: &str) -> bool {
    let lists = LISTS.iter().chain(&MAPS).chain(&OTHER_LISTS);
    lists.copied().any(|name| name == field)
}

/// Converts a message to JSON.
pub(super) fn to_json(message: &Message) -> Map<String, Json> {
    let mut fields: Map<String, Json> = Map::new();
    for (name, value) in &message.0 {
        if MAPS.contains(&name.as_str())
            && let Some((key, value)) = entry(value)
        {
            let map = fields.entry(name.clone()).or_insert_with(|| json!({}));
            map[key] = value;
        } else if LISTS.contains(&name.as_str()) {
            let list = fields.entry(name.clone()).or_insert_with(|| json!([]));
            if let Json::Array(list) = list {
                list.push(value_of(value));
            }
        } else {
            fields.insert(name.clone(), value_of(value));
        }
    }
    fields
}

/// Reads a map entry: a message with `key` and `value`.
fn entry(value: &Value) -> Option<(String, Json)> {
    let Value::Message(entry) = value else {
        return None;
    };
    let key = match entry.last("key")? {
        Value::Text(key) | Value::Word(key) => key.clone(),
        Value::Message(_) => return None,
    };
    let value = entry.last("value").map_or_else(|| json!({}), value_of);
    Some((key, value))
}

fn value_of(value: &Value) -> Json {
    match value {
        Value::Message(message) => Json::Object(to_json(message)),
        Value::Text(text) => text.as_str().into(),
        Value::Word(word) => match (word.as_str(), word.parse::<i64>(), word.parse::<f64>()) {
            ("true", ..) => true.into(),
            ("false", ..) => false.into(),
            (_, Ok(whole), _) => whole.into(),
            (_, Err(_), Ok(number)) => number.into(),
            (name, ..) => name.into(),
        },
    }
}

/// Converts JSON to a message. Field names may be in snake case or camel case, as in the JSON
/// format of protocol buffers.
///
/// # Errors
/// A description of the invalid value, or of too deep nesting.
pub(super) fn from_json(object: &Map<String, Json>, depth: usize) -> Result<Message, String> {
    if 32 < depth {
        return Err("messages are nested too deeply".to_owned());
    }
    let mut fields = Vec::new();
    for (name, json) in object {
        let name = snake(name);
        match json {
            Json::Null => {}
            Json::Object(map) if MAPS.contains(&name.as_str()) => {
                for (key, json) in map {
                    let key = ("key".to_owned(), Value::Text(key.clone()));
                    let value = ("value".to_owned(), value_from(json, depth)?);
                    fields.push((name.clone(), Value::Message(Message(vec![key, value]))));
                }
            }
            Json::Array(values) => {
                for json in values {
                    fields.push((name.clone(), value_from(json, depth)?));
                }
            }
            json => fields.push((name, value_from(json, depth)?)),
        }
    }
    Ok(Message(fields))
}

fn value_from(json: &Json, depth: usize) -> Result<Value, String> {
    Ok(match json {
        Json::Object(object) => Value::Message(from_json(object, depth + 1)?),
        Json::String(text) => Value::Text(text.clone()),
        Json::Bool(_) | Json::Number(_) => Value::Word(json.to_string()),
        Json::Null | Json::Array(_) => return Err("a list contains a list or null".to_owned()),
    })
}

fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn a_configuration_is_the_same_in_both_forms() {
        let told = text::parse(
            "name: 'm' max_batch_size: 8 input [ { name: 'x' data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
             parameters { key: 'k' value: { string_value: 'v' } }
             version_policy { all { } } dynamic_batching { preserve_ordering: true }",
        )
        .unwrap();
        let json = to_json(&told);
        let expected = json!({
            "name": "m", "max_batch_size": 8,
            "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [3, -1] }],
            "parameters": { "k": { "string_value": "v" } },
            "version_policy": { "all": {} },
            "dynamic_batching": { "preserve_ordering": true },
        });
        assert_eq!(Json::Object(json.clone()), expected);
        assert_eq!(to_json(&from_json(&json, 0).unwrap()), json);
        let camel = json!({ "maxBatchSize": 8 });
        let read = from_json(camel.as_object().unwrap(), 0).unwrap();
        assert_eq!(
            read.last("max_batch_size"),
            Some(&Value::Word("8".to_owned()))
        );
        let mut deep = json!({});
        for _ in 0..40 {
            deep = json!({ "a": deep });
        }
        assert!(from_json(deep.as_object().unwrap(), 0).is_err());
    }
}
