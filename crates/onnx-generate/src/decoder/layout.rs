//! Checks that a graph is the decoder that its files describe, before the first request uses it.

use volley_onnx_runtime::ort::session::Session;
use volley_onnx_runtime::ort::value::{Outlet, TensorElementType, ValueType};
use volley_types::PredictError;

use super::trim::LAST;
use crate::model::{ModelFiles, Names};

/// The supported types of keys, values and logits.
const FLOATS: [TensorElementType; 3] = [
    TensorElementType::Float32,
    TensorElementType::Float16,
    TensorElementType::Bfloat16,
];

/// Properties that only the graph declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GraphLayout {
    /// Whether the model has an input of positions.
    pub(super) positions: bool,
    /// The type of keys and values.
    pub(super) cache: TensorElementType,
    /// The type of logits.
    pub(super) logits: TensorElementType,
    /// Number of dimensions of the logits, if the graph declares it.
    pub(super) logits_rank: Option<usize>,
    /// Inputs that only some exports have.
    pub(super) extras: Extras,
    /// Whether the graph has the input of positions with logits ([`trim`](super::trim)).
    pub(super) chooses: bool,
}

/// Additional inputs of some exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Whether the graph has [`SWITCH`], because two graphs were merged into one.
    pub(super) switch: bool,
    /// The input for the number of positions with logits.
    pub(super) kept: Option<LogitsInput>,
}

/// The input for the number of positions with logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogitsInput {
    pub(super) name: &'static str,
    /// 0 for a scalar, 1 for a list of one number.
    pub(super) rank: usize,
}

/// The input of a merged graph that is true if there is a past.
pub(super) const SWITCH: &str = "use_cache_branch";
/// Names of the input for the number of positions with logits.
const KEPT: [&str; 2] = ["num_logits_to_keep", "logits_to_keep"];

impl Extras {
    fn read(session: &Session) -> Result<Self, PredictError> {
        let input = |name: &str| {
            let mut inputs = session.inputs().iter();
            inputs.find(|input| input.name() == name).map(Outlet::dtype)
        };
        if let Some(switch) = input(SWITCH) {
            expect(SWITCH, switch, &[TensorElementType::Bool])?;
        }
        let kept = KEPT.into_iter().find_map(|name| Some((name, input(name)?)));
        let kept = kept.map(|(name, kept)| {
            expect(name, kept, &[TensorElementType::Int64])?;
            let rank = kept.tensor_shape().map_or(0, |shape| shape.len()).min(1);
            Ok::<_, PredictError>(LogitsInput { name, rank })
        });
        Ok(Self {
            switch: input(SWITCH).is_some(),
            kept: kept.transpose()?,
        })
    }

    fn count(self) -> usize {
        usize::from(self.switch) + usize::from(self.kept.is_some())
    }
}

impl GraphLayout {
    /// Bytes of one element of the KV cache.
    pub(super) fn value_bytes(self) -> usize {
        if self.cache == TensorElementType::Float32 {
            4
        } else {
            2
        }
    }
}

/// Checks names and types of inputs and outputs.
///
/// # Errors
/// `InvalidInput` with the input or output that is missing, unknown, or has the wrong type.
pub(super) fn check(session: &Session, files: &ModelFiles) -> Result<GraphLayout, PredictError> {
    check_with(session, files, true)
}

/// As [`check`], for a separate graph that prefills whole prompts and has no past.
///
/// # Errors
/// As [`check`], and when the types of the two graphs differ.
pub(super) fn check_prompts(
    session: &Session,
    files: &ModelFiles,
    steps: GraphLayout,
) -> Result<GraphLayout, PredictError> {
    let layout = check_with(session, files, false)?;
    if (layout.cache, layout.logits) != (steps.cache, steps.logits) {
        return Err(PredictError::invalid(
            "the prefill graph and the decode graph return different types",
        ));
    }
    Ok(layout)
}

fn check_with(
    session: &Session,
    files: &ModelFiles,
    past: bool,
) -> Result<GraphLayout, PredictError> {
    let names = &files.names;
    let positions = session
        .inputs()
        .iter()
        .any(|input| input.name() == names.position_ids);
    let tokens = [&names.input_ids, &names.attention_mask];
    let positioned = positions.then_some(&names.position_ids);
    for name in tokens.into_iter().chain(positioned) {
        expect(
            name,
            &find(session.inputs(), name)?,
            &[TensorElementType::Int64],
        )?;
    }
    let cache = cache_type(session, names, past)?;
    let logits = find(session.outputs(), &names.logits)?;
    let logits_type = expect(&names.logits, &logits, &FLOATS)?;
    let last = logits
        .tensor_shape()
        .and_then(|shape| shape.last().copied());
    if last.is_some_and(|last| 0 <= last && usize::try_from(last) != Ok(files.vocabulary)) {
        return Err(PredictError::invalid(format!(
            "{}: 'vocab_size' is not the size of the model's logits",
            files.described_by
        )));
    }
    let extras = Extras::read(session)?;
    let pasts = if past { names.caches.len() } else { 0 };
    let chooses = session.inputs().iter().any(|input| input.name() == LAST);
    let known = pasts + 2 + [positions, chooses].map(usize::from).iter().sum::<usize>();
    let known = known + extras.count();
    if session.inputs().len() != known || (files.shared && 0 < extras.count()) {
        return Err(PredictError::invalid(format!(
            "the model does not have the inputs of a decoder with a KV cache as {} describes it: \
             token ids, an attention mask, positions, and past keys and values",
            files.described_by
        )));
    }
    Ok(GraphLayout {
        positions,
        cache,
        logits: logits_type,
        logits_rank: logits.tensor_shape().map(|shape| shape.len()),
        extras,
        chooses,
    })
}

/// The common type of all keys and values: of the outputs, and with `past` also of the inputs.
fn cache_type(
    session: &Session,
    names: &Names,
    past: bool,
) -> Result<TensorElementType, PredictError> {
    let mut cache = None;
    for (taken, given) in &names.caches {
        let outlets = [
            (past, taken, session.inputs()),
            (true, given, session.outputs()),
        ];
        for (_, name, outlets) in outlets.into_iter().filter(|(there, ..)| *there) {
            let wanted = cache.map_or(FLOATS.to_vec(), |cache| vec![cache]);
            cache = Some(expect(name, &find(outlets, name)?, &wanted)?);
        }
    }
    Ok(cache.unwrap_or(TensorElementType::Float32))
}

fn find(outlets: &[Outlet], name: &str) -> Result<ValueType, PredictError> {
    let outlet = outlets.iter().find(|outlet| outlet.name() == name);
    outlet.map(|outlet| outlet.dtype().clone()).ok_or_else(|| {
        PredictError::invalid(format!(
            "the model has no input or output '{name}', which a decoder of this layout needs"
        ))
    })
}

fn expect(
    name: &str,
    found: &ValueType,
    wanted: &[TensorElementType],
) -> Result<TensorElementType, PredictError> {
    if let Some(ty) = found.tensor_type()
        && wanted.contains(&ty)
    {
        return Ok(ty);
    }
    let wanted: Vec<_> = wanted.iter().map(ToString::to_string).collect();
    Err(PredictError::invalid(format!(
        "the model's '{name}' is {found}, but only {} is served; export the model with such \
         inputs and outputs (its weights may be int4 or int8)",
        wanted.join(" or ")
    )))
}
