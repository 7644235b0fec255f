//! Calls of a model that records the rows of each call.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use volley_types::{ParamValue, Task};

use super::*;

/// Adds one to each value, and fails when a value is negative.
struct Recorder {
    schema: SchemaRef,
    calls: Mutex<Vec<usize>>,
}

#[async_trait]
impl Predict for Recorder {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let mut input = request.input.into_inner().into_stream();
        let batch = input.next().await.unwrap()?;
        self.calls.lock().push(batch.num_rows());
        let values = batch.column(0).as_primitive::<Int64Type>();
        if values.values().iter().any(|value| *value < 0) {
            return Err(PredictError::invalid("a value is negative"));
        }
        let added: ArrayRef = Arc::new(Int64Array::from_iter_values(
            values.values().iter().map(|value| value + 1),
        ));
        let answer = RecordBatch::try_new(self.schema.clone(), vec![added]).unwrap();
        let parts = futures::stream::iter([Ok(answer)]);
        Ok(ChunkStream::new(self.schema.clone(), parts))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature {
            task: Task::Tensors,
            input: self.schema.clone(),
            output: self.schema.clone(),
        })
    }

    async fn models(&self) -> Vec<ModelName> {
        Vec::new()
    }
}

fn batcher(rows: usize, window: Duration) -> (Arc<Recorder>, Arc<dyn Predict>) {
    let field = Field::new("x", DataType::Int64, false);
    let recorder = Arc::new(Recorder {
        schema: Arc::new(Schema::new(vec![field])),
        calls: Mutex::default(),
    });
    let rules = BatchRules { rows, window };
    let model = Batcher::around(recorder.clone(), rules);
    (recorder, model)
}

fn request(values: &[i64], parameter: i64) -> PredictRequest {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    let rows = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    let parameters = [("p".to_owned(), ParamValue::Int(parameter))];
    request.parameters = parameters.into_iter().collect();
    request
}

async fn values(model: &dyn Predict, request: PredictRequest) -> Result<Vec<i64>, PredictError> {
    let mut stream = model.predict(request).await?;
    let mut found = Vec::new();
    while let Some(batch) = stream.next().await.transpose()? {
        let column = batch.column(0).as_primitive::<Int64Type>();
        found.extend_from_slice(column.values());
    }
    Ok(found)
}

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn requests_that_fill_a_call_do_not_wait_for_the_window() {
    let (recorder, model) = batcher(4, LONG);
    let (one, other) = tokio::join!(
        values(&*model, request(&[1, 2], 0)),
        values(&*model, request(&[3, 4], 0)),
    );
    assert_eq!((one.unwrap(), other.unwrap()), (vec![2, 3], vec![4, 5]));
    assert_eq!(*recorder.calls.lock(), [4]);
}

#[tokio::test(start_paused = true)]
async fn the_window_ends_the_wait_of_a_call_that_is_not_full() {
    let (recorder, model) = batcher(4, Duration::from_millis(50));
    let since = tokio::time::Instant::now();
    assert_eq!(values(&*model, request(&[1], 0)).await.unwrap(), [2]);
    assert!(Duration::from_millis(50) <= since.elapsed());
    assert_eq!(*recorder.calls.lock(), [1]);
}

#[tokio::test(start_paused = true)]
async fn other_parameters_and_too_many_rows_are_other_calls() {
    let (recorder, model) = batcher(3, Duration::from_millis(50));
    let answers = tokio::join!(
        values(&*model, request(&[1], 0)),
        values(&*model, request(&[2], 7)),
        values(&*model, request(&[3, 4, 5, 6, 7], 7)),
    );
    assert_eq!(answers.0.unwrap(), [2]);
    assert_eq!(answers.1.unwrap(), [3]);
    assert_eq!(answers.2.unwrap(), [4, 5, 6, 7, 8]);
    assert!(recorder.calls.lock().iter().all(|rows| *rows <= 3));
}

#[tokio::test(start_paused = true)]
async fn a_bad_row_fails_its_own_request_only() {
    let (recorder, model) = batcher(3, LONG);
    let (bad, one, other) = tokio::join!(
        values(&*model, request(&[-1], 0)),
        values(&*model, request(&[1], 0)),
        values(&*model, request(&[2], 0)),
    );
    assert_eq!(bad.unwrap_err().code, ErrorCode::InvalidInput);
    assert_eq!((one.unwrap(), other.unwrap()), (vec![2], vec![3]));
    assert_eq!(*recorder.calls.lock(), [3, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_does_not_fail_the_others() {
    let (recorder, model) = batcher(2, Duration::from_millis(50));
    let mut left = model.predict(request(&[9], 0)).await.unwrap();
    let gone = tokio::time::timeout(Duration::from_millis(10), left.next()).await;
    assert!(gone.is_err(), "it waits for another");
    drop(left);
    assert_eq!(values(&*model, request(&[1], 0)).await.unwrap(), [2]);
    assert_eq!(*recorder.calls.lock(), [1]);
}
