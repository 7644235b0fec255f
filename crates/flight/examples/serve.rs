//! Serves two models over Flight without a cluster, for trying out clients:
//! `cargo run -p volley-flight --example serve -- 127.0.0.1:8815`.
//!
//! `storyteller` is the scripted generation backend; `double` answers `y = 2x`.

use std::error::Error;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use futures::StreamExt;
use tokio::net::TcpListener;
use volley_backend::fake::FakeLoader;
use volley_backend::{Backend, BackendLoader};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, ModelVersion, Parameters, Predict, PredictError,
    PredictRequest, Signature, Task,
};

struct Models {
    storyteller: Arc<dyn Backend>,
}

fn column(name: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(
        name,
        DataType::Float32,
        false,
    )]))
}

fn double(batch: &RecordBatch) -> Result<RecordBatch, PredictError> {
    let doubled = batch.column(0).as_primitive::<Float32Type>();
    let doubled: ArrayRef = Arc::new(Float32Array::from_iter_values(
        doubled.values().iter().map(|x| 2.0 * x),
    ));
    RecordBatch::try_new(column("y"), vec![doubled])
        .map_err(|error| PredictError::internal("doubling failed", error))
}

#[async_trait]
impl Predict for Models {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        if request.model.name.as_str() == "storyteller" {
            return self.storyteller.predict(request).await;
        }
        let rows = request.input.into_inner().into_stream();
        Ok(ChunkStream::new(
            column("y"),
            rows.map(|rows| double(&rows?)),
        ))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        match model.name.as_str() {
            "storyteller" => self.storyteller.signature(model).await,
            "double" => Ok(Signature {
                task: Task::Tensors,
                input: column("x"),
                output: column("y"),
            }),
            _ => Err(PredictError::new(
                ErrorCode::NotFound,
                format!("model '{model}' is not registered"),
            )),
        }
    }

    async fn models(&self) -> Vec<ModelName> {
        ["storyteller", "double"]
            .into_iter()
            .filter_map(|name| ModelName::new(name).ok())
            .collect()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8815".into());
    let spec = ModelVersionSpec {
        version: ModelVersion(1),
        backend: BackendName::FAKE,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    let assignment = Assignment {
        model: ModelName::new("storyteller")?,
        spec,
        connector: None,
    };
    let storyteller = FakeLoader::default().load(&assignment).await?;
    let server = FlightServer::new(
        Arc::new(Models { storyteller }),
        FlightServerConfig::default(),
    );
    let listener = TcpListener::bind(address).await?;
    transport::server_builder()
        .add_service(server.into_service())
        .serve_with_incoming(transport::incoming(listener))
        .await?;
    Ok(())
}
