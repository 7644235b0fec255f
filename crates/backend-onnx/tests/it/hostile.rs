//! Broken and malicious models are rejected or run into a limit, and the process survives.
//! `models/recipes/hostile_models.py` generates them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field};
use futures::StreamExt;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{OnnxConfig, OnnxLoader};
use volley_types::{
    ErrorCode, Input, ModelName, ModelRef, Parameters, PredictError, PredictRequest,
};

use crate::{mutants, setup};

/// Long for models of a few hundred bytes.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

fn pairs(kind: &DataType) -> RecordBatch {
    let item = Arc::new(Field::new("item", kind.clone(), false));
    let values: ArrayRef = match kind {
        DataType::Int64 => Arc::new(Int64Array::from(vec![1, 2])),
        _ => Arc::new(Float32Array::from(vec![1.0, 2.0])),
    };
    let column = Arc::new(FixedSizeListArray::new(item, 2, values, None)) as ArrayRef;
    RecordBatch::try_from_iter([("x", column)]).unwrap()
}

async fn run(model: &Arc<dyn Backend>, rows: RecordBatch) -> Result<RecordBatch, PredictError> {
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut answer = model
        .predict(PredictRequest::new(name, Input::Batch(rows)))
        .await?;
    answer.next().await.expect("an answer or an error")
}

async fn hostile(name: &str, config: OnnxConfig) -> Result<Arc<dyn Backend>, PredictError> {
    let directory = setup::test_model("hostile").join(name);
    let load = setup::load_with(&directory, config);
    tokio::time::timeout(LOAD_LIMIT, load).await.expect(name)
}

async fn still_serves() {
    let model = setup::load(&setup::test_model("identity-float32"))
        .await
        .unwrap();
    assert!(run(&model, pairs(&DataType::Float32)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_valid_model_is_refused_with_a_reason_and_no_path() {
    let outside = "not in its own directory";
    let cases = [
        ("cycle", ""),
        ("input-missing", ""),
        ("operator-unknown", ""),
        ("function-calls-itself", "not valid"),
        ("dims-2-to-93", ""),
        ("dims-without-data", ""),
        ("dims-negative", ""),
        ("sparse-outside", ""),
        ("external-absolute", outside),
        ("external-above", outside),
        ("external-in-memory", ""),
        ("external-beyond", ""),
        ("external-before", ""),
        ("external-absent", "a file of the model is missing"),
    ];
    for (name, reason) in cases {
        let refused = hostile(name, setup::config()).await.err();
        let refused = refused.unwrap_or_else(|| panic!("{name} was loaded"));
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{name}: {refused}");
        assert!(
            refused.message.contains("'model.onnx'"),
            "{name}: {refused}"
        );
        assert!(refused.message.contains(reason), "{name}: {refused}");
        assert!(!refused.message.contains('/'), "{name}: {refused}");
    }
    still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_beyond_all_memory_fail_the_load_or_the_run() {
    for name in [
        "fill-64-tib",
        "expand-64-tib",
        "pad-256-tib",
        "tile-2-to-62",
    ] {
        let Ok(model) = hostile(name, setup::config()).await else {
            continue;
        };
        let error = run(&model, pairs(&DataType::Float32)).await.unwrap_err();
        let told = [
            ErrorCode::TooLarge,
            ErrorCode::InvalidInput,
            ErrorCode::Internal,
        ];
        assert!(told.contains(&error.code), "{name}: {error}");
    }
    still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_never_ends_is_stopped_at_its_limit_and_others_run() {
    let config = OnnxConfig {
        run_timeout: Duration::from_millis(300),
        ..setup::config()
    };
    let model = hostile("loop-for-ever", config).await.unwrap();
    for _ in 0..2 {
        let since = Instant::now();
        let error = run(&model, pairs(&DataType::Float32)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::DeadlineExceeded, "{}", error.chain());
        assert!(error.message.contains("onnx.run_timeout"), "{error}");
        assert!(since.elapsed() < Duration::from_secs(30));
    }
    // A caller that leaves earlier stops its run.
    let patience = Duration::from_millis(100);
    let model = hostile("loop-for-ever", setup::config()).await.unwrap();
    for _ in 0..2 {
        let left = tokio::time::timeout(patience, run(&model, pairs(&DataType::Float32)));
        assert!(left.await.is_err());
    }
    still_serves().await;
}

/// `VOLLEY_MUTANTS` sets their number, and `VOLLEY_SEED` selects them. `docs/evidence/isolation.md`
/// has the results of a long run.
#[tokio::test(flavor = "multi_thread")]
async fn mutants_of_models_never_harm_the_process() {
    let (count, seed) = (mutants::count(400), mutants::seed());
    let files = mutants::SEEDS.map(|(name, kind)| {
        let directory = setup::test_model(name);
        let bytes = std::fs::read(directory.join("model.onnx")).unwrap();
        (directory, bytes, kind)
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let kept = tempfile::tempdir().unwrap();
    let scratch = kept.path().join("mutant");
    std::fs::create_dir(&scratch).unwrap();
    let config = OnnxConfig {
        run_timeout: Duration::from_millis(500),
        ..setup::config()
    };
    let (mut refused, mut loaded, mut ran, mut slowest) = ([0, 0], 0, 0, Duration::ZERO);
    for index in 0..count {
        let (directory, bytes, kind) = &files[random.usize(..files.len())];
        mutants::write(directory, bytes, &scratch, &mut random);
        let since = Instant::now();
        let load = setup::load_with(&scratch, config);
        let model = tokio::time::timeout(LOAD_LIMIT, load).await;
        let model = model.unwrap_or_else(|_| panic!("mutant {index} of seed {seed} hangs"));
        slowest = slowest.max(since.elapsed());
        match model {
            Err(error) => {
                let by_onnx_runtime = !error.message.contains("or is incomplete");
                refused[usize::from(by_onnx_runtime)] += 1;
                assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.chain());
            }
            Ok(model) => {
                loaded += 1;
                ran += u64::from(run(&model, pairs(kind)).await.is_ok());
            }
        }
    }
    let [before, by] = refused;
    eprintln!(
        "{count} mutants: {before} refused by their frame, {by} by ONNX Runtime, {loaded} loaded, \
         {ran} ran; slowest load {slowest:?}"
    );
    still_serves().await;
}

#[tokio::test]
async fn a_graph_that_a_request_can_make_divide_or_grow_needs_a_process() {
    let loader = OnnxLoader::new(Ok(setup::runtime()), setup::config());
    for (name, needs) in [
        ("dividing", true),
        ("unique", true),
        ("repeating", true),
        ("counting", false),
        ("hungry", false),
        ("identity-int64", false),
        ("identity-string", false),
        ("sklearn-columns", false),
        ("sklearn-texts", false),
        ("lightgbm", false),
        ("xgboost", false),
        ("text-embed", false),
    ] {
        let assignment = setup::assignment(&setup::test_model(name), Parameters::default());
        let found = loader.needs_process(&assignment).await.unwrap();
        assert_eq!(found, needs, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shape_that_the_graph_does_not_tell_is_told_beside_it_or_refused() {
    let graph = setup::test_model("rankless").join("model.onnx");
    let refused = setup::load(&setup::test_model("rankless"))
        .await
        .err()
        .unwrap();
    assert!(refused.message.contains("y = [-1, -1]"), "{refused}");
    let folder = tempfile::Builder::new().prefix("told").tempdir().unwrap();
    std::fs::copy(&graph, folder.path().join("model.onnx")).unwrap();
    std::fs::write(folder.path().join("model.toml"), "[shapes]\ny = [-1, -1]\n").unwrap();
    let model = setup::load(folder.path()).await.unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let output = model.signature(&name).await.unwrap().output;
    let told = &output.field(0).metadata()["ARROW:extension:name"];
    assert_eq!(told, "arrow.variable_shape_tensor");
    std::fs::write(folder.path().join("model.toml"), "[shapes]\nx = [-1]\n").unwrap();
    let refused = setup::load(folder.path()).await.err().unwrap();
    assert!(refused.message.contains("already declares"), "{refused}");
}
