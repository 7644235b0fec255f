use volley_types::ModelName;
use volley_types::registry::{RegistryReply, RegistryState};

use super::*;

/// Notes the states of tasks in the order in which they arrive; the first write is slow.
#[derive(Default)]
struct SlowRegistry(Mutex<Vec<TaskState>>);

#[async_trait]
impl Registry for SlowRegistry {
    fn state(&self) -> Arc<RegistryState> {
        Arc::default()
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        if self.0.lock().is_empty() {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        match command {
            // As in a cluster whose upgrade is not finished.
            RegistryCommand::BeginTask { .. } => {
                return Err(PredictError::new(ErrorCode::Conflict, "finish the upgrade"));
            }
            RegistryCommand::PutTask { record, .. } => self.0.lock().push(record.state),
            _ => {}
        }
        Err(later("it is not stored"))
    }
}

fn record() -> TaskRecord {
    TaskRecord {
        node: NodeId(1),
        model: ModelName::new("m").unwrap(),
        tenant: None,
        created_ms: 0,
        updated_ms: 0,
        state: TaskState::Running,
        forget_ms: 0,
    }
}

fn ended(at: Instant, bytes: usize) -> Batch {
    let record = TaskRecord {
        state: TaskState::Completed,
        ..record()
    };
    let response = Some(vec![0; bytes].into());
    Batch {
        record,
        work: Work::Ended { at, response },
        registry: Arc::new(SlowRegistry::default()),
    }
}

#[tokio::test]
async fn a_fast_batch_is_noted_as_running_before_it_ends() {
    let (batches, registry) = (Batches::default(), Arc::new(SlowRegistry::default()));
    let permit = batches.admit(1).unwrap();
    let begin = |ending: WeakBatches| async move { ending.finish("a", Ok(Value::Null)).await };
    let noted = batches.hold(permit, "a", record(), registry.clone(), begin);
    noted.await.unwrap_err();
    while registry.0.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    let noted = registry.0.lock().clone();
    assert_eq!(noted, [TaskState::Running, TaskState::Completed]);
    assert!(batches.admit(1).is_ok(), "it does not run any more");
}

#[test]
fn what_is_admitted_counts_until_it_is_given_back() {
    let batches = Batches::default();
    let permit = batches.admit(1).unwrap();
    let refused = batches.admit(1).err().unwrap();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    let all: Vec<_> = (1..MAX_BATCHES)
        .map(|_| batches.admit(MAX_BATCHES))
        .collect();
    assert!(all.iter().all(Result::is_ok));
    assert!(batches.admit(usize::MAX).is_err());
    drop((permit, all));
    assert!(batches.admit(1).is_ok());
}

#[test]
fn old_answers_make_room() {
    let batches = Batches::default();
    let now = Instant::now();
    let keep = |id: &str, batch: Batch| batches.0.lock().batches.insert(id.to_owned(), batch);
    keep("new", ended(now, MAX_BYTES));
    assert!(batches.admit(1).is_err(), "the memory is used");
    let Some(old) = now.checked_sub(HELD) else {
        return;
    };
    keep("new", ended(old, MAX_BYTES));
    assert!(batches.admit(1).is_ok());
    assert!(batches.0.lock().batches.is_empty());
}
