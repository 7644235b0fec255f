//! The OpenAPI document and its page.

use std::collections::BTreeSet;

use serde_json::Value;

use super::support::Edge;

fn refs<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| refs(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| refs(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_route_is_described_with_forms_that_are_there() {
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.ok();
    let paths = document["paths"].as_object().unwrap();
    assert!(50 < paths.len(), "{}", paths.len());
    let mut ids = BTreeSet::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap();
            assert!(
                !summary.is_empty(),
                "describe in operations.rs: {method} {path}"
            );
            assert!(ids.insert(operation["operationId"].as_str().unwrap()));
        }
    }
    let mut named = BTreeSet::new();
    refs(&document, &mut named);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let there = schemas
        .keys()
        .map(|name| format!("#/components/schemas/{name}"));
    let there: Vec<_> = there.collect();
    assert_eq!(named, there.iter().map(String::as_str).collect());
}

#[tokio::test]
async fn the_page_is_there_and_loads_nothing_from_elsewhere() {
    let edge = Edge::start().await;
    let page = edge.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(
        page.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'"));
    assert!(!page.text().contains("//") || !page.text().contains("src="));
}
