//! Mutated models, each in its own process. Whatever they do, this process survives and reports
//! their fate. `docs/evidence/isolation.md` has the results of a long run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use volley_backend::Backend;
use volley_model_host::Use;
use volley_types::{ErrorCode, PredictError};

use crate::isolation::{Hosts, request, test_model};
use crate::mutants;

/// Time limit of one mutant.
const LIMIT: Duration = Duration::from_secs(60);
/// Concurrent mutants, enough to keep two cores busy.
const TOGETHER: u64 = 4;

/// The fates of mutants.
#[derive(Debug, Default)]
struct Fates {
    /// Rejected because of its format.
    malformed: u64,
    /// Rejected by ONNX Runtime.
    refused: u64,
    /// Its process ended while loading or probing.
    ended_load: u64,
    /// Loaded, and the run succeeded.
    ran: u64,
    /// Loaded, and the run failed.
    failed: u64,
    /// Loaded, and the run ended its process.
    ended_run: u64,
    slowest: Duration,
}

fn pairs(kind: &DataType) -> RecordBatch {
    let item = Arc::new(Field::new("item", kind.clone(), false));
    let values: ArrayRef = match kind {
        DataType::Int64 => Arc::new(Int64Array::from(vec![1, 2])),
        _ => Arc::new(Float32Array::from(vec![1.0, 2.0])),
    };
    let column = Arc::new(FixedSizeListArray::new(item, 2, values, None)) as ArrayRef;
    RecordBatch::try_from_iter([("x", column)]).unwrap()
}

async fn run(model: &Arc<dyn Backend>, kind: &DataType) -> Result<(), PredictError> {
    let answer = model.predict(request(pairs(kind), &[])).await?;
    answer.try_collect::<Vec<_>>().await.map(drop)
}

impl Fates {
    async fn meet(&mut self, hosts: &Hosts, directory: &std::path::Path, kind: &DataType) {
        let since = Instant::now();
        match hosts.load(directory).await {
            Err(error) => {
                assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.chain());
                if error.message.contains("or is incomplete") {
                    self.malformed += 1;
                } else if error.message.contains("the model's process") {
                    self.ended_load += 1;
                } else {
                    self.refused += 1;
                }
            }
            Ok(model) => match run(&model, kind).await {
                Ok(()) => self.ran += 1,
                Err(error) if error.message.contains("the model's process") => self.ended_run += 1,
                Err(_) => self.failed += 1,
            },
        }
        self.slowest = self.slowest.max(since.elapsed());
    }

    fn add(&mut self, other: Self) {
        self.malformed += other.malformed;
        self.refused += other.refused;
        self.ended_load += other.ended_load;
        self.ran += other.ran;
        self.failed += other.failed;
        self.ended_run += other.ended_run;
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// Runs `VOLLEY_MUTANTS` mutants. Every tenth is a mutant of the model that dereferences a null
/// pointer, and one is that model unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn mutants_end_no_more_than_their_own_process() {
    let (count, seed) = (mutants::count(60), mutants::seed());
    let hosts = Hosts::limited("mutants", Use::Serve, Some(4 << 30), Duration::from_secs(1));
    let hosts = Arc::new(hosts);
    let parts = (0..TOGETHER).map(|part| {
        let hosts = hosts.clone();
        tokio::spawn(async move { some(&hosts, part, count, seed + part).await })
    });
    let mut fates = Fates::default();
    for part in parts.collect::<Vec<_>>() {
        fates.add(part.await.unwrap());
    }
    eprintln!("{count} mutants and one model that is known to end its process: {fates:?}");
    let told = fates.malformed + fates.refused + fates.ended_load;
    assert_eq!(told + fates.ran + fates.failed + fates.ended_run, count + 1);
    assert!(1 <= fates.ended_load, "the one that is known to");
    // A valid model is still served.
    let sound = hosts.load(&test_model("identity-float32")).await.unwrap();
    run(&sound, &DataType::Float32).await.unwrap();
    drop(sound);
    hosts.gone().await;
}

/// Runs the mutants of one part, one after the other.
async fn some(hosts: &Hosts, part: u64, count: u64, seed: u64) -> Fates {
    let deadly = test_model("hostile/loop-without-count");
    let files = mutants::SEEDS.map(|(name, kind)| {
        let directory = test_model(name);
        let bytes = std::fs::read(directory.join("model.onnx")).unwrap();
        (directory, bytes, kind)
    });
    let known = std::fs::read(deadly.join("model.onnx")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut fates = Fates::default();
    if part == 0 {
        fates.meet(hosts, &deadly, &DataType::Float32).await;
    }
    for index in (part..count).step_by(TOGETHER as usize) {
        let kind = if index % 10 == 0 {
            mutants::write(&deadly, &known, scratch.path(), &mut random);
            &DataType::Float32
        } else {
            let (directory, bytes, kind) = &files[random.usize(..files.len())];
            mutants::write(directory, bytes, scratch.path(), &mut random);
            kind
        };
        let met = tokio::time::timeout(LIMIT, fates.meet(hosts, scratch.path(), kind)).await;
        met.unwrap_or_else(|_| panic!("mutant {index} of seed {seed} hangs"));
    }
    fates
}
