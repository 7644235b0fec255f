use arrow_array::{ArrayRef, RecordBatch, StringArray};
use volley_backend::BackendLoader;
use volley_backend::text::TextLoader;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{
    ErrorCode, GenerationRow, Input, ModelName, ModelRef, ModelVersion, Parameters, PredictRequest,
};

use super::*;

async fn words() -> Arc<dyn Predict> {
    let assignment = Assignment {
        model: ModelName::new("words").unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::TEXT,
            source: ModelSource::None,
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    };
    TextLoader.load(&assignment).await.unwrap()
}

fn request() -> PredictRequest {
    let prompt: ArrayRef = Arc::new(StringArray::from(vec!["one two"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", prompt, true)]).unwrap();
    let model = ModelRef::deployed(ModelName::new("words").unwrap());
    PredictRequest::new(model, Input::Batch(batch))
}

#[tokio::test]
async fn a_socket_carries_predictions_until_it_is_closed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = tokio::spawn(serve(words().await, FlightServerConfig::default(), theirs));
    let (client, gone) = client(ours);
    let mut answer = client.predict(request()).await.unwrap();
    let mut text = String::new();
    while let Some(batch) = answer.next().await {
        let batch = batch.unwrap();
        let rows = GenerationRow::rows(&batch).unwrap();
        text.extend(rows.filter_map(|row| row.text().map(str::to_owned)));
    }
    assert_eq!(text, "one two");
    assert!(!gone.is_cancelled());

    drop((answer, client));
    served.await.unwrap().unwrap();
    gone.cancelled().await;
}

#[tokio::test]
async fn a_process_that_has_ended_is_not_there() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let (client, gone) = client(ours);
    let refused = client.predict(request()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    gone.cancelled().await;
}
