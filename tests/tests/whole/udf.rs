//! Models as functions of SQL engines, against `volley up` with real encoders.

use serde_json::json;
use volley_client::Client;
use volley_tests::cluster::client;
use volley_tests::judges::{deploy, python, root, steps};
use volley_tests::process::run;

use crate::clients::Up;

const MODELS: [&str; 6] = [
    "text-embed",
    "text-rerank",
    "text-classify",
    "text-tokens",
    "text-sparse",
    "sklearn-columns",
];

async fn encoders(client: &Client, names: &[&str]) {
    let folder = root().join("crates/backend-onnx/tests/models");
    for name in names {
        let body = json!({ "name": name, "function_name": "onnx", "path": folder.join(name) });
        deploy(client, &body).await;
    }
}

/// Runs the engines' clients; gives the number of steps, all of which went well.
async fn engines(arguments: &[&str]) -> usize {
    let mut client = python("venv-udf", "get-udf", "examples/udf/client.py");
    steps(client.args(arguments)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn risingwave_databend_and_duckdb_call_models_as_functions() {
    let up = Up::start().await;
    encoders(&up.client(), &MODELS).await;
    assert_eq!(engines(&["--uri", &up.internal]).await, 13);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_databend_calls_models_over_its_tables() {
    let up = Up::start().await;
    encoders(
        &up.client(),
        &["text-embed", "text-rerank", "sklearn-columns"],
    )
    .await;
    let mut engine = python("venv-udf", "get-udf", "examples/udf/engine.py");
    assert_eq!(steps(engine.args(["--uri", &up.internal])).await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doors_of_functions_want_the_key_that_the_cluster_wants() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bootstrap.key");
    let (key, made) = run(&["key", "bootstrap"]).await;
    assert!(made, "{key}");
    let key = key.trim().to_owned();
    std::fs::write(&file, &key).unwrap();
    let file = file.to_string_lossy();
    let up = Up::with(&["--bootstrap-key-file", &file]).await;
    let with_key = client(&[&up.rest]).with_key(&key).unwrap();
    encoders(&with_key, &MODELS).await;
    let arguments = ["--uri", &up.internal, "--key", &key];
    assert_eq!(engines(&arguments).await, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn volley_sql_asks_models_about_the_rows_of_files() {
    let (_, built) = run(&["sql", "--help"]).await;
    assert!(built, "build with `--features volley-cli/sql`");
    let up = Up::start().await;
    encoders(&up.client(), &["text-embed", "text-rerank"]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (books, parquet) = (path("books.csv"), path("books.parquet"));
    std::fs::write(&books, "id,title\n1,a dog\n2,\n3,a cat\n").unwrap();
    let sql = async |statement: &str, format: &str| {
        let flight = format!("grpc://{}", up.internal);
        let arguments = ["sql", "--flight", &flight, "--format", format, statement];
        run(&arguments).await
    };
    let copy = format!("COPY (SELECT * FROM '{books}') TO '{parquet}' STORED AS PARQUET");
    assert!(sql(&copy, "csv").await.1);

    let statement = format!(
        "SELECT id, array_length(embed('text-embed', title)) AS n, \
         rerank('text-rerank', 'dog', title) IS NULL AS none, \
         predict('storyteller?max_tokens=2', title) IS NULL AS silent \
         FROM '{parquet}' ORDER BY id"
    );
    let (rows, done) = sql(&statement, "json").await;
    assert!(done, "{rows}");
    let rows: Vec<_> = rows.lines().collect();
    assert_eq!(
        rows,
        [
            r#"{"id":1,"n":16,"none":false,"silent":false}"#,
            r#"{"id":2,"none":true,"silent":true}"#,
            r#"{"id":3,"n":16,"none":false,"silent":false}"#,
        ]
    );
    let wrong = format!("SELECT predict('nobody', title) FROM '{books}'");
    let (said, done) = sql(&wrong, "table").await;
    assert!(
        !done && said.contains("SQL cannot call a model 'nobody'"),
        "{said}"
    );
}
