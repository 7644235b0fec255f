//! Runs the steps for some rows of a request. Independent steps run concurrently. Dropping the
//! future of the last step cancels all of them.

mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{
    ArrayRef, Float32Array, RecordBatch, StringArray, UInt32Array, new_empty_array, new_null_array,
};
use arrow_schema::{DataType, Field};
use futures::future::{BoxFuture, FutureExt, Shared, try_join_all};
use minijinja::Value;
use parking_lot::Mutex;
use volley_types::registry::{ColumnRef, Inputs, PipelineStep, REQUEST, ROOT, StepKind};
use volley_types::signature::TOKENS;
use volley_types::{ChunkStream, PredictError, Task, Usage};

use super::call::{self, PipelineRequest};
use super::expression::{self, Scope, score};
use super::table::{DomainRows, Table, lost, pick};
use super::typecheck::{QUESTION, TEXT, is_messages};
use super::{local_steps, of_step, tensor, text_columns};

/// Outputs of steps, by index.
pub(super) type StepOutputs = BTreeMap<usize, Arc<Table>>;
/// Future output of a step.
type StepFuture = Shared<BoxFuture<'static, Result<Arc<Table>, PredictError>>>;

/// Some rows of a request.
pub(super) struct PipelineRun {
    pub(super) run: Arc<PipelineRequest>,
    root: Arc<Table>,
    /// Token usage of the steps, by row.
    usage: Mutex<Vec<Usage>>,
}

/// Response of a wave.
pub(super) enum Output {
    /// All its rows.
    Rows(RecordBatch),
    /// Streaming generations, each with the wave's rows of its items.
    Chunks(Arc<PipelineRun>, Vec<(usize, ChunkStream, Vec<u32>)>),
}

impl PipelineRun {
    pub(super) fn new(run: Arc<PipelineRequest>, batch: &RecordBatch) -> Self {
        let rows = DomainRows::root(batch.num_rows());
        let fields = run.typed.signature.input.fields().iter();
        let columns = fields.map(|field| {
            let column = batch.column_by_name(field.name()).map(text_columns::plain);
            let column = column.unwrap_or_else(|| new_null_array(field.data_type(), rows.len));
            (field.name().clone(), column)
        });
        let mut columns: BTreeMap<_, _> = columns.collect();
        if run.spec.task == Task::Generate {
            columns.insert(
                QUESTION.to_owned(),
                text_columns::questions(&columns, rows.len),
            );
        }
        Self {
            usage: Mutex::new(vec![Usage::default(); rows.len]),
            root: Arc::new(Table::of(rows, columns)),
            run,
        }
    }

    /// Usage of the steps before the answer, for a row.
    pub(super) fn usage(&self, row: u32) -> Usage {
        let usage = self.usage.lock();
        usage.get(row as usize).copied().unwrap_or_default()
    }

    /// Runs the steps. An answering generation is started and streams its chunks.
    pub(super) async fn answer(self: Arc<Self>) -> Result<Output, PredictError> {
        let streamed = self.run.streamed();
        let pending = self.begin(&streamed);
        let output = self.run.shape.output;
        if streamed.is_empty() {
            let table = match &pending[output] {
                Some(pending) => pending.clone().await?,
                None => return Err(lost(output)),
            };
            return Ok(Output::Rows(self.rows(&table)?));
        }
        let begun = streamed.iter().map(|place| self.given(*place, &pending));
        let given = try_join_all(begun).await?;
        let over: Vec<_> = streamed
            .iter()
            .zip(&given)
            .map(|(place, given)| self.over(*place, given))
            .collect();
        let kept = self.kept(&over)?;
        let mut streams = Vec::new();
        for ((place, given), (rows, kept)) in streamed.iter().zip(&given).zip(over.iter().zip(kept))
        {
            if kept.is_empty() {
                continue;
            }
            let roots = rows.roots();
            let roots = kept.iter().map(|row| roots[*row as usize]).collect();
            let step = self.step_of(*place);
            let begun = self.model_rows(*place, rows, given, Some(kept));
            let begun = match begun {
                Ok(rows) => self.run.call(*place, rows).await,
                Err(error) => Err(error),
            };
            streams.push((*place, begun.map_err(|error| of_step(step, error))?, roots));
        }
        Ok(Output::Chunks(self, streams))
    }

    fn step_of(&self, place: usize) -> &PipelineStep {
        &self.run.spec.steps[place]
    }

    /// Futures of all steps except the streamed ones. They are lazy and run when they are awaited.
    fn begin(self: &Arc<Self>, streamed: &[usize]) -> Vec<Option<StepFuture>> {
        let mut pending: Vec<Option<StepFuture>> = vec![None; self.run.spec.steps.len()];
        for place in &self.run.shape.order {
            if streamed.contains(place) || (!streamed.is_empty() && *place == self.run.shape.output)
            {
                continue;
            }
            let (wave, place) = (self.clone(), *place);
            let needs = wave.given(place, &pending);
            let run = async move {
                let given = needs.await?;
                let table = wave.step(place, &given).await;
                let table = table.map_err(|error| of_step(wave.step_of(place), error))?;
                Ok(Arc::new(table))
            };
            pending[place] = Some(run.boxed().shared());
        }
        pending
    }

    /// Awaits the inputs of a step.
    fn given(
        &self,
        place: usize,
        pending: &[Option<StepFuture>],
    ) -> impl Future<Output = Result<StepOutputs, PredictError>> + Send + use<> {
        let needs = self.step_of(place).needs().into_iter();
        let needs = needs.filter_map(|name| {
            let needed = self.run.spec.step(name)?;
            let pending = pending[needed].clone()?;
            Some(async move { Ok::<_, PredictError>((needed, pending.await?)) })
        });
        let all = try_join_all(needs.collect::<Vec<_>>());
        async move { Ok(all.await?.into_iter().collect()) }
    }

    fn column(
        &self,
        column: &ColumnRef,
        rows: &DomainRows,
        given: &StepOutputs,
    ) -> Result<ArrayRef, PredictError> {
        if column.is_parameter() {
            let text = self.run.text_parameter(&column.column)?;
            let texts = std::iter::repeat_n(text, rows.len);
            return Ok(Arc::new(StringArray::from_iter_values(texts)));
        }
        let table = match column.step.as_str() {
            REQUEST => Some(&self.root),
            name => self.run.spec.step(name).and_then(|place| given.get(&place)),
        };
        let table = table.ok_or_else(|| lost(column))?;
        table.spread(&column.column, rows)
    }

    fn known(
        &self,
        inputs: &Inputs,
        rows: &DomainRows,
        given: &StepOutputs,
    ) -> Result<Scope, PredictError> {
        let mut known = Scope::default();
        for (name, column) in inputs {
            if column.is_parameter() {
                let value = self.run.parameters.get(&column.column);
                let value = value.map_or_else(|| Value::from(()), expression::constant);
                known.constants.insert(name.clone(), value);
            } else {
                let column = self.column(column, rows, given)?;
                known.columns.insert(name.clone(), column);
            }
        }
        Ok(known)
    }

    async fn step(&self, place: usize, given: &StepOutputs) -> Result<Table, PredictError> {
        let rows = self.over(place, given);
        let gives = self.run.shape.gives[place];
        let below = |places| DomainRows::below(gives, &rows, places);
        let one =
            |name: &String, column: ArrayRef| Table::of(rows.clone(), [(name.clone(), column)]);
        let none = BTreeMap::<String, ArrayRef>::new;
        match &self.step_of(place).kind {
            StepKind::Model { .. } => self.model(place, rows, given).await,
            StepKind::Explode { list, column } => {
                let (places, elements) = self.exploded(list, &rows, given)?;
                Ok(Table::of(below(places), [(column.clone(), elements)]))
            }
            StepKind::Template {
                template,
                inputs,
                gather,
                column,
            } => {
                if *gather {
                    let texts = self.gathered(template, inputs, &rows, given)?;
                    let texts: ArrayRef = Arc::new(StringArray::from(texts));
                    return Ok(Table::of(self.root.rows.clone(), [(column.clone(), texts)]));
                }
                let known = self.known(inputs, &rows, given)?;
                let all = (0..rows.len).map(|row| known.row(row));
                let texts = StringArray::from(expression::render(template, all)?);
                Ok(one(column, Arc::new(texts)))
            }
            StepKind::Select(columns) => {
                let columns = columns
                    .iter()
                    .map(|(name, column)| Ok((name.clone(), self.column(column, &rows, given)?)));
                let columns: BTreeMap<_, _> = columns.collect::<Result<_, PredictError>>()?;
                Ok(Table::of(rows, columns))
            }
            StepKind::Branch(branch) => {
                let places = self.taken(branch, &rows, given)?;
                Ok(Table::of(below(places), none()))
            }
            StepKind::Merge(steps) => self.merge(place, &rows, &self.tables(steps, given)?),
            StepKind::TopK { k, by } => {
                let scores = self.column(by, &rows, given)?;
                let places = local_steps::top_k(&rows, &scores, *k as usize)?;
                Ok(Table::of(below(places), none()))
            }
            StepKind::Similarity {
                left,
                right,
                column,
            } => {
                let left = self.column(left, &rows, given)?;
                let right = self.column(right, &rows, given)?;
                Ok(one(column, local_steps::cosines(&left, &right)?))
            }
            StepKind::Compute {
                expression,
                inputs,
                column,
            } => {
                let known = self.known(inputs, &rows, given)?;
                let numbers = expression::evaluate(expression, &known, rows.len, score)?;
                Ok(one(column, Arc::new(Float32Array::from(numbers))))
            }
        }
    }

    fn tables<'g>(
        &self,
        steps: &[String],
        given: &'g StepOutputs,
    ) -> Result<Vec<&'g Table>, PredictError> {
        let tables = steps.iter().map(|name| {
            let table = self.run.spec.step(name).and_then(|place| given.get(&place));
            table.map(AsRef::as_ref).ok_or_else(|| lost(name))
        });
        tables.collect()
    }

    fn merge(
        &self,
        place: usize,
        rows: &Arc<DomainRows>,
        branches: &[&Table],
    ) -> Result<Table, PredictError> {
        let of: Vec<_> = branches.iter().map(|branch| branch.rows.as_ref()).collect();
        let owners = local_steps::owners(rows, &of)?;
        let columns = self.run.typed.gives[place].keys().map(|name| {
            let columns = branches.iter().map(|branch| branch.columns.get(name));
            let columns = columns.collect::<Option<Vec<_>>>();
            let columns = columns.ok_or_else(|| lost(name))?;
            Ok((name.clone(), local_steps::merge(&columns, &owners)?))
        });
        let columns: BTreeMap<_, _> = columns.collect::<Result<_, PredictError>>()?;
        Ok(Table::of(rows.clone(), columns))
    }

    /// Whether a column has one value for each row of the request.
    fn is_of_request(&self, column: &ColumnRef) -> bool {
        let place = self.run.spec.step(&column.step);
        place.is_none_or(|place| self.run.shape.gives[place] == ROOT)
    }

    /// The elements of a list, with the rows that they are of.
    fn exploded(
        &self,
        list: &ColumnRef,
        rows: &DomainRows,
        given: &StepOutputs,
    ) -> Result<local_steps::Elements, PredictError> {
        if list.is_parameter() {
            let value = self.run.parameters.get(&list.column);
            return local_steps::explode_parameter(&list.column, value, rows.len);
        }
        local_steps::explode_column(&self.column(list, rows, given)?)
    }

    /// Renders a text for each row of the request, from all its rows and the constants.
    fn gathered(
        &self,
        template: &str,
        inputs: &Inputs,
        rows: &DomainRows,
        given: &StepOutputs,
    ) -> Result<Vec<String>, PredictError> {
        let known = self.known(inputs, rows, given)?;
        let of_request = inputs.iter().filter(|(_, it)| self.is_of_request(it));
        let of_request = of_request.map(|(name, it)| (name.clone(), it.clone()));
        let beside = self.known(&of_request.collect(), &self.root.rows, given)?;
        let mut groups = vec![Vec::new(); self.root.rows.len];
        for (row, root) in rows.roots().into_iter().enumerate() {
            groups[root as usize].push(Value::from(known.row(row)));
        }
        let all = groups.into_iter().enumerate().map(|(root, group)| {
            let mut all = beside.row(root);
            all.insert("rows".to_owned(), Value::from(group));
            all
        });
        expression::render(template, all)
    }

    /// The input rows of a model call, restricted to `kept`.
    fn model_rows(
        &self,
        place: usize,
        rows: &DomainRows,
        given: &StepOutputs,
        kept: Option<Vec<u32>>,
    ) -> Result<RecordBatch, PredictError> {
        let StepKind::Model { inputs, .. } = &self.step_of(place).kind else {
            return Err(lost(place));
        };
        let signature = self.run.typed.models[place].as_ref();
        let columns = inputs.iter().map(|(name, from)| {
            let mut column = self.column(from, rows, given)?;
            if let Some(kept) = &kept {
                column = pick(&column, kept.clone())?;
            }
            let declared = signature.and_then(|it| it.input.field_with_name(name).ok());
            let column = match declared {
                Some(declared) => self.fitted(from, column, declared)?,
                None => column,
            };
            Ok((name.as_str(), column, true))
        });
        let columns: Vec<_> = columns.collect::<Result<_, PredictError>>()?;
        RecordBatch::try_from_iter_with_nullable(columns)
            .map_err(|error| PredictError::internal("the rows of a step cannot be built", error))
    }

    /// Casts a column to the type of a model's input.
    fn fitted(
        &self,
        from: &ColumnRef,
        column: ArrayRef,
        declared: &Field,
    ) -> Result<ArrayRef, PredictError> {
        if *column.data_type() == DataType::Utf8 && is_messages(declared.data_type()) {
            return Ok(text_columns::messages(&column));
        }
        match self.run.typed.field(&self.run.spec, from) {
            Some(field) if tensor::adapts(field, declared) => {
                tensor::adapt(&column, field, declared)
            }
            _ => Ok(column),
        }
    }

    /// Calls a model and collects its complete response.
    async fn model(
        &self,
        place: usize,
        rows: Arc<DomainRows>,
        given: &StepOutputs,
    ) -> Result<Table, PredictError> {
        if rows.len == 0 {
            let gives = self.run.typed.gives[place].iter();
            let columns =
                gives.map(|(name, field)| (name.clone(), new_empty_array(field.data_type())));
            return Ok(Table::of(rows, columns.collect::<BTreeMap<_, _>>()));
        }
        let batch = self.model_rows(place, &rows, given, None)?;
        let answer = self.run.call(place, batch).await?;
        let roots = rows.roots();
        if self.run.typed.generates(place) {
            let (texts, usage) = call::texts(answer, rows.len).await?;
            let mut all = self.usage.lock();
            for (root, usage) in roots.iter().zip(usage) {
                all[*root as usize] += usage;
            }
            let texts: ArrayRef = Arc::new(StringArray::from(texts));
            return Ok(Table::of(rows, [(TEXT.to_owned(), texts)]));
        }
        let columns = call::rows(answer, rows.len).await?;
        if let Some(tokens) = columns.get(TOKENS)
            && let Some(tokens) = tokens.as_primitive_opt::<UInt32Type>()
        {
            let mut all = self.usage.lock();
            for (root, tokens) in roots.iter().zip(tokens.iter()) {
                all[*root as usize].prompt_tokens += tokens.unwrap_or(0);
            }
        }
        Ok(Table::of(rows, columns))
    }

    /// The rows of the response; a text becomes a generation of one chunk.
    fn rows(&self, table: &Table) -> Result<RecordBatch, PredictError> {
        if self.run.spec.task == Task::Generate {
            let texts = table
                .columns
                .get(TEXT)
                .map(local_steps::texts)
                .unwrap_or_default();
            let usage = (0..).zip(&texts).map(|(row, _)| self.usage(row)).collect();
            return Ok(call::chunks(texts, usage));
        }
        let schema = self.run.typed.signature.output.clone();
        let columns = schema.fields().iter().map(|field| {
            if field.name() == TOKENS && self.run.spec.task != Task::Tensors {
                let usage = self.usage.lock();
                let tokens = usage.iter();
                let tokens = tokens.map(|usage| usage.prompt_tokens + usage.completion_tokens);
                return Ok(Arc::new(UInt32Array::from_iter_values(tokens)) as ArrayRef);
            }
            let column = table.columns.get(field.name());
            column.cloned().ok_or_else(|| lost(field.name()))
        });
        let columns: Vec<_> = columns.collect::<Result<_, PredictError>>()?;
        RecordBatch::try_new(schema, columns).map_err(|error| {
            PredictError::internal("the pipeline's answer does not match its columns", error)
        })
    }
}
