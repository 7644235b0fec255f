//! `GET /openapi.json`: the routes as an OpenAPI document. `GET /docs`: a page that renders it.
//!
//! The document is generated from the router's list of routes and their access rules. The
//! operations of each dialect describe the routes, and `openapi/schemas.json` the bodies. A test
//! detects a route without a description. A description without a route is logged at the start.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::response::{Html, IntoResponse, Response};
use volley_types::{ErrorCode, PredictError};

use volley_http_edge::auth::{Access, PUBLIC};
use volley_http_edge::error::{ApiError, ErrorFormat, ErrorFormats};
use volley_http_edge::extract::Path;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{RouteInfo, Routes, get};

/// The path of the document.
pub const PATH: &str = "/openapi.json";
const SCHEMAS: &str = include_str!("openapi/schemas.json");
const PAGE: &str = include_str!("openapi/docs.html");
/// The page loads only its own files and runs no inline scripts.
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; style-src 'self'; \
                           script-src 'self'; base-uri 'none'; form-action 'none'; \
                           frame-ancestors 'none'";
/// HTTP statuses that any route may return.
const ERRORS: [u16; 17] = [
    400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 426, 429, 500, 501, 502, 503, 504,
];

/// Returns the page. It fetches the document with the reader's credentials.
pub(crate) async fn page() -> Response {
    let policy = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)];
    (policy, Html(PAGE)).into_response()
}

/// Returns the script or the style of the page.
async fn part(Path(file): Path<String>) -> Result<Response, ApiError> {
    let (media, text) = match file.as_str() {
        "page.js" => (
            "text/javascript; charset=utf-8",
            include_str!("openapi/page.js"),
        ),
        "page.css" => ("text/css; charset=utf-8", include_str!("openapi/page.css")),
        _ => {
            let message = "the page has 'page.js' and 'page.css'";
            return Err(PredictError::new(ErrorCode::NotFound, message).into());
        }
    };
    Ok(([(header::CONTENT_TYPE, media)], text).into_response())
}

/// The route of the page that renders the document. Public.
pub fn page_routes() -> Routes<()> {
    Routes::new().route("/docs", get(PUBLIC, page).compressed())
}

/// The routes of the document and of the files of its page. Public.
pub fn document_routes(document: &Value) -> Routes<()> {
    let document = Bytes::from(document.to_string());
    let serve = move || {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let document = document.clone();
        async move { (json, document).into_response() }
    };
    // The page's files are not part of the API, so the document does not list them.
    Routes::new()
        .route(PATH, get(PUBLIC, serve).compressed())
        .route("/docs/{file}", get(PUBLIC, part).compressed())
}

/// Generates the OpenAPI document of `routes`. Logs an error for each of `operations` without a
/// route.
pub fn document(
    routes: &[RouteInfo],
    operations: &[&'static Operation],
    errors: &ErrorFormats,
) -> Value {
    let describe = Describe { operations, errors };
    #[expect(
        clippy::expect_used,
        reason = "the file is compiled in, and tests parse it"
    )]
    let schemas: Value =
        serde_json::from_str(SCHEMAS).expect("the file is JSON, as the tests of this module read");
    let mut paths = Map::new();
    for route in routes {
        let methods = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        for (method, access) in &route.methods {
            methods[method.to_ascii_lowercase()] = describe.operation(&route.path, method, *access);
        }
    }
    for gone in operations.iter().filter(|it| !paths.contains_key(it.path)) {
        tracing::error!(
            path = gone.path,
            "OpenAPI describes a route that is not registered"
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Volley",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Every coordinator answers every request. Each request may carry \
                            x-request-id, traceparent and x-volley-timeout-ms.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    let words = std::iter::once(method.to_ascii_lowercase()).chain(words.map(str::to_owned));
    words.collect::<Vec<_>>().join("_")
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The schema of one event of a stream.
fn event() -> Value {
    json!({
        "type": "object",
        "description": "An event of the stream. Its data is JSON, but for the last one of some \
                        interfaces, which is [DONE].",
        "properties": {
            "data": { "type": "string" },
            "event": { "type": "string" },
            "id": { "type": "string" },
            "retry": { "type": "integer" },
        },
        "required": ["data"],
    })
}

fn parameters(path: &str) -> impl Iterator<Item = Value> + '_ {
    path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name, "in": "path", "required": true,
            "schema": { "type": "string", "minLength": 1 },
        }))
    })
}

fn queries(operation: &Operation) -> impl Iterator<Item = Value> + '_ {
    let all = operation.query.iter();
    all.map(|(name, kind)| json!({ "name": name, "in": "query", "schema": { "type": kind } }))
}

/// Generates the description of a route.
struct Describe<'d> {
    operations: &'d [&'static Operation],
    errors: &'d ErrorFormats,
}

impl Describe<'_> {
    fn operation(&self, path: &str, method: &str, access: Access) -> Value {
        let mut all = self.operations.iter().copied();
        let known = all.find(|known| (known.method, known.path) == (method, path));
        let known = known.unwrap_or(&Operation::UNKNOWN);
        let mut told = json!({
            "operationId": operation_id(method, path),
            "tags": [self.tag(path)],
            "summary": known.summary,
            "responses": self.responses(path, known),
        });
        let parameters: Vec<_> = parameters(path).chain(queries(known)).collect();
        if !parameters.is_empty() {
            told["parameters"] = parameters.into();
        }
        if !known.takes.is_empty() {
            told["requestBody"] = json!({
                "required": known.needs_body,
                "content": { "application/json": { "schema": schema(known.takes) } },
            });
        }
        if let Access::Role(role) = access {
            // The empty entry: a cluster without keys requires none.
            told["security"] = json!([{ "bearer": [] }, { "x-api-key": [] }, {}]);
            told["x-volley-role"] = role.as_str().into();
        }
        told
    }

    fn format(&self, path: &str) -> &'static dyn ErrorFormat {
        self.errors.of(path, &HeaderMap::new())
    }

    /// The tag of a path: its dialect.
    fn tag(&self, path: &str) -> &'static str {
        match self.format(path).name() {
            "Volley" if path.starts_with("/_plugins/") => "OpenSearch ML",
            "Volley" => "Operations",
            name => name,
        }
    }

    fn error_schema(&self, path: &str) -> &'static str {
        // The form of an error depends on which of two request forms the body has.
        if path == "/" || path.starts_with("/tei/") || path.starts_with("/tgi/") {
            return "AnyError";
        }
        self.format(path).schema()
    }

    fn responses(&self, path: &str, known: &Operation) -> Value {
        let mut content = Map::new();
        match known.gives {
            "" => {}
            text if text.contains('/') => {
                content.insert(text.to_owned(), json!({ "schema": { "type": "string" } }));
            }
            name => {
                content.insert("application/json".into(), json!({ "schema": schema(name) }));
            }
        }
        if known.streams {
            // Versions before OpenAPI 3.2 have no keyword for streams; tools read this as the
            // schema of one event.
            content.insert("text/event-stream".into(), json!({ "schema": event() }));
        }
        if known.lines {
            let lines = json!({ "schema": { "type": "string" } });
            content.insert("application/x-ndjson".into(), lines);
        }
        let mut good = json!({ "description": "Done." });
        if !content.is_empty() {
            good["content"] = content.into();
        }
        let mut all = Map::new();
        all.insert(known.status.to_string(), good);
        let further = self.format(path).statuses().iter().copied();
        for status in ERRORS.into_iter().chain(further) {
            let status_text = http::StatusCode::from_u16(status).ok();
            let reason = status_text.and_then(|status| status.canonical_reason());
            // An unhealthy node returns the health body with 503.
            let name = match (status, known.gives) {
                (503, "Ready") => "Anything",
                _ => self.error_schema(path),
            };
            let error = json!({
                "description": reason.unwrap_or("Overloaded"),
                "content": { "application/json": { "schema": schema(name) } },
            });
            all.insert(status.to_string(), error);
        }
        all.into()
    }
}
