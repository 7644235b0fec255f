//! Constrains answers to a format: a JSON schema, a regular expression or a grammar. Before each
//! token, `llguidance` computes the tokens that the format allows, and the others are masked.

mod form;
mod gbnf;

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use volley_types::{ErrorOrigin, PredictError};

use volley_tokens::token_bytes::TokenBytes;
use volley_tool_calls::{CallStyle, MarkIds};

pub use self::form::{ConstraintForm, is_guided, short};

/// Maximum length of a reason in an error message, in characters.
const MAX_REFUSAL: usize = 300;

/// Creates the constraints of one model. The first one builds the data structures of the
/// vocabulary.
#[derive(Default)]
pub struct Constraints(OnceLock<Result<ParserFactory, String>>);

impl Constraints {
    /// Creates a constraint for `form`. Calls are written in `style`; `mark` returns the ids of
    /// their special tokens. `spellings` and `eos` must be the same in every call, because only the
    /// first one is used.
    ///
    /// # Errors
    /// `InvalidInput` with the reason if the format is not supported, or if the model's vocabulary
    /// does not support constraints.
    pub fn make(
        &self,
        form: &ConstraintForm,
        (style, mark): (CallStyle, MarkIds<'_>),
        spellings: &TokenBytes,
        eos: Option<u32>,
    ) -> Result<Constraint, PredictError> {
        let factory = self.0.get_or_init(|| factory(spellings, eos));
        let factory = factory.as_ref().map_err(|error| {
            PredictError::invalid("this model's vocabulary does not support constrained answers")
                .with_source(error.clone())
        })?;
        let grammar = match form {
            ConstraintForm::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            ConstraintForm::Regex(expression) => TopLevelGrammar::from_regex(expression),
            ConstraintForm::Grammar(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            ConstraintForm::Calls { functions, most } => TopLevelGrammar::from_lark(
                volley_tool_calls::grammar(functions, *most, style, mark),
            ),
        };
        let parser = factory.create_parser(grammar).map_err(|error| {
            let reason: String = error.to_string().chars().take(MAX_REFUSAL).collect();
            PredictError::invalid(format!("the response format is not supported: {reason}"))
        })?;
        Ok(Constraint {
            matcher: Matcher::new(Ok(parser)),
            allowed: Vec::new(),
        })
    }
}

fn factory(spellings: &TokenBytes, eos: Option<u32>) -> Result<ParserFactory, String> {
    let size = u32::try_from(spellings.all().len()).map_err(|error| error.to_string())?;
    let eos = eos.ok_or("the model has no end-of-sequence token")?;
    let trie = TokTrie::from(&TokRxInfo::new(size, eos), spellings.all());
    let environment = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory =
        ParserFactory::new_simple(&(environment as _)).map_err(|error| error.to_string())?;
    factory.quiet();
    // The errors are for the caller, who already has the grammar.
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// The state of one constrained answer.
pub struct Constraint {
    matcher: Matcher,
    /// Logits with those of disallowed tokens masked. The buffer is reused between steps.
    allowed: Vec<f32>,
}

impl Constraint {
    /// Creates a constraint with the same format for another answer, at its beginning.
    pub fn again(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            allowed: Vec::new(),
        }
    }

    /// Returns `logits` with those of disallowed tokens set to negative infinity. Both have one
    /// value per token of the vocabulary.
    ///
    /// # Errors
    /// `InvalidInput` if the format exceeds the work limits of `llguidance`.
    pub fn allow(&mut self, logits: &[f32]) -> Result<&[f32], PredictError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(too_hard)?;
        self.allowed.clear();
        self.allowed.resize(logits.len(), f32::NEG_INFINITY);
        let allowed = &mut self.allowed;
        mask.iter_set_entries(|id| {
            if let (Some(place), Some(logit)) = (allowed.get_mut(id), logits.get(id)) {
                *place = *logit;
            }
        });
        Ok(&self.allowed)
    }

    /// Advances by the selected token. Returns true if the answer is complete, so that no token may
    /// follow.
    ///
    /// # Errors
    /// Those of [`Constraint::allow`].
    pub fn take(&mut self, token: u32) -> Result<bool, PredictError> {
        self.matcher.consume_token(token).map_err(too_hard)?;
        Ok(self.matcher.is_stopped())
    }
}

fn too_hard(error: impl std::fmt::Display) -> PredictError {
    PredictError::invalid("the response format is too complex; simplify it")
        .with_source(error.to_string())
        .with_origin(ErrorOrigin::Model)
}
