//! Text encoders in OpenSearch's dialect.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use serde_json::json;
use volley_types::{PredictError, Signature};

use super::support::{Edge, Script};

const PREDICT: &str = "/_plugins/_ml/models/m/_predict";

type Answer = Result<RecordBatch, PredictError>;

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

fn numbers(rows: &[&[f32]]) -> ArrayRef {
    let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item(DataType::Float32));
    for row in rows {
        lists.values().append_slice(row);
        lists.append(true);
    }
    Arc::new(lists.finish())
}

fn names(row: &[&str]) -> ArrayRef {
    let mut lists = ListBuilder::new(StringBuilder::new()).with_field(item(DataType::Utf8));
    row.iter()
        .for_each(|name| lists.values().append_value(name));
    lists.append(true);
    Arc::new(lists.finish())
}

fn answer(signature: &Signature, mut columns: Vec<ArrayRef>) -> Answer {
    let rows = columns[0].len();
    columns.push(Arc::new(UInt32Array::from(vec![3; rows])));
    Ok(RecordBatch::try_new(signature.output.clone(), columns).unwrap())
}

async fn edge(
    signature: Signature,
    give: impl Fn(RecordBatch) -> Answer + Send + Sync + 'static,
) -> Edge {
    let edge = Edge::start().await;
    let script = Script::Tensors(signature, Box::new(give));
    edge.cluster.script("m", script);
    edge
}

#[tokio::test]
async fn each_document_has_its_vector() {
    let signature = Signature::embed(2);
    let edge = edge(signature.clone(), move |rows| {
        let texts = rows.column_by_name("text").unwrap().as_string::<i32>();
        assert_eq!(texts.value(1), "b");
        answer(&signature, vec![numbers(&[&[0.5, 1.0], &[2.0, 3.0]])])
    });
    let edge = edge.await;
    let body = json!({
        "text_docs": ["a", "b"], "return_number": true, "target_response": ["sentence_embedding"],
        "parameters": { "content_type": "query", "dimensions": 2 },
    });
    let results = edge.post(PREDICT, &body.to_string()).await.ok();
    let vector = |data: [f32; 2]| {
        json!({
            "output": [{ "name": "sentence_embedding", "data_type": "FLOAT32",
                         "shape": [2], "data": data }],
            "status_code": 200,
        })
    };
    let expected = json!([vector([0.5, 1.0]), vector([2.0, 3.0])]);
    assert_eq!(results["inference_results"], expected);
    let called = edge.cluster.last_call();
    let kinds = called.rows.column_by_name("input_type").unwrap();
    assert_eq!(kinds.as_string::<i32>().value(0), "query");
    assert_eq!(called.parameters.unsigned("dimensions").unwrap(), Some(2));
    let columns = r#"{"inputs":{"text":["a","b"]}}"#;
    let again = edge.post(PREDICT, columns).await.ok();
    assert_eq!(again, results);
}

#[tokio::test]
async fn each_document_has_its_similarity() {
    let signature = Signature::rerank();
    let edge = edge(signature.clone(), move |rows| {
        let queries = rows.column_by_name("query").unwrap().as_string::<i32>();
        assert_eq!((rows.num_rows(), queries.value(0)), (1, "q"));
        let scores: ArrayRef = Arc::new(Float32Array::from(vec![0.25]));
        answer(&signature, vec![scores])
    });
    let edge = edge.await;
    let body = r#"{"query_text":"q","text_docs":["a"]}"#;
    let results = edge.post(PREDICT, body).await.ok();
    let output = &results["inference_results"][0]["output"][0];
    let expected =
        json!({ "name": "similarity", "data_type": "FLOAT32", "shape": [1], "data": [0.25] });
    assert_eq!(*output, expected);
    for bad in [
        r#"{"text_docs":["a"]}"#,
        r#"{"query_text":"q"}"#,
        r#"{"query_text":"q","text_docs":[]}"#,
        r#"{"query_text":"q","text_docs":[1]}"#,
        r#"{"query_text":"q","text_docs":["a"],"return_bytes":true}"#,
        r#"{"query_text":"q","text_docs":["a"],"prompt":"x"}"#,
    ] {
        edge.post(PREDICT, bad).await.refused(400);
    }
}

#[tokio::test]
async fn terms_and_labels_come_as_maps() {
    for (signature, expected) in [
        (
            Signature::encode_sparse(),
            json!({ "name": "output",
                    "dataAsMap": { "response": [{ "fox": 1.5, "hen": 0.5 }] } }),
        ),
        (
            Signature::classify(),
            json!({ "name": "classification",
                    "dataAsMap": { "labels": ["fox", "hen"], "scores": [1.5, 0.5] } }),
        ),
    ] {
        let output = signature.clone();
        let edge = edge(signature, move |_| {
            let columns = vec![names(&["fox", "hen"]), numbers(&[&[1.5, 0.5]])];
            answer(&output, columns)
        });
        let results = edge.await.post(PREDICT, r#"{"text_docs":["a"]}"#).await;
        let results = results.ok();
        assert_eq!(results["inference_results"][0]["output"][0], expected);
    }
}
