//! Sequence models: consecutive requests of one sequence, each of which starts with the state that
//! the previous one left (Triton's sequence batcher).
//!
//! Controls and states, which callers do not send, are added as further columns, so that rows of
//! several sequences can share one run like those of other requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray,
    UInt32Array, UInt64Array,
};
use arrow_schema::SchemaRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use volley_types::{ErrorCode, ErrorReason, ParamValue, Parameters, PredictError};

use super::Ports;
use super::warm::{column, of_bytes};
use crate::columns::{Port, elements};
use volley_model_directory::triton::{Control, ControlKind, Sequences};
use volley_onnx_runtime::failure::internal;

/// The id of a sequence. A number and its text are two ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SequenceId {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(id) => write!(f, "{id}"),
            Self::Text(id) => f.write_str(id),
        }
    }
}

/// The sequence parameters of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SequenceStep {
    id: SequenceId,
    start: bool,
    end: bool,
}

impl SequenceStep {
    /// Reads the sequence parameters.
    ///
    /// # Errors
    /// `InvalidInput` when the id is missing or invalid, or a flag is not a Boolean.
    pub(super) fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let id = match parameters.get("sequence_id") {
            Some(ParamValue::Int(id)) if *id != 0 => SequenceId::Number(*id),
            Some(ParamValue::Text(id)) if !id.is_empty() => SequenceId::Text(id.clone()),
            _ => {
                return Err(PredictError::invalid(
                    "a request to this model must have a 'sequence_id' that is neither 0 nor empty",
                ));
            }
        };
        let flag = |name: &str| match parameters.get(name) {
            None => Ok(false),
            Some(ParamValue::Bool(flag)) => Ok(*flag),
            Some(_) => Err(PredictError::invalid(format!(
                "parameter '{name}' must be true or false"
            ))),
        };
        Ok(Self {
            id,
            start: flag("sequence_start")?,
            end: flag("sequence_end")?,
        })
    }
}

/// A running sequence.
struct Slot {
    /// The states after the last request, a column of one row for each. Held locked during a run.
    states: tokio::sync::Mutex<Vec<ArrayRef>>,
    used: Mutex<Instant>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    fn touch(&self) {
        *lock(&self.used) = Instant::now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update of the guarded values can be interrupted by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sequences of a replica.
pub(super) struct SequenceTable {
    spec: Sequences,
    ports: Arc<Ports>,
    /// The schema of answers.
    answer: SchemaRef,
    initial: Vec<ArrayRef>,
    places: Arc<Semaphore>,
    live: Mutex<HashMap<SequenceId, Arc<Slot>>>,
}

impl SequenceTable {
    /// Creates a table for a graph with these ports. `rows` is the default maximum number of
    /// concurrent sequences.
    ///
    /// # Errors
    /// `InvalidInput` when a state or control does not fit the graph.
    pub(super) fn new(
        spec: Sequences,
        ports: Arc<Ports>,
        answer: SchemaRef,
        rows: usize,
    ) -> Result<Self, PredictError> {
        let wrong = |name: &str, what: &str| {
            PredictError::invalid(format!("config.pbtxt: the state '{name}' {what}"))
        };
        let find = |ports: &[Port], name: &str| {
            let port = ports.iter().find(|port| port.name == name).cloned();
            port.ok_or_else(|| wrong(name, "is not in the graph"))
        };
        let mut initial = Vec::new();
        for state in &spec.states {
            let (input, output) = (
                find(&ports.inputs, &state.input)?,
                find(&ports.outputs, &state.output)?,
            );
            if input.layout != output.layout || input.element != output.element {
                return Err(wrong(
                    &state.input,
                    "has another type as output than as input",
                ));
            }
            let dims = state.dims.iter().zip(&input.row_shape);
            let dims = dims.map(|(dim, own)| usize::try_from((*dim).max(*own)).unwrap_or(0));
            let shape: Vec<usize> = match input.row_shape.is_empty() {
                true => Vec::new(),
                false => dims.collect(),
            };
            let size = elements(&shape).filter(|_| input.takes(&shape));
            let size = size.ok_or_else(|| wrong(&state.input, "has another shape in the graph"))?;
            let first = match &state.data {
                None => column(&input, &shape, size, 1),
                Some(bytes) => of_bytes(&input, &shape, size, bytes).ok_or_else(|| {
                    let what = "has an initial file of the wrong size";
                    wrong(&state.input, what)
                })?,
            };
            initial.push(
                first.map_err(|error| internal("a state could not be made", error.to_string()))?,
            );
        }
        for control in &spec.controls {
            let port = find(&ports.inputs, &control.input)?;
            if port.row_shape.iter().any(|dim| 1 < *dim) {
                let name = &control.input;
                return Err(wrong(
                    name,
                    "is a control, and has several values for a row",
                ));
            }
        }
        let places = spec.candidates.unwrap_or(rows).max(1);
        Ok(Self {
            places: Arc::new(Semaphore::new(places)),
            spec,
            ports,
            answer,
            initial,
            live: Mutex::default(),
        })
    }

    /// Runs one request of a sequence, after the earlier ones of the same sequence.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the sequence in its previous state.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown sequence, or when `rows` does not have exactly one row; those
    /// of `run`.
    pub(super) async fn step<F>(
        &self,
        step: &SequenceStep,
        rows: &RecordBatch,
        run: impl FnOnce(RecordBatch) -> F,
    ) -> Result<RecordBatch, PredictError>
    where
        F: Future<Output = Result<RecordBatch, PredictError>>,
    {
        if rows.num_rows() != 1 {
            return Err(PredictError::invalid(format!(
                "a request of a sequence must have one row, and has {}",
                rows.num_rows()
            )));
        }
        let slot = if step.start {
            self.begin(&step.id).await
        } else {
            self.of(&step.id)?
        };
        let mut states = slot.states.lock().await;
        let whole = self.whole(step, rows, &states)?;
        let answer = run(whole).await?;
        let mut next = Vec::with_capacity(states.len());
        for state in &self.spec.states {
            let column = answer.column_by_name(&state.output);
            let column = column.ok_or_else(|| internal("the run did not return a state", ""))?;
            next.push(column.clone());
        }
        *states = next;
        slot.touch();
        drop(states);
        if step.end {
            let mut live = lock(&self.live);
            // Another sequence may have started with the same id.
            if live.get(&step.id).is_some_and(|it| Arc::ptr_eq(it, &slot)) {
                live.remove(&step.id);
            }
        }
        self.shown(&answer)
    }

    /// Starts a sequence, replacing one with the same id. Waits for a permit. Cancel safe, except
    /// that the replaced sequence is gone.
    async fn begin(&self, id: &SequenceId) -> Arc<Slot> {
        lock(&self.live).remove(id);
        let pause = self.spec.idle.min(Duration::from_millis(100));
        let permit = loop {
            self.sweep();
            let acquired = self.places.clone().acquire_owned();
            // Idle sequences free their permits, but nothing notifies when one becomes idle.
            if let Ok(Ok(permit)) = tokio::time::timeout(pause, acquired).await {
                break permit;
            }
        };
        let slot = Arc::new(Slot {
            states: tokio::sync::Mutex::new(self.initial.clone()),
            used: Mutex::new(Instant::now()),
            _permit: permit,
        });
        lock(&self.live).insert(id.clone(), slot.clone());
        slot
    }

    fn of(&self, id: &SequenceId) -> Result<Arc<Slot>, PredictError> {
        self.sweep();
        let found = lock(&self.live).get(id).cloned();
        found.ok_or_else(|| {
            let id = id.to_string();
            let id: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
            PredictError::new(
                ErrorCode::InvalidInput,
                format!(
                    "the sequence '{id}' has not started on this replica: its first request must \
                     have 'sequence_start'; start the sequence again if it was idle for too long \
                     or its replica was lost"
                ),
            )
            .with_reason(ErrorReason::SequenceUnknown)
        })
    }

    /// Ends the sequences that were idle for too long.
    fn sweep(&self) {
        let now = Instant::now();
        let is_idle = |slot: &Arc<Slot>| {
            let used = *lock(&slot.used);
            // No request runs in it or waits for it.
            Arc::strong_count(slot) == 1 && self.spec.idle <= now.saturating_duration_since(used)
        };
        lock(&self.live).retain(|_, slot| !is_idle(slot));
    }

    /// All inputs of the graph: the caller's columns, the controls and the states.
    fn whole(
        &self,
        step: &SequenceStep,
        rows: &RecordBatch,
        states: &[ArrayRef],
    ) -> Result<RecordBatch, PredictError> {
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        for (field, column) in rows.schema_ref().fields().iter().zip(rows.columns()) {
            columns.push((field.name().clone(), column.clone()));
        }
        for control in &self.spec.controls {
            let value = value(control, step)?;
            let ports = &self.ports.inputs;
            let port = ports.iter().find(|port| port.name == control.input);
            let port = port.ok_or_else(|| internal("a control is missing", &*control.input))?;
            let broken = |what: String| internal("a control could not be made", what);
            let column = super::warm::of_value(port, value);
            let column = column.map_err(|error| broken(error.to_string()))?;
            columns.push((control.input.clone(), column));
        }
        for (state, column) in self.spec.states.iter().zip(states) {
            columns.push((state.input.clone(), column.clone()));
        }
        let columns = columns
            .into_iter()
            .map(|(name, column)| (name, column, false));
        RecordBatch::try_from_iter_with_nullable(columns).map_err(|error| {
            internal(
                "the inputs of a step could not be combined",
                error.to_string(),
            )
        })
    }

    /// The caller's part of an answer.
    fn shown(&self, answer: &RecordBatch) -> Result<RecordBatch, PredictError> {
        let fields = self.answer.fields().iter();
        let columns = fields.map(|field| {
            let column = answer.column_by_name(field.name()).cloned();
            column
                .ok_or_else(|| internal("the run did not return an output", field.name().as_str()))
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let count = arrow_array::RecordBatchOptions::new().with_row_count(Some(answer.num_rows()));
        RecordBatch::try_new_with_options(self.answer.clone(), columns, &count)
            .map_err(|error| internal("an output could not be split", error.to_string()))
    }
}

/// The value of a control for this step.
fn value(control: &Control, step: &SequenceStep) -> Result<ArrayRef, PredictError> {
    let is = match control.kind {
        ControlKind::Start => step.start,
        ControlKind::End => step.end,
        ControlKind::Ready => true,
        ControlKind::Id => return id(control, step),
    };
    let [no, yes] = control.values;
    let value = if is { yes } else { no };
    Ok(match control.element {
        volley_onnx_runtime::ort::value::TensorElementType::Int32 => {
            Arc::new(Int32Array::from(vec![value as i32]))
        }
        volley_onnx_runtime::ort::value::TensorElementType::Bool => {
            Arc::new(BooleanArray::from(vec![value != 0.0]))
        }
        _ => Arc::new(Float32Array::from(vec![value as f32])),
    })
}

fn id(control: &Control, step: &SequenceStep) -> Result<ArrayRef, PredictError> {
    use volley_onnx_runtime::ort::value::TensorElementType as Element;
    let none = || {
        PredictError::invalid(format!(
            "the model needs sequence ids of the type {}; 'sequence_id' has another type",
            control.element
        ))
    };
    let id = step.id.to_string();
    Ok(match control.element {
        Element::Uint64 => Arc::new(UInt64Array::from(vec![
            id.parse::<u64>().map_err(|_| none())?,
        ])),
        Element::Int64 => Arc::new(Int64Array::from(vec![
            id.parse::<i64>().map_err(|_| none())?,
        ])),
        Element::Uint32 => Arc::new(UInt32Array::from(vec![
            id.parse::<u32>().map_err(|_| none())?,
        ])),
        Element::Int32 => Arc::new(Int32Array::from(vec![
            id.parse::<i32>().map_err(|_| none())?,
        ])),
        _ => Arc::new(StringArray::from(vec![id.as_str()])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_text_are_two_sequences() {
        let read = |id: ParamValue| {
            let parameters = [("sequence_id".to_owned(), id)].into_iter().collect();
            SequenceStep::read(&parameters).map(|step| step.id)
        };
        let (number, text) = (ParamValue::Int(1), ParamValue::Text("1".to_owned()));
        let (number, text) = (read(number).unwrap(), read(text).unwrap());
        assert_ne!(number, text);
        assert_eq!(number.to_string(), text.to_string());
        assert!(read(ParamValue::Int(0)).is_err());
        assert!(read(ParamValue::Text(String::new())).is_err());
    }
}
