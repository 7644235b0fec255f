//! The OpenAPI documents of the Open Inference Protocol under MLServer's paths: one for all its
//! routes, and one for the routes of a model.

use std::sync::Arc;

use http::{HeaderMap, header};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::response::{Html, IntoResponse, Response};

use crate::error::OipErrors;
use crate::state::Oip;
use crate::{ModelPath, there};
use volley_http_edge::auth::{Access, VIEWER};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::{ApiError, ErrorFormat};
use volley_http_edge::extract::Path;
use volley_http_edge::routes::{RouteInfo, Routes, get};

/// The routes of one model, without and with a version.
const MODEL: [&str; 2] = [
    "/v2/models/{model}",
    "/v2/models/{model}/versions/{version}",
];
/// Content security policy of the page, which has no script and loads nothing.
const PAGE_POLICY: &str = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'";

/// The routes of the documents themselves.
pub fn listed() -> Vec<RouteInfo> {
    let places = std::iter::once("/v2").chain(MODEL);
    let paths = places.flat_map(|place| {
        [
            format!("{place}/docs"),
            format!("{place}/docs/dataplane.json"),
        ]
    });
    let listed = paths.map(|path| RouteInfo {
        path,
        methods: vec![("GET", Access::from(VIEWER))],
        streamed: Vec::new(),
    });
    listed.collect()
}

/// Routes that serve parts of `whole`, the OpenAPI document of the node.
pub fn routes(oip: &Oip, whole: &Value) -> Routes<()> {
    let document = Arc::new(part(
        whole,
        |path| OipErrors.claims(path, &HeaderMap::new()),
        &[],
    ));
    let shown = document.clone();
    let mut routes = Routes::new().route(
        "/v2/docs",
        get(VIEWER, move || {
            let document = shown.clone();
            async move { page(&document) }
        }),
    );
    let shown = document.clone();
    routes = routes.route(
        "/v2/docs/dataplane.json",
        get(VIEWER, move || {
            let document = shown.clone();
            async move { volley_http_edge::axum::Json(document.as_ref().clone()) }
        }),
    );
    for place in MODEL {
        let (text, data) = (document.clone(), document.clone());
        let as_page = move |caller: Caller, Path(named): Path<ModelPath>| {
            let document = text.clone();
            async move { Ok::<_, ApiError>(page(&of_model(&caller, &named, &document).await?)) }
        };
        let as_data = move |caller: Caller, Path(named): Path<ModelPath>| {
            let document = data.clone();
            async move {
                Ok::<_, ApiError>(volley_http_edge::axum::Json(
                    of_model(&caller, &named, &document).await?,
                ))
            }
        };
        routes = routes
            .route(&format!("{place}/docs"), get(VIEWER, as_page))
            .route(
                &format!("{place}/docs/dataplane.json"),
                get(VIEWER, as_data),
            );
    }
    routes.uncompressed().with_state(oip.clone())
}

/// The part of the document for one model, with its name in the paths.
async fn of_model(caller: &Caller, named: &ModelPath, document: &Value) -> Result<Value, ApiError> {
    let names = there(caller, named).await?;
    let prefix = match names.len() {
        1 => "/v2/models/{model}",
        _ => MODEL[1],
    };
    let is_own = |path: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            && (names.len() != 1 || !path.starts_with(MODEL[1]))
    };
    Ok(part(document, is_own, &names))
}

/// The part of a document with the selected paths, in which `names` replace the path parameters.
fn part(whole: &Value, is_own: impl Fn(&str) -> bool, names: &[(&str, String)]) -> Value {
    let mut document = whole.clone();
    let paths = whole["paths"].as_object().into_iter().flatten();
    let own = paths
        .filter(|(path, _)| is_own(path))
        .map(|(path, methods)| {
            let (mut path, mut methods) = (path.clone(), methods.clone());
            for (name, value) in names {
                path = path.replace(&format!("{{{name}}}"), value);
            }
            for operation in methods.as_object_mut().into_iter().flatten() {
                let parameters = operation
                    .1
                    .get_mut("parameters")
                    .and_then(Value::as_array_mut);
                if let Some(parameters) = parameters {
                    let told = |it: &Value| names.iter().any(|(name, _)| it["name"] == *name);
                    parameters.retain(|parameter| !told(parameter));
                }
            }
            (path, methods)
        });
    document["paths"] = Value::Object(own.collect::<Map<_, _>>());
    document["info"]["title"] = json!("Open Inference Protocol");
    document
}

/// Renders the operations of a document as an HTML table.
fn page(document: &Value) -> Response {
    let mut rows = String::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let summary = operation["summary"].as_str().unwrap_or_default();
            let cells = [&method.to_uppercase(), path, summary].map(escaped);
            rows.push_str(&format!(
                "<tr><td>{}</td><td><code>{}</code></td><td>{}</td></tr>\n",
                cells[0], cells[1], cells[2]
            ));
        }
    }
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Open Inference \
         Protocol</title></head>\n<body><h1>Open Inference Protocol</h1>\n<p>As a document: \
         <code>dataplane.json</code> below this page's path.</p>\n<table>\n{rows}</table></body></html>\n"
    );
    let policy = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)];
    (policy, Html(page)).into_response()
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
