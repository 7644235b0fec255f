//! The OpenAPI document and its HTML page.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::page::assert_current;
use super::support::Edge;

#[path = "../../../../tests/reference/page.rs"]
mod page;

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
    assert!(!policy.contains("unsafe-inline"));
    assert!(!page.text().contains("//"));
    assert!(!page.text().contains("<style") && !page.text().contains("onload"));
    for (file, media) in [("page.js", "text/javascript"), ("page.css", "text/css")] {
        assert!(page.text().contains(&format!("\"docs/{file}\"")));
        let part = edge.get(&format!("/docs/{file}")).await;
        assert_eq!(part.status, 200);
        assert!(
            part.headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with(media)
        );
        assert_eq!(part.headers["x-content-type-options"], "nosniff");
    }
    assert_eq!(edge.get("/docs/other.js").await.status, 404);
}

/// `docs/reference/rest.md` lists what the routes declare.
#[tokio::test]
async fn the_page_of_routes_is_generated_from_the_document() {
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.ok();
    let mut parts = BTreeMap::<String, String>::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let tag = operation["tags"][0].as_str().unwrap().to_owned();
            let table = parts.entry(tag).or_insert_with(|| {
                "| route | role | query | body | response | meaning |\n|---|---|---|---|---|---|\n"
                    .to_owned()
            });
            *table += &row(path, method, operation);
        }
    }
    let errors = document["paths"]["/v1/messages"]["post"]["responses"]
        .as_object()
        .unwrap();
    let errors = errors.keys().filter(|status| "400" <= status.as_str());
    let errors: Vec<_> = errors.map(|status| format!("`{status}`")).collect();
    parts.insert("statuses".to_owned(), errors.join(", "));
    assert_current("rest", parts);
}

fn row(path: &str, method: &str, operation: &Value) -> String {
    let role = operation["x-volley-role"].as_str();
    let role = role.map_or("none".to_owned(), |role| format!("`{role}`"));
    let parameters = operation["parameters"].as_array();
    let query = parameters.into_iter().flatten();
    let query = query.filter(|it| it["in"] == "query").map(|it| {
        let kind = it["schema"]["type"].as_str().unwrap();
        format!("`{}` ({kind})", it["name"].as_str().unwrap())
    });
    let query: Vec<_> = query.collect();
    let body = &operation["requestBody"];
    let named = schema(&body["content"]["application/json"]);
    let body = match (named, body["required"] == true) {
        (None, _) => String::new(),
        (Some(name), true) => name,
        (Some(name), false) => format!("{name} (optional)"),
    };
    let (status, good) = operation["responses"]
        .as_object()
        .unwrap()
        .iter()
        .find(|(status, _)| status.starts_with('2'))
        .unwrap();
    let mut response = vec![status.clone()];
    for (media, content) in good["content"].as_object().into_iter().flatten() {
        response.push(schema(content).unwrap_or_else(|| format!("`{media}`")));
    }
    let method = method.to_ascii_uppercase();
    let meaning = operation["summary"].as_str().unwrap();
    format!(
        "| `{method} {path}` | {role} | {} | {body} | {} | {meaning} |\n",
        query.join(", "),
        response.join(", ")
    )
}

/// The name of the schema of a body.
fn schema(content: &Value) -> Option<String> {
    let name = content["schema"]["$ref"].as_str()?.rsplit('/').next()?;
    match name {
        "Anything" | "AnyList" => Some("JSON".to_owned()),
        name => Some(format!("`{name}`")),
    }
}
