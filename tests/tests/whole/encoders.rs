//! Text encoders and tensor models through a whole node: tokens, their vectors, and parameters that
//! nobody knows.

use serde_json::{Value, json};
use volley_tests::http::{exchange, post};
use volley_tests::judges::{deploy, root};

use crate::clients::Up;

async fn call(up: &Up, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = exchange(&up.rest, &post(path, &body.to_string())).await;
    let answer = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"));
    (status, answer)
}

async fn good(up: &Up, path: &str, body: &Value) -> Value {
    let (status, answer) = call(up, path, body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_encoders_and_decoders_come_through_a_node() {
    let up = Up::start().await;
    let folder = root().join("crates/backend-onnx/tests/models");
    for name in ["text-embed", "text-rerank"] {
        let body = json!({ "name": name, "function_name": "onnx", "path": folder.join(name) });
        deploy(&up.client(), &body).await;
    }
    let text = "the quick brown fox";
    for model in ["text-embed", "text-rerank"] {
        let told = good(
            &up,
            &format!("/tei/{model}/tokenize"),
            &json!({ "inputs": [text] }),
        )
        .await;
        let tokens = told[0].as_array().unwrap();
        assert_eq!(
            (&tokens[0]["text"], &tokens[0]["special"]),
            (&json!("[CLS]"), &json!(true))
        );
        assert_eq!(
            (&tokens[1]["start"], &tokens[1]["stop"]),
            (&json!(0), &json!(3))
        );
        let ids: Vec<_> = tokens.iter().map(|token| token["id"].clone()).collect();
        let body = json!({ "ids": [ids], "skip_special_tokens": true });
        let read = good(&up, &format!("/tei/{model}/decode"), &body).await;
        assert_eq!(read, json!([text]));
    }
    let each = good(
        &up,
        "/tei/text-embed/embed_all",
        &json!({ "inputs": [text, "fox"] }),
    )
    .await;
    let rows = each.as_array().unwrap().iter();
    let counts: Vec<_> = rows.map(|row| row.as_array().unwrap().len()).collect();
    assert_eq!(counts, [6, 3]);
    assert_eq!(each[0][0].as_array().unwrap().len(), 16);
    // A model that generates is meant where none is named.
    let told = good(&up, "/tokenize", &json!({ "content": "Once upon a time" })).await;
    let body = json!({ "tokens": told["tokens"] });
    let read = good(&up, "/detokenize", &body).await;
    assert_eq!(read["content"], "Once upon a time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tensor_model_refuses_what_it_does_not_know_but_not_from_the_open_protocol() {
    let up = Up::start().await;
    let blank = vec![vec![vec![0.0; 8]; 8]];
    let predict = "/_plugins/_ml/models/classifier/_predict";
    let asked = |name: &str| json!({ "inputs": { "pixels": blank }, "parameters": { name: 1 } });
    let (status, told) = call(&up, predict, &asked("sequence_idd")).await;
    assert_eq!(status, 400, "{told}");
    let told = told.to_string();
    assert!(
        told.contains("'sequence_idd'") && told.contains("'sequence_id'"),
        "{told}"
    );
    good(&up, predict, &asked("priority")).await;
    let tensor = json!({ "name": "pixels", "datatype": "FP32", "shape": [1, 8, 8],
                         "data": vec![0.0; 64] });
    let body = json!({ "inputs": [tensor], "parameters": { "sequence_idd": 1 } });
    let answer = good(&up, "/v2/models/classifier/infer", &body).await;
    assert!(answer["outputs"].is_array(), "{answer}");
}
