//! Health, as servers of one model report it.

use http::StatusCode;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};

use volley_http_edge::edge::Caller;

/// Whether requests are taken, for clients of servers with one model.
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

/// Which version of Volley answers.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
