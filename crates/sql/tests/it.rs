//! SQL over files and models, with a real Flight server on loopback and the text backend.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, UInt32Array,
};
use async_trait::async_trait;
use datafusion::execution::context::SessionContext;
use futures::StreamExt;
use tempfile::TempDir;
use tokio::net::TcpListener;
use volley_backend::text::TextLoader;
use volley_backend::{Backend, BackendLoader};
use volley_flight::client::{Access, FlightClient, FlightClientConfig};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_sql::output::{OutputFormat, write};
use volley_sql::{ClusterConfig, SqlCluster, session};
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::signature::with_labels;
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, ModelVersion, Parameters, Predict, PredictError,
    PredictRequest, Signature, Task,
};

/// `echo` is the text backend. `lengths` embeds a text as its length and its first byte. `overlap`
/// scores a pair by the letters that occur in both. `survive` labels a number and returns the
/// probabilities of two classes.
struct Models {
    echo: Arc<dyn Backend>,
}

fn lengths(batch: &RecordBatch) -> Vec<ArrayRef> {
    let texts = batch.column_by_name("text").unwrap().as_string::<i32>();
    let mut vectors =
        ListBuilder::new(Float32Builder::new()).with_field(item_field(&Signature::embed(2)));
    for text in texts.iter().flatten() {
        let first = text.bytes().next().map(f32::from);
        vectors.append_value([Some(text.len() as f32), Some(first.unwrap_or_default())]);
    }
    let tokens = UInt32Array::from(vec![1; batch.num_rows()]);
    vec![Arc::new(vectors.finish()), Arc::new(tokens)]
}

fn item_field(signature: &Signature) -> arrow::datatypes::FieldRef {
    match signature.output.field(0).data_type() {
        arrow::datatypes::DataType::List(item) => item.clone(),
        other => panic!("{other}"),
    }
}

fn overlap(batch: &RecordBatch) -> Vec<ArrayRef> {
    let column = |name| batch.column_by_name(name).unwrap().as_string::<i32>();
    let pairs = column("query").iter().zip(column("text").iter());
    let score = |(query, text): (Option<&str>, Option<&str>)| {
        let (query, text) = (query.unwrap_or_default(), text.unwrap_or_default());
        query
            .chars()
            .filter(|letter| text.contains(*letter))
            .count() as f32
    };
    let scores: Float32Array = pairs.map(|pair| Some(score(pair))).collect();
    let tokens = UInt32Array::from(vec![1; batch.num_rows()]);
    vec![Arc::new(scores), Arc::new(tokens)]
}

fn classes() -> Signature {
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let probability = Field::new("probability", DataType::FixedSizeList(item, 2), false);
    let names = ["no".to_owned(), "yes".to_owned()];
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(vec![Field::new(
            "age",
            DataType::Float32,
            false,
        )])),
        output: Arc::new(Schema::new(vec![
            Field::new("label", DataType::Int64, false),
            with_labels(probability, &names),
        ])),
    }
}

fn survive(batch: &RecordBatch) -> Vec<ArrayRef> {
    let ages = batch.column(0).as_primitive::<Float32Type>();
    let labels: Int64Array = ages
        .values()
        .iter()
        .map(|age| i64::from(*age < 3.0))
        .collect();
    let yes = ages.values().iter().map(|age| 1.0 / age);
    let both: Float32Array = yes.flat_map(|yes| [1.0 - yes, yes]).collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let probabilities = FixedSizeListArray::new(item, 2, Arc::new(both), None);
    vec![Arc::new(labels), Arc::new(probabilities)]
}

#[async_trait]
impl Predict for Models {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let (schema, compute): (_, fn(&RecordBatch) -> Vec<ArrayRef>) =
            match request.model.name.as_str() {
                "echo" => return self.echo.predict(request).await,
                "survive" => (classes().output, survive),
                "lengths" => (Signature::embed(2).output, lengths),
                _ => (Signature::rerank().output, overlap),
            };
        let output = schema.clone();
        let rows = request.input.into_inner().into_stream().map(move |batch| {
            let columns = compute(&batch?);
            Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
        });
        Ok(ChunkStream::new(schema, rows))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        match model.name.as_str() {
            "echo" => Ok(Signature::generation()),
            "survive" => Ok(classes()),
            "lengths" => Ok(Signature::embed(2)),
            "overlap" => Ok(Signature::rerank()),
            _ => Err(PredictError::new(ErrorCode::NotFound, "no such model")),
        }
    }

    async fn models(&self) -> Vec<ModelName> {
        ["echo", "lengths", "overlap", "survive"]
            .map(|name| ModelName::new(name).unwrap())
            .to_vec()
    }
}

/// A session with models, and a directory with files.
struct Story {
    context: SessionContext,
    folder: TempDir,
}

impl Story {
    async fn begin() -> Self {
        let spec = ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::TEXT,
            source: ModelSource::None,
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        };
        let assignment = Assignment {
            model: ModelName::new("echo").unwrap(),
            spec,
            connector: None,
        };
        let echo = TextLoader.load(&assignment).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let models = Arc::new(Models { echo });
        let service = FlightServer::new(models, FlightServerConfig::default()).into_service();
        tokio::spawn(async move {
            transport::server_builder()
                .add_service(service)
                .serve_with_incoming(transport::incoming(listener))
                .await
                .unwrap();
        });
        let config = FlightClientConfig::default();
        let client = FlightClient::outside(&address, config, Access::default()).unwrap();
        let config = ClusterConfig {
            rows_per_call: 2,
            ..ClusterConfig::default()
        };
        let cluster = SqlCluster::connect(client, config).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("books.csv"),
            "id,title\n1,Emma\n2,\n3,Dune\n4,It\n5,Ulysses\n",
        )
        .unwrap();
        Self {
            context: session::open(cluster).unwrap(),
            folder,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    async fn run(&self, sql: &str, format: OutputFormat) -> datafusion::error::Result<String> {
        let sql = sql.replace("BOOKS", &format!("'{}'", self.path("books.csv")));
        let rows = self.context.sql(&sql).await?.execute_stream().await?;
        let mut out = Vec::new();
        write(rows, format, &mut out).await?;
        Ok(String::from_utf8(out).unwrap())
    }

    async fn csv(&self, sql: &str) -> String {
        self.run(sql, OutputFormat::Csv).await.unwrap()
    }

    async fn refused(&self, sql: &str, text: &str) {
        let error = self
            .run(sql, OutputFormat::Csv)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn every_form_has_the_type_of_its_model_and_null_stays_null() {
    let story = Story::begin().await;
    let embedded = story
        .csv("SELECT id, predict('lengths', title) AS v FROM BOOKS ORDER BY id")
        .await;
    assert_eq!(
        embedded,
        "id,v\n1,\"[4.0, 69.0]\"\n2,\n3,\"[4.0, 68.0]\"\n4,\"[2.0, 73.0]\"\n5,\"[7.0, 85.0]\"\n"
    );
    let found = story
        .csv(
            "SELECT title, embed('lengths', title)[1] AS n FROM BOOKS \
             WHERE rerank('overlap', 'um', title) > 0 ORDER BY n DESC, title",
        )
        .await;
    assert_eq!(found, "title,n\nDune,4.0\nEmma,4.0\n");
    let told = story
        .csv("SELECT generate('echo?max_tokens=1', title) AS t FROM BOOKS WHERE id = 4")
        .await;
    assert!(told.starts_with("t\n") && told.len() > 3, "{told:?}");
    let types = story
        .csv("SELECT arrow_typeof(predict('echo', title)) AS t FROM BOOKS LIMIT 1")
        .await;
    assert_eq!(types, "t\nUtf8\n");
}

#[tokio::test]
async fn options_choose_the_result_and_its_type() {
    let story = Story::begin().await;
    let chosen = story
        .csv(
            "SELECT id, predict('survive?output=label', id) AS l, \
             predict('survive?output=probability&class=yes', id) AS p FROM BOOKS \
             WHERE id < 5 ORDER BY id",
        )
        .await;
    assert_eq!(
        chosen,
        "id,l,p\n1,1,1.0\n2,1,0.5\n3,0,0.33333334\n4,0,0.25\n"
    );
    let types = story
        .csv(
            "SELECT arrow_typeof(predict('survive?output=label', id)) AS l, \
             arrow_typeof(predict('survive?output=probability&class=no', id)) AS p \
             FROM BOOKS LIMIT 1",
        )
        .await;
    assert_eq!(types, "l,p\nInt64,Float32\n");
    let sum = story
        .csv("SELECT sum(predict('survive?output=probability&class=yes', id)) AS s FROM BOOKS WHERE id < 3")
        .await;
    assert_eq!(sum, "s\n1.5\n");
    let whole = story
        .csv("SELECT predict('survive', id)['label'] AS l FROM BOOKS WHERE id = 1")
        .await;
    assert_eq!(whole, "l\n1\n");
}

#[tokio::test]
async fn parquet_and_ndjson_are_tables_and_results_are_written_in_three_forms() {
    let story = Story::begin().await;
    let parquet = story.path("books.parquet");
    let made = format!("COPY (SELECT * FROM BOOKS) TO '{parquet}' STORED AS PARQUET");
    story.csv(&made).await;
    let sql = format!("SELECT id, embed('lengths', title) AS v FROM '{parquet}' WHERE id = 4");
    let table = story.run(&sql, OutputFormat::Table).await.unwrap();
    assert!(table.contains("| 4  | [2.0, 73.0] |"), "{table}");
    let json = story.run(&sql, OutputFormat::Json).await.unwrap();
    assert_eq!(json, "{\"id\":4,\"v\":[2.0,73.0]}\n");

    let lines = story.path("books.ndjson");
    std::fs::write(&lines, "{\"title\":\"Emma\"}\n{\"title\":\"It\"}\n").unwrap();
    session::add_table(&story.context, "books", &lines)
        .await
        .unwrap();
    let sum = story
        .csv("SELECT sum(embed('lengths', title)[1]) AS s FROM books")
        .await;
    assert_eq!(sum, "s\n6.0\n");
    let odd = session::add_table(&story.context, "odd", "x.xlsx").await;
    assert!(odd.unwrap_err().to_string().contains("xlsx"));
}

#[tokio::test]
async fn wrong_calls_are_refused_when_they_are_planned() {
    let story = Story::begin().await;
    for (sql, text) in [
        (
            "SELECT id FROM BOOKS ORDER BY embed('lengths', title)[1]",
            "name it in a SELECT",
        ),
        (
            "SELECT predict('nobody', title) FROM BOOKS",
            "models are: echo, lengths, overlap, survive",
        ),
        ("SELECT predict(title, title) FROM BOOKS", "text literal"),
        (
            "SELECT predict('lengths') FROM BOOKS",
            "has the arguments (Utf8)",
        ),
        (
            "SELECT embed('lengths', id) FROM BOOKS",
            "called with (Int64)",
        ),
        (
            "SELECT embed('echo', title) FROM BOOKS",
            "its result is Utf8",
        ),
        (
            "SELECT rerank('lengths', title, title) FROM BOOKS",
            "cannot be called by rerank()",
        ),
    ] {
        story.refused(sql, text).await;
    }
    for (name, text) in [
        (
            "survive?output=colour",
            "must be one of 'label', 'probability'",
        ),
        ("survive?class=yes", "needs 'output'"),
        (
            "survive?output=probability&class=maybe",
            "must be one of no, yes",
        ),
    ] {
        let sql = format!("SELECT predict('{name}', id) FROM BOOKS");
        story.refused(&sql, text).await;
    }
    story
        .refused(
            "SELECT embed('lengths:7?oops', title) FROM BOOKS",
            "name=value",
        )
        .await;
}
