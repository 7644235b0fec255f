//! Runs of a session: rows of tokens, padded to the longest, into numbers for each row.

use std::sync::Arc;

use half::f16;
use ort::session::{RunOptions, Session, SessionInputValue};
use ort::value::{DynValue, Outlet, Tensor, TensorElementType};
use volley_types::{ErrorCode, ErrorOrigin, PredictError, Task};

use super::settings::{Activation, Pooling, Settings};
use super::texts::Tokens;
use crate::session::{self, Place};
use crate::tensors::{Options, internal};
use crate::watch::Watch;

/// What a model gives for one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values {
    /// A vector, scores, or scores for each token one after the other; weights of `terms`.
    pub(super) numbers: Vec<f32>,
    /// Tokens that have a weight, in the order of their ids.
    pub(super) terms: Vec<u32>,
}

/// Owns a session.
pub(super) struct Runner {
    session: Session,
    inputs: Vec<Input>,
    output: String,
    /// Whether the graph itself makes one vector of a row's tokens.
    pooled: bool,
    width: usize,
    task: Task,
    pooling: Pooling,
    activation: Activation,
    pad_token: u32,
    first_position: usize,
    place: Place,
}

/// An input of the graph.
struct Input {
    name: String,
    kind: InputKind,
    narrow: bool,
}

#[derive(Clone, Copy)]
enum InputKind {
    Ids,
    Mask,
    Types,
    Positions,
}

/// Outputs that have the vectors of tokens or of texts, the one to take first.
const OUTPUTS: [&str; 4] = [
    "sentence_embedding",
    "logits",
    "last_hidden_state",
    "token_embeddings",
];

impl Runner {
    /// Checks that the graph is that of an encoder for its task.
    ///
    /// # Errors
    /// `InvalidInput` naming what is missing or unknown.
    pub(super) fn new(
        session: Session,
        place: Place,
        settings: &Settings,
    ) -> Result<Self, PredictError> {
        let inputs = inputs_of(&session)?;
        let output = output_of(&session, settings.task)?;
        let shape = output
            .dtype()
            .tensor_shape()
            .ok_or_else(|| PredictError::invalid("the model's output is no tensor"))?;
        let pooled = shape.len() == 2;
        let last = shape.last().and_then(|last| usize::try_from(*last).ok());
        let width = last.or(settings.hidden_size).unwrap_or(0);
        if shape.len() < 2 || !fits(settings.task, pooled, width) {
            return Err(PredictError::invalid(format!(
                "the model's output '{}' does not have the shape of its task '{}'",
                output.name(),
                settings.task.as_str()
            )));
        }
        check(settings, pooled, width)?;
        Ok(Self {
            inputs,
            output: output.name().to_owned(),
            pooled,
            width,
            task: settings.task,
            pooling: settings.pooling,
            activation: settings.activation,
            pad_token: settings.pad_token,
            first_position: settings.first_position,
            place,
            session,
        })
    }

    /// Runs one token, so that the first request finds the model warm, and a model that cannot
    /// run is never served.
    ///
    /// # Errors
    /// `InvalidInput` when it cannot run.
    pub(super) fn warm_up(&mut self, watch: &Watch) -> Result<(), PredictError> {
        let token = self.one_token();
        self.run(&[&token], watch).map_err(session::cannot_run)?;
        Ok(())
    }

    fn one_token(&self) -> Tokens {
        Tokens {
            ids: vec![self.pad_token],
            types: vec![0],
            ..Tokens::default()
        }
    }

    /// Numbers of a vector, labels, or terms.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// One run over `rows`.
    ///
    /// # Errors
    /// `Internal` when it fails, `TooLarge` when there is no memory for it, `DeadlineExceeded` when
    /// `watch` stopped it.
    pub(super) fn run(
        &mut self,
        rows: &[&Tokens],
        watch: &Watch,
    ) -> Result<Vec<Values>, PredictError> {
        let ran = self.run_with(rows, RunOptions::new(), watch);
        if matches!(&ran, Err(error) if error.code == ErrorCode::TooLarge) {
            let (token, options) = (self.one_token(), session::shrinking(self.place));
            if let Err(error) = self.run_with(&[&token], options, watch) {
                tracing::warn!(
                    error = error.chain(),
                    "a session keeps what it does not use"
                );
            }
        }
        ran
    }

    fn run_with(
        &mut self,
        rows: &[&Tokens],
        options: ort::Result<Options>,
        watch: &Watch,
    ) -> Result<Vec<Values>, PredictError> {
        let options =
            options.map_err(|error| internal("a run could not be set up", error.to_string()))?;
        let options = Arc::new(options);
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for input in &self.inputs {
            let values = self.padded(rows, longest, input.kind);
            inputs.push((
                &input.name,
                tensor([rows.len(), longest], values, input.narrow)?,
            ));
        }
        let session = &mut self.session;
        let outputs = watch.over(&options, |options| {
            session
                .run_with_options(inputs, options)
                .map_err(|error| refused(&error.to_string()))
        })?;
        let output = outputs
            .get(self.output.as_str())
            .ok_or_else(|| internal("the model gave no output", self.output.clone()))?;
        let numbers = floats(output)?;
        drop(outputs);
        let by_row = if self.pooled { 1 } else { longest } * self.width;
        if numbers.len() != rows.len() * by_row {
            return Err(internal(
                "the model's output has another size than it should",
                format!("{} numbers for {} rows", numbers.len(), rows.len()),
            ));
        }
        let values = rows.iter().zip(numbers.chunks(by_row.max(1)));
        Ok(values
            .map(|(row, numbers)| self.values(row, numbers))
            .collect())
    }

    /// One input of a run, each row as long as the longest.
    fn padded(&self, rows: &[&Tokens], longest: usize, kind: InputKind) -> Vec<i64> {
        let pad = i64::from(self.pad_token);
        let first = self.first_position as i64;
        let mut values = Vec::with_capacity(rows.len() * longest);
        for row in rows {
            let tokens = row.ids.len();
            let from = |ids: &[u32]| ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>();
            let (own, rest) = match kind {
                InputKind::Ids => (from(&row.ids), pad),
                InputKind::Mask => (vec![1; tokens], 0),
                InputKind::Types => (from(&row.types), 0),
                InputKind::Positions => {
                    let positions = (0..tokens as i64).map(|position| first + position);
                    // Padding has the padding's own position, which is in every table.
                    (positions.collect(), (first - 1).max(0))
                }
            };
            values.extend(own);
            values.extend(std::iter::repeat_n(rest, longest - tokens));
        }
        values
    }

    fn values(&self, row: &Tokens, numbers: &[f32]) -> Values {
        let tokens = row.ids.len();
        let vectors = || numbers.chunks(self.width).take(tokens);
        let numbers = match self.task {
            Task::EncodeSparse => return weights(vectors(), self.width),
            Task::ClassifyTokens => vectors()
                .flat_map(|vector| activated(vector, self.activation))
                .collect(),
            Task::Rerank | Task::Classify => activated(numbers, self.activation),
            _ if self.pooled => numbers.to_vec(),
            _ => pooled(vectors(), self.width, tokens, self.pooling),
        };
        Values {
            numbers,
            terms: Vec::new(),
        }
    }
}

fn inputs_of(session: &Session) -> Result<Vec<Input>, PredictError> {
    let inputs = session.inputs().iter().map(|input| {
        let name = input.name().to_owned();
        let kind = match name.as_str() {
            "input_ids" => InputKind::Ids,
            "attention_mask" => InputKind::Mask,
            "token_type_ids" => InputKind::Types,
            "position_ids" => InputKind::Positions,
            _ => {
                return Err(PredictError::invalid(format!(
                    "the model's input '{name}' is none of a text encoder"
                )));
            }
        };
        let narrow = match input.dtype().tensor_type() {
            Some(TensorElementType::Int64) => false,
            Some(TensorElementType::Int32) => true,
            _ => {
                return Err(PredictError::invalid(format!(
                    "the model's input '{name}' holds no 32- or 64-bit integers"
                )));
            }
        };
        Ok(Input { name, kind, narrow })
    });
    inputs.collect()
}

fn output_of(session: &Session, task: Task) -> Result<&Outlet, PredictError> {
    let wanted = if task == Task::Embed {
        &OUTPUTS[..]
    } else {
        &OUTPUTS[1..]
    };
    let named = wanted.iter().find_map(|name| {
        let mut outputs = session.outputs().iter();
        outputs.find(|output| output.name() == *name)
    });
    let output = named.or_else(|| session.outputs().first());
    output.ok_or_else(|| PredictError::invalid("the model has no output"))
}

/// Whether an output of this width, for each text where it is `pooled` and else for each token, is
/// what a task wants.
fn fits(task: Task, pooled: bool, width: usize) -> bool {
    match task {
        Task::ClassifyTokens | Task::EncodeSparse => width != 0 && !pooled,
        Task::Rerank => width == 1 && pooled,
        Task::Classify => width != 0 && pooled,
        _ => width != 0,
    }
}

/// Refuses what the directory tells and the graph does not do.
fn check(settings: &Settings, pooled: bool, width: usize) -> Result<(), PredictError> {
    if let Some(module) = &settings.beyond
        && settings.task == Task::Embed
        && !pooled
    {
        return Err(PredictError::invalid(format!(
            "modules.json has a module '{module}', which the graph does not do; export the \
             model with an output 'sentence_embedding'"
        )));
    }
    let classifies = matches!(settings.task, Task::Classify | Task::ClassifyTokens);
    let labels = settings.labels.len();
    if classifies && labels != 0 && labels != width {
        return Err(PredictError::invalid(format!(
            "the model gives {width} numbers and has {labels} labels; 'id2label' of \
             config.json, or 'labels' of model.toml, must name them all"
        )));
    }
    Ok(())
}

fn refused(message: &str) -> PredictError {
    if !session::lacks_memory(message) {
        return internal("the model could not run", message);
    }
    let told = "the run needs more memory than the worker has; send fewer or shorter texts";
    PredictError::new(ErrorCode::TooLarge, told)
        .with_origin(ErrorOrigin::Model)
        .with_source(message.to_owned())
}

fn tensor(
    shape: [usize; 2],
    values: Vec<i64>,
    narrow: bool,
) -> Result<SessionInputValue<'static>, PredictError> {
    let failed = |error: ort::Error| internal("an input could not be made", error.to_string());
    if narrow {
        // Ids, positions and masks are far from the limits of 32 bits.
        let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
        return Ok(Tensor::from_array((shape, values)).map_err(failed)?.into());
    }
    Ok(Tensor::from_array((shape, values)).map_err(failed)?.into())
}

fn floats(output: &DynValue) -> Result<Vec<f32>, PredictError> {
    if let Ok((_, values)) = output.try_extract_tensor::<f32>() {
        return Ok(values.to_vec());
    }
    let halves = output.try_extract_tensor::<f16>();
    let (_, values) = halves
        .map_err(|error| internal("the model's output holds no floats", error.to_string()))?;
    Ok(values.iter().map(|value| value.to_f32()).collect())
}

/// One vector of a row's tokens'.
fn pooled<'v>(
    vectors: impl Iterator<Item = &'v [f32]>,
    width: usize,
    tokens: usize,
    pooling: Pooling,
) -> Vec<f32> {
    let mut vectors = vectors;
    match pooling {
        Pooling::Cls => vectors.next().unwrap_or_default().to_vec(),
        Pooling::Last => vectors.last().unwrap_or_default().to_vec(),
        Pooling::Max => {
            let mut pooled = vec![f32::NEG_INFINITY; width];
            for vector in vectors {
                for (pooled, value) in pooled.iter_mut().zip(vector) {
                    *pooled = pooled.max(*value);
                }
            }
            pooled
        }
        Pooling::Mean | Pooling::MeanSqrtLen | Pooling::WeightedMean => {
            let (mut pooled, tokens) = (vec![0.0; width], tokens.max(1) as f32);
            for (place, vector) in (1_u32..).zip(vectors) {
                let weight = match pooling {
                    Pooling::WeightedMean => place as f32,
                    _ => 1.0,
                };
                for (pooled, value) in pooled.iter_mut().zip(vector) {
                    *pooled += weight * value;
                }
            }
            let total = match pooling {
                Pooling::MeanSqrtLen => tokens.sqrt(),
                Pooling::WeightedMean => tokens * (tokens + 1.0) / 2.0,
                _ => tokens,
            };
            for value in &mut pooled {
                *value /= total;
            }
            pooled
        }
    }
}

fn activated(numbers: &[f32], activation: Activation) -> Vec<f32> {
    match activation {
        Activation::None => numbers.to_vec(),
        Activation::Sigmoid => numbers
            .iter()
            .map(|number| 1.0 / (1.0 + (-number).exp()))
            .collect(),
        Activation::Softmax => {
            let highest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = numbers
                .iter()
                .map(|number| (number - highest).exp())
                .collect();
            let total: f32 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / total).collect()
        }
    }
}

/// The weight of each term: ln(1 + what is positive), the largest over all tokens (SPLADE:
/// Formal et al., 2021).
fn weights<'v>(vectors: impl Iterator<Item = &'v [f32]>, width: usize) -> Values {
    let mut highest = vec![0.0_f32; width];
    for vector in vectors {
        for (highest, value) in highest.iter_mut().zip(vector) {
            *highest = highest.max(*value);
        }
    }
    let found = (0_u32..).zip(highest).filter(|(_, value)| 0.0 < *value);
    let (terms, numbers) = found.map(|(term, value)| (term, value.ln_1p())).unzip();
    Values { numbers, terms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_pooled_as_sentence_transformers_pools_them() {
        let vectors = [[1.0, 4.0], [3.0, 2.0], [5.0, 0.0], [7.0, -2.0]];
        let pooled = |pooling| pooled(vectors.iter().map(<[f32; 2]>::as_slice), 2, 4, pooling);
        assert_eq!(pooled(Pooling::Mean), [4.0, 1.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLen), [8.0, 2.0]);
        // (1 + 6 + 15 + 28) / 10, (4 + 4 + 0 - 8) / 10
        assert_eq!(pooled(Pooling::WeightedMean), [5.0, 0.0]);
        assert_eq!(pooled(Pooling::Cls), [1.0, 4.0]);
        assert_eq!(pooled(Pooling::Last), [7.0, -2.0]);
        assert_eq!(pooled(Pooling::Max), [7.0, 4.0]);
    }
}
