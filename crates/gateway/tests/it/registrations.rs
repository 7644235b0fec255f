//! Rejected registrations and their messages.

use super::support::{Edge, Script, last};

const ML: &str = "/_plugins/_ml";

#[tokio::test]
async fn malformed_registrations_say_what_is_wrong() {
    let edge = Edge::start().await;
    let path = format!("{ML}/models/_register");
    for (body, says) in [
        (r"{}", "name"),
        (r#"{"name":"a b"}"#, "model name"),
        (r#"{"name":"m"}"#, "function_name"),
        (r#"{"name":"m","function_name":"kmeans"}"#, "function_name"),
        (
            r#"{"name":"m","function_name":"kmeans"}"#,
            "onnx, remote, text, fake",
        ),
        (
            r#"{"name":"m","function_name":"onx"}"#,
            "did you mean 'onnx'?",
        ),
        (
            r#"{"name":"m","function_name":"text","path":"/m"}"#,
            "field 'path' does not fit",
        ),
        (
            r#"{"name":"m","function_name":"onnx","path":"/m","connector_id":"c"}"#,
            "field 'connector_id' does not fit",
        ),
        (
            r#"{"name":"m","function_name":"remote","connector_id":"c","url":"https://h/m.zip"}"#,
            "field 'url' does not fit",
        ),
        (
            r#"{"name":"m","path":"/m","parameters":{"temperature":"hot"}}"#,
            "'temperature'",
        ),
        (
            r#"{"name":"m","path":"/m","parameters":{"max_rowz":1}}"#,
            "did you mean 'max_rows'?",
        ),
        (r#"{"name":"m","function_name":"ONNX"}"#, "path"),
        (r#"{"name":"m","function_name":"remote"}"#, "connector_id"),
        (r#"{"name":7}"#, "name"),
        (
            r#"{"name":"m","function_name":"text","replica":2}"#,
            "'replica'",
        ),
        (
            r#"{"name":"m","function_name":"ONNX","path":"https://example.com/m.zip"}"#,
            "directory",
        ),
        (
            r#"{"name":"m","function_name":"ONNX","url":"https://me:key@example.com/m.zip"}"#,
            "workers' configuration",
        ),
        (
            r#"{"name":"m","url":"https://example.com/m.zip","model_content_hash_value":"7"}"#,
            "64 hexadecimal digits",
        ),
        (
            r#"{"name":"m","path":"/m","model_config":{"pooling_mode":"weightedmean"}}"#,
            "'pooling_mode'",
        ),
        (
            r#"{"name":"m","path":"/m","model_config":{"normalize_result":"yes"}}"#,
            "'normalize_result'",
        ),
        (
            r#"{"name":"m","path":"/m","model_config":{"all_config":"{"}}"#,
            "'all_config'",
        ),
        (
            r#"{"name":"m","path":"/m","model_config":{"dimension":3}}"#,
            "embedding_dimension",
        ),
    ] {
        let reason = edge.post(&path, body).await.refused(400);
        assert!(reason.contains(says), "{body}: {reason}");
    }
    let deploys = format!("{path}?deploy=true");
    for replicas in ["0", "1001", "-1", "99999999999"] {
        let body = format!(r#"{{"name":"m","function_name":"text","replicas":{replicas}}}"#);
        let reason = edge.post(&deploys, &body).await.refused(400);
        assert!(reason.contains("replicas"), "{reason}");
        let model = format!("{ML}/models/m");
        edge.get(&model).await.refused(404);
    }
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    edge.post(&format!("{ML}/models/m/_deploy?replica=2"), "")
        .await
        .refused(400);
    edge.post(&format!("{ML}/models/m/_deploy?replicas=many"), "")
        .await
        .refused(400);
    edge.post(&format!("{ML}/models/m/_deploy"), r#"{"replicas":-1}"#)
        .await
        .refused(400);
    edge.post(&format!("{ML}/models/no%2F%2Fname/_deploy"), "")
        .await
        .refused(400);
    edge.get(&format!("{ML}/models/%FF")).await.refused(400);
}
