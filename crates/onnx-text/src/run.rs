//! Runs a session on rows of tokens, padded to the longest row, and returns the values of each row.

use std::borrow::Cow;
use std::sync::Arc;

use half::{bf16, f16};
use volley_onnx_runtime::ort::session::{Session, SessionInputValue};
use volley_onnx_runtime::ort::value::{
    Outlet, Tensor, TensorElementType, TensorValueTypeMarker, Value,
};
use volley_types::{ErrorCode, ErrorOrigin, PredictError, Task};

use super::binding_cache::{BindingCache, Output};
use super::padding::{GraphInput, InputKind, Padding};
use super::pooling::{Readout, Values};
use super::settings::EncoderSettings;
use super::texts::Tokens;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::session::SharedRunOptions;

/// A session of a text encoder.
pub(super) struct Runner {
    // Bindings refer to the session, so they are dropped first.
    kept: BindingCache,
    session: Session,
    inputs: Vec<GraphInput>,
    output: Output,
    reading: Readout,
    /// The output with vectors of single tokens, if the main output does not have them.
    each: Option<(String, Readout)>,
    padding: Padding,
    place: ExecutionDevice,
}

/// Names of outputs with vectors of texts or tokens, in order of preference.
const OUTPUTS: [&str; 4] = [
    "sentence_embedding",
    "logits",
    "last_hidden_state",
    "token_embeddings",
];

impl Runner {
    /// Creates a runner, and checks that the graph is an encoder for its task.
    ///
    /// # Errors
    /// `InvalidInput` with the missing or unknown input or output.
    pub(super) fn new(
        session: Session,
        place: ExecutionDevice,
        settings: &EncoderSettings,
    ) -> Result<Self, PredictError> {
        let inputs = inputs_of(&session)?;
        let output = output_of(&session, settings.task)?;
        let shape = output
            .dtype()
            .tensor_shape()
            .ok_or_else(|| PredictError::invalid("the model's output is not a tensor"))?;
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
        let reading = Readout {
            pooled,
            width,
            task: settings.task,
            pooling: settings.pooling,
            activation: settings.activation,
            weighing: settings.weighing,
        };
        let each = match settings.task == Task::Embed && pooled {
            true => each_of(&session, settings, reading),
            false => None,
        };
        let output = Output {
            name: output.name().to_owned(),
            element: output
                .dtype()
                .tensor_type()
                .unwrap_or(TensorElementType::Float32),
            pooled,
            width,
        };
        Ok(Self {
            kept: BindingCache::default(),
            inputs,
            output,
            reading,
            each,
            padding: Padding {
                token: settings.pad_token,
                first_position: u32::try_from(settings.first_position).unwrap_or(0),
            },
            place,
            session,
        })
    }

    /// Runs one token, so that the first request finds the model warm, and a model that cannot run
    /// is not served.
    ///
    /// # Errors
    /// `InvalidInput` when the run fails.
    pub(super) fn warm_up(&mut self, watch: &mut RunTimeout) -> Result<(), PredictError> {
        let token = self.one_token();
        self.run(&[&token], watch).map_err(session::cannot_run)?;
        Ok(())
    }

    fn one_token(&self) -> Tokens {
        Tokens {
            ids: vec![self.padding.token],
            types: vec![0],
            ..Tokens::default()
        }
    }

    /// Number of dimensions, labels or terms.
    pub(super) fn width(&self) -> usize {
        self.reading.width
    }

    /// Whether the graph returns vectors of single tokens.
    pub(super) fn has_token_vectors(&self) -> bool {
        !self.reading.pooled || self.each.is_some()
    }

    /// Runs the model on `rows`. If the token vectors of some rows are in another output, two runs
    /// are needed.
    ///
    /// # Errors
    /// `Internal` when the run fails; `TooLarge` when it lacks memory; `DeadlineExceeded` when
    /// `watch` stopped it.
    pub(super) fn run(
        &mut self,
        rows: &[&Tokens],
        watch: &mut RunTimeout,
    ) -> Result<Vec<Values>, PredictError> {
        let (each, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.each);
        if self.each.is_none() || each.is_empty() {
            return self.run_all(rows, watch);
        }
        let mut apart = self.run_all(&each, watch)?.into_iter();
        let mut usual = match others.is_empty() {
            true => Vec::new().into_iter(),
            false => self.run_all(&others, watch)?.into_iter(),
        };
        let values = rows.iter().map(|row| match row.each {
            true => apart.next().unwrap_or_default(),
            false => usual.next().unwrap_or_default(),
        });
        Ok(values.collect())
    }

    /// Runs rows of which all or none need token vectors.
    fn run_all(
        &mut self,
        rows: &[&Tokens],
        watch: &mut RunTimeout,
    ) -> Result<Vec<Values>, PredictError> {
        let ran = self.run_with(rows, SharedRunOptions::new(), watch);
        if matches!(&ran, Err(error) if error.code == ErrorCode::TooLarge) {
            let (token, options) = (self.one_token(), session::shrinking(self.place));
            if let Err(error) = self.run_with(&[&token], options, watch) {
                tracing::warn!(error = error.chain(), "session memory not released");
            }
        }
        ran
    }

    fn run_with(
        &mut self,
        rows: &[&Tokens],
        options: volley_onnx_runtime::ort::Result<SharedRunOptions>,
        watch: &mut RunTimeout,
    ) -> Result<Vec<Values>, PredictError> {
        let options =
            options.map_err(|error| internal("a run could not be set up", error.to_string()))?;
        let options = Arc::new(options);
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let Some(bound) = self.run_bound(rows, longest, &options, watch)? else {
            return self.run_unbound(rows, longest, &options, watch);
        };
        match bound {
            Err(error) if error.code == ErrorCode::Internal => {
                // A graph whose output has another shape than it declares still runs without
                // bindings.
                let values = self.run_unbound(rows, longest, &options, watch)?;
                let output = self.output.name.as_str();
                tracing::warn!(
                    output,
                    error = error.chain(),
                    "output binding failed; continuing without bindings"
                );
                self.kept.give_up();
                Ok(values)
            }
            bound => bound,
        }
    }

    /// Runs with cached tensors; `None` if the shape has no binding. A GPU never has bindings,
    /// because a bound input is copied to the device when it is bound.
    fn run_bound(
        &mut self,
        rows: &[&Tokens],
        longest: usize,
        options: &Arc<SharedRunOptions>,
        watch: &mut RunTimeout,
    ) -> Result<Option<Result<Vec<Values>, PredictError>>, PredictError> {
        if self.place != ExecutionDevice::Host || self.is_apart(rows) {
            return Ok(None);
        }
        let (session, shape) = (&mut self.session, [rows.len(), longest]);
        let kept = self.kept.find(session, &self.inputs, &self.output, shape)?;
        let Some(bound) = kept else {
            return Ok(None);
        };
        bound.fill(self.padding, &self.inputs, rows);
        let ran = watch.over(options, |options| {
            let ran = session.run_binding_with_options(&bound.binding, options);
            ran.map(drop).map_err(|error| refused(&error.to_string()))
        });
        let read = |()| self.reading.all(rows, longest, &floats(&bound.output)?);
        Ok(Some(ran.and_then(read)))
    }

    fn run_unbound(
        &mut self,
        rows: &[&Tokens],
        longest: usize,
        options: &Arc<SharedRunOptions>,
        watch: &mut RunTimeout,
    ) -> Result<Vec<Values>, PredictError> {
        let apart = self.is_apart(rows);
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for input in &self.inputs {
            inputs.push((&input.name, tensor(self.padding, input, rows, longest)?));
        }
        let session = &mut self.session;
        let outputs = watch.over(options, |options| {
            session
                .run_with_options(inputs, options)
                .map_err(|error| refused(&error.to_string()))
        })?;
        let (name, reading) = match &self.each {
            Some((name, reading)) if apart => (name, reading),
            _ => (&self.output.name, &self.reading),
        };
        let output = outputs
            .get(name.as_str())
            .ok_or_else(|| internal("the model returned no output", name.clone()))?;
        reading.all(rows, longest, &floats(output)?)
    }

    /// Whether the values of `rows` are in the output of token vectors.
    fn is_apart(&self, rows: &[&Tokens]) -> bool {
        self.each.is_some() && rows.first().is_some_and(|row| row.each)
    }
}

/// The output with a vector for each token, in addition to one with a vector for each text.
fn each_of(
    session: &Session,
    settings: &EncoderSettings,
    usual: Readout,
) -> Option<(String, Readout)> {
    let found = OUTPUTS.iter().skip(2).find_map(|name| {
        let mut outputs = session.outputs().iter();
        outputs.find(|output| output.name() == *name)
    })?;
    let shape = found
        .dtype()
        .tensor_shape()
        .filter(|shape| shape.len() == 3)?;
    let last = shape.last().and_then(|last| usize::try_from(*last).ok());
    let reading = Readout {
        pooled: false,
        width: last.or(settings.hidden_size).filter(|width| *width != 0)?,
        ..usual
    };
    Some((found.name().to_owned(), reading))
}

fn inputs_of(session: &Session) -> Result<Vec<GraphInput>, PredictError> {
    let inputs = session.inputs().iter().map(|input| {
        let name = input.name().to_owned();
        let kind = match name.as_str() {
            "input_ids" => InputKind::Ids,
            "attention_mask" => InputKind::Mask,
            "token_type_ids" => InputKind::Types,
            "position_ids" => InputKind::Positions,
            _ => {
                return Err(PredictError::invalid(format!(
                    "the model's input '{name}' is not an input of a text encoder"
                )));
            }
        };
        let narrow = match input.dtype().tensor_type() {
            Some(TensorElementType::Int64) => false,
            Some(TensorElementType::Int32) => true,
            _ => {
                return Err(PredictError::invalid(format!(
                    "the model's input '{name}' does not have the type int32 or int64"
                )));
            }
        };
        Ok(GraphInput { name, kind, narrow })
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

/// Whether an output of this width fits a task; `pooled` means one vector for each text instead of
/// one for each token.
fn fits(task: Task, pooled: bool, width: usize) -> bool {
    match task {
        Task::ClassifyTokens | Task::EncodeSparse => width != 0 && !pooled,
        Task::Rerank => width == 1 && pooled,
        Task::Classify => width != 0 && pooled,
        _ => width != 0,
    }
}

/// Rejects settings of the directory that the graph does not fulfil.
fn check(settings: &EncoderSettings, pooled: bool, width: usize) -> Result<(), PredictError> {
    if let Some(module) = &settings.beyond
        && matches!(settings.task, Task::Embed | Task::EncodeSparse)
        && !pooled
    {
        let mend = match settings.task {
            Task::Embed => {
                "which the graph does not contain; export the model with an output \
                 'sentence_embedding'"
            }
            _ => "which is not supported",
        };
        return Err(PredictError::invalid(format!(
            "modules.json has a module '{module}', {mend}"
        )));
    }
    let classifies = matches!(settings.task, Task::Classify | Task::ClassifyTokens);
    let labels = settings.labels.len();
    if classifies && labels != 0 && labels != width {
        return Err(PredictError::invalid(format!(
            "the model returns {width} numbers but has {labels} labels; 'id2label' of \
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
    padding: Padding,
    input: &GraphInput,
    rows: &[&Tokens],
    longest: usize,
) -> Result<SessionInputValue<'static>, PredictError> {
    let failed = |error: volley_onnx_runtime::ort::Error| {
        internal("an input could not be made", error.to_string())
    };
    let (shape, count) = ([rows.len(), longest], rows.len() * longest);
    if input.narrow {
        let mut values = vec![0_i32; count];
        padding.fill(rows, input.kind, u32::cast_signed, &mut values);
        return Ok(Tensor::from_array((shape, values)).map_err(failed)?.into());
    }
    let mut values = vec![0_i64; count];
    padding.fill(rows, input.kind, i64::from, &mut values);
    Ok(Tensor::from_array((shape, values)).map_err(failed)?.into())
}

/// The numbers of an output; borrowed if they have 32 bits.
fn floats<M: TensorValueTypeMarker + ?Sized>(
    output: &Value<M>,
) -> Result<Cow<'_, [f32]>, PredictError> {
    if let Ok((_, values)) = output.try_extract_tensor::<f32>() {
        return Ok(values.into());
    }
    if let Ok((_, values)) = output.try_extract_tensor::<bf16>() {
        return Ok(values.iter().map(|value| value.to_f32()).collect());
    }
    let halves = output.try_extract_tensor::<f16>();
    let (_, values) = halves.map_err(|error| {
        internal(
            "the model's output does not contain floats",
            error.to_string(),
        )
    })?;
    Ok(values.iter().map(|value| value.to_f32()).collect())
}
