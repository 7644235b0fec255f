use serde_json::{Map, Value, json};
use volley_types::registry::PipelineEntry;

use super::*;

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn read(body: Value) -> Result<PipelineSpec, PredictError> {
    read::pipeline(&object(body), "p".parse().unwrap())
}

/// A pipeline with one step of every kind.
fn all() -> Value {
    json!({
        "name": "p", "task": "generate", "description": "all of them", "output": "answer",
        "inputs": {},
        "steps": [
            { "name": "docs", "explode": { "list": "parameters.documents", "as": "text" } },
            { "name": "q", "model": "embedder:2", "inputs": { "text": "request.question" } },
            { "name": "d", "model": "embedder", "inputs": { "text": "docs.text" },
              "parameters": { "dimensions": 4, "normalize": true } },
            { "name": "near", "similarity": { "left": "q.embedding", "right": "d.embedding",
                                              "as": "score" } },
            { "name": "much", "compute": { "expression": "s * 2", "as": "score",
                                           "inputs": { "s": "near.score" } } },
            { "name": "best", "top_k": { "k": 3, "by": "much.score" } },
            { "name": "said", "select": { "text": "docs.text" }, "over": "best" },
            { "name": "prompt", "template": { "template": "{{ rows }}", "gather": true,
                                              "as": "text", "inputs": { "text": "said.text" } } },
            { "name": "long", "branch": { "when": "p|length > 9",
                                          "inputs": { "p": "prompt.text" } } },
            { "name": "short", "branch": { "otherwise": ["long"] } },
            { "name": "a", "model": "big", "inputs": { "prompt": "prompt.text" },
              "over": "long" },
            { "name": "b", "model": "small", "inputs": { "prompt": "prompt.text" },
              "over": "short" },
            { "name": "answer", "merge": ["a", "b"] },
        ],
    })
}

#[test]
fn a_pipeline_is_written_as_it_was_read() {
    let spec = read(all()).unwrap();
    spec.check().unwrap();
    let entry = PipelineEntry {
        spec: Arc::new(spec),
        revision: Revision(7),
    };
    let mut told = render::entry(&entry, None);
    assert_eq!(told["revision"], 7);
    let fields = told.as_object_mut().unwrap();
    fields.remove("revision");
    fields.remove("state");
    assert_eq!(told, all());
    let again = read(told).unwrap();
    assert_eq!(again, *entry.spec);
}

#[test]
fn the_last_step_answers_and_columns_have_names_where_nothing_is_said() {
    let spec = read(json!({
        "task": "generate",
        "steps": [{ "name": "t", "template": { "template": "hi" } }],
    }));
    let spec = spec.unwrap();
    assert_eq!(spec.output, "t");
    assert_eq!(spec.check().unwrap().order, [0]);
    let told = render::entry(
        &PipelineEntry {
            spec: Arc::new(spec),
            revision: Revision(1),
        },
        None,
    );
    assert_eq!(told["steps"][0]["template"]["as"], "text");
}

#[test]
fn what_is_no_pipeline_is_told_by_its_step() {
    let with = |step: Value| json!({ "task": "generate", "steps": [step] });
    for (body, says) in [
        (json!({}), "'task'"),
        (json!({ "task": "sing", "steps": [] }), "'task'"),
        (json!({ "task": "embed" }), "'steps'"),
        (json!({ "task": "embed", "steps": [1] }), "object"),
        (json!({ "task": "embed", "steps": [], "x": 1 }), "'x'"),
        (
            json!({ "task": "tensors", "steps": [], "inputs": { "a": "blob" } }),
            "input 'a'",
        ),
        (with(json!({ "merge": [] })), "'name'"),
        (with(json!({ "name": "s" })), "step 's': must have one of"),
        (
            with(json!({ "name": "s", "merge": ["a"], "select": {} })),
            "one of",
        ),
        (with(json!({ "name": "s", "merge": "a" })), "'merge'"),
        (with(json!({ "name": "s", "merge": ["a"], "k": 1 })), "'k'"),
        (with(json!({ "name": "s", "model": "a b" })), "model name"),
        (
            with(json!({ "name": "s", "model": "a", "inputs": { "text": "column" } })),
            "step.column",
        ),
        (
            with(json!({ "name": "s", "top_k": { "by": "a.b" } })),
            "'k' is missing",
        ),
        (
            with(json!({ "name": "s", "branch": {} })),
            "either 'when' or 'otherwise'",
        ),
        (
            with(json!({ "name": "s", "template": { "template": "x", "gather": 1 } })),
            "'gather'",
        ),
    ] {
        let refused = read(body.clone()).unwrap_err();
        assert!(refused.message.contains(says), "{body}: {refused}");
    }
}
