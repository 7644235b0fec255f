//! Health routes in the style of single-model servers.

use http::StatusCode;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};

use volley_http_edge::edge::Caller;

/// Reports whether requests are accepted.
pub async fn health(caller: Caller) -> Response {
    match caller.cluster.view.ready() {
        true => Json(json!({ "status": "ok" })).into_response(),
        false => {
            let error = json!({
                "message": "this node accepts no requests", "type": "unavailable_error",
                "code": 503, "param": null,
            });
            let body = Json(json!({ "status": "unavailable", "error": error }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

/// Returns the version of Volley.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
