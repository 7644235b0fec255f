//! Converts the values of a model to the columns of its task.

use std::sync::Arc;

use arrow_array::builder::{
    Float32Builder, ListBuilder, StringBuilder, StructBuilder, UInt32Builder,
};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use icu_properties::CodePointMapData;
use icu_properties::props::Script;
use volley_types::signature::entity_fields;
use volley_types::{ErrorCode, Parameters, PredictError, Signature, Task};

use super::parameters::EncodeParameters;
use super::pooling::{Values, activated};
use super::settings::EncoderSettings;
use super::texts::{Texts, TokenSpan, Tokens};
use volley_model_directory::overrides::{Activation, DIMENSIONS};
use volley_onnx_runtime::failure::internal;

/// Maximum bytes of the token vectors of one text.
const TOKEN_VECTOR_BYTES: usize = 8 << 20;

/// Builds the columns of one model.
pub(super) struct ColumnBuilder {
    task: Task,
    normalize: bool,
    activation: Activation,
    labels: Vec<String>,
    /// Names of the terms, for the task `encode_sparse`.
    terms: Vec<String>,
    width: usize,
    /// Whether the graph returns vectors of single tokens.
    has_token_vectors: bool,
    /// Default number of dimensions of a vector.
    usual: usize,
}

impl ColumnBuilder {
    /// Creates a builder for vectors, or rows of scores, of `width` numbers. `defaults` may reduce
    /// the number of dimensions.
    ///
    /// # Errors
    /// As [`ColumnBuilder::dimensions`].
    pub(super) fn new(
        settings: &EncoderSettings,
        texts: &Texts,
        width: usize,
        has_token_vectors: bool,
        defaults: &Parameters,
    ) -> Result<Self, PredictError> {
        let ids = 0..u32::try_from(width).unwrap_or(u32::MAX);
        let terms = if settings.task == Task::EncodeSparse {
            ids.map(|id| texts.term(id).unwrap_or_default()).collect()
        } else {
            Vec::new()
        };
        let mut shape = Self {
            task: settings.task,
            normalize: settings.normalize,
            activation: settings.activation,
            labels: settings.labels.clone(),
            terms,
            width,
            has_token_vectors,
            usual: width,
        };
        shape.usual = shape.dimensions(defaults)?.unwrap_or(width);
        Ok(shape)
    }

    /// Default number of dimensions of a vector.
    pub(super) fn usual(&self) -> usize {
        self.usual
    }

    /// Reads the parameters of a request.
    ///
    /// # Errors
    /// As [`EncodeParameters::read`] and [`ColumnBuilder::dimensions`]; `InvalidInput` for token
    /// vectors that the model does not return.
    pub(super) fn wanted(&self, parameters: &Parameters) -> Result<EncodeParameters, PredictError> {
        let wanted = EncodeParameters {
            dimensions: self.dimensions(parameters)?,
            ..EncodeParameters::read(parameters, self.task)?
        };
        if wanted.token_vectors && !self.has_token_vectors {
            return Err(PredictError::invalid(
                "this model's graph returns one vector for each text and none for its tokens; \
                 export it with an output 'last_hidden_state' or 'token_embeddings'",
            ));
        }
        if wanted.token_vectors && (wanted.dimensions.is_some() || wanted.normalize.is_some()) {
            return Err(PredictError::invalid(
                "parameters 'dimensions' and 'normalize' do not apply to vectors of single tokens",
            ));
        }
        Ok(wanted)
    }

    /// Reads the parameter `dimensions`, which truncates vectors (Matryoshka embeddings: Kusupati
    /// et al., 2022).
    ///
    /// # Errors
    /// `InvalidInput` when the task has no vectors, or the number is 0 or exceeds the width.
    fn dimensions(&self, parameters: &Parameters) -> Result<Option<usize>, PredictError> {
        let Some(wanted) = parameters.unsigned(DIMENSIONS)? else {
            return Ok(None);
        };
        match usize::try_from(wanted) {
            Ok(wanted) if self.task == Task::Embed && (1..=self.width).contains(&wanted) => {
                Ok(Some(wanted))
            }
            _ if self.task != Task::Embed => Err(PredictError::invalid(
                "parameter 'dimensions' needs an embedding model",
            )),
            _ => Err(PredictError::invalid(format!(
                "parameter 'dimensions' must be 1 to {}",
                self.width
            ))),
        }
    }

    /// Rejects texts whose token vectors exceed the size of one answer row.
    ///
    /// # Errors
    /// `TooLarge` with the maximum number of tokens.
    pub(super) fn check_room(&self, tokens: &[Tokens]) -> Result<(), PredictError> {
        let most = TOKEN_VECTOR_BYTES / (4 * self.width.max(1));
        if tokens.iter().all(|row| row.ids.len() <= most) {
            return Ok(());
        }
        let message = format!(
            "a text is too long for vectors of single tokens: the limit is {most} tokens; shorten \
             it"
        );
        Err(PredictError::new(ErrorCode::TooLarge, message))
    }

    /// Builds the answer: one row for each of `tokens`.
    ///
    /// # Errors
    /// `Internal` when the values do not fit the task's schema.
    pub(super) fn columns(
        &self,
        tokens: &[Tokens],
        mut values: Vec<Values>,
        wanted: EncodeParameters,
    ) -> Result<RecordBatch, PredictError> {
        if matches!(self.task, Task::Rerank | Task::Classify) {
            let activation = self.activation(wanted);
            for row in &mut values {
                row.numbers = activated(&row.numbers, activation);
            }
        }
        let (signature, mut columns) = match self.task {
            Task::Rerank => {
                let scores = values.iter().map(|values| values.numbers.first().copied());
                let scores: Float32Array = scores.map(|score| Some(score.unwrap_or(0.0))).collect();
                (Signature::rerank(), vec![Arc::new(scores) as ArrayRef])
            }
            Task::Classify => (Signature::classify(), self.labelled(&values)),
            Task::ClassifyTokens => {
                let entities = self.entities(tokens, &values);
                (Signature::classify_tokens(), vec![entities])
            }
            Task::EncodeSparse => (
                Signature::encode_sparse(),
                self.weighted(&values, wanted.term_ids),
            ),
            _ => {
                let vectors = self.vectors(values, wanted);
                (Signature::embed(self.usual), vec![vectors])
            }
        };
        let counts = tokens.iter().map(|row| row.ids.len() as u32);
        columns.push(Arc::new(UInt32Array::from_iter_values(counts)));
        RecordBatch::try_new(signature.output, columns)
            .map_err(|error| internal("the answer does not fit its schema", error.to_string()))
    }

    /// The activation function of scores.
    fn activation(&self, wanted: EncodeParameters) -> Activation {
        match (wanted.raw_scores, self.activation) {
            (Some(true), _) => Activation::None,
            // Explicit `raw_scores = false` on a model with raw scores requests scores from 0 to 1.
            (Some(false), Activation::None) => Activation::Sigmoid,
            (_, own) => own,
        }
    }

    fn vectors(&self, values: Vec<Values>, wanted: EncodeParameters) -> ArrayRef {
        let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item(DataType::Float32));
        for mut row in values {
            if wanted.token_vectors {
                lists.values().append_slice(&row.numbers);
                lists.append(true);
                continue;
            }
            row.numbers
                .truncate(wanted.dimensions.unwrap_or(self.usual));
            if wanted.normalize.unwrap_or(self.normalize) {
                normalize(&mut row.numbers);
            }
            lists.values().append_slice(&row.numbers);
            lists.append(true);
        }
        Arc::new(lists.finish())
    }

    /// Labels and scores, in descending order of score.
    fn labelled(&self, values: &[Values]) -> Vec<ArrayRef> {
        let rows = values.iter().map(|row| {
            let labels = self.labels.iter().map(String::as_str);
            labels.zip(row.numbers.iter().copied()).collect()
        });
        ranked(rows)
    }

    /// Terms and weights, in descending order of weight.
    fn weighted(&self, values: &[Values], by_id: bool) -> Vec<ArrayRef> {
        if by_id {
            let named = values.iter().map(|row| {
                let ids = row.terms.iter().map(u32::to_string);
                ids.collect::<Vec<_>>()
            });
            let named: Vec<_> = named.collect();
            let rows = named.iter().zip(values).map(|(ids, row)| {
                let ids = ids.iter().map(String::as_str);
                ids.zip(row.numbers.iter().copied()).collect()
            });
            return ranked(rows);
        }
        let rows = values.iter().map(|row| {
            let terms = row.terms.iter().map(|term| {
                let name = self.terms.get(*term as usize);
                name.map_or("", String::as_str)
            });
            let pairs = terms.zip(row.numbers.iter().copied());
            pairs.filter(|(term, _)| !term.is_empty()).collect()
        });
        ranked(rows)
    }

    fn entities(&self, tokens: &[Tokens], values: &[Values]) -> ArrayRef {
        let fields = entity_fields();
        let builder = StructBuilder::new(
            fields.clone(),
            vec![
                Box::new(StringBuilder::new()),
                Box::new(Float32Builder::new()),
                Box::new(StringBuilder::new()),
                Box::new(UInt32Builder::new()),
                Box::new(UInt32Builder::new()),
            ],
        );
        let mut lists = ListBuilder::new(builder).with_field(item(DataType::Struct(fields)));
        for (row, values) in tokens.iter().zip(values) {
            for entity in entities(row, &values.numbers, &self.labels) {
                append(lists.values(), &entity);
            }
            lists.append(true);
        }
        Arc::new(lists.finish())
    }
}

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

/// Two list columns, names and numbers, in descending order of number.
fn ranked<'n>(rows: impl Iterator<Item = Vec<(&'n str, f32)>>) -> Vec<ArrayRef> {
    let mut names = ListBuilder::new(StringBuilder::new()).with_field(item(DataType::Utf8));
    let mut numbers = ListBuilder::new(Float32Builder::new()).with_field(item(DataType::Float32));
    for mut row in rows {
        row.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, number) in row {
            names.values().append_value(name);
            numbers.values().append_value(number);
        }
        names.append(true);
        numbers.append(true);
    }
    vec![Arc::new(names.finish()), Arc::new(numbers.finish())]
}

/// Vectors shorter than this are not normalized. PyTorch uses the same epsilon.
const SHORTEST: f32 = 1e-12;

fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if SHORTEST < length {
        for value in vector {
            *value /= length;
        }
    }
}

/// A labelled span of a text, in characters.
#[derive(Clone, Debug, PartialEq)]
struct Entity {
    label: String,
    score: f32,
    text: String,
    start: usize,
    end: usize,
}

#[expect(
    clippy::expect_used,
    reason = "the builders are made from the fields of an entity"
)]
fn append(row: &mut StructBuilder, entity: &Entity) {
    const LISTED: &str = "the builders are those of an entity's fields";
    let texts = [(0, &entity.label), (2, &entity.text)];
    for (index, text) in texts {
        let column = row.field_builder::<StringBuilder>(index).expect(LISTED);
        column.append_value(text);
    }
    let score = row.field_builder::<Float32Builder>(1).expect(LISTED);
    score.append_value(entity.score);
    for (index, place) in [(3, entity.start), (4, entity.end)] {
        let column = row.field_builder::<UInt32Builder>(index).expect(LISTED);
        column.append_value(u32::try_from(place).unwrap_or(u32::MAX));
    }
    row.append(true);
}

/// Merges neighbouring tokens with the same label into spans. `B-` starts a new span, except inside
/// a word of the current span. `O` is no span. The score of a span is the mean of its tokens'
/// scores.
fn entities(row: &Tokens, numbers: &[f32], labels: &[String]) -> Vec<Entity> {
    let mut found: Vec<OpenSpan> = Vec::new();
    let mut open = false;
    let scores = numbers.chunks(labels.len().max(1));
    let characters: Vec<char> = row.text.chars().collect();
    for (place, scores) in row.places.iter().zip(scores) {
        let best = scores
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .and_then(|(index, score)| Some((labels.get(index)?, *score)));
        let (Some(place), Some((label, score))) = (*place, best) else {
            continue;
        };
        let (begins, name) = match label.split_once('-') {
            Some(("B" | "S" | "U", name)) => (true, name),
            Some(("I" | "E" | "L", name)) => (false, name),
            _ => (false, label.as_str()),
        };
        if name == "O" {
            open = false;
            continue;
        }
        let first = characters.get(place.start).copied();
        match found.last_mut() {
            Some(span)
                if open
                    && span.entity.label == name
                    && (!begins || within_word(span.last, place, first)) =>
            {
                span.entity.end = place.end;
                span.entity.score += score;
                span.tokens += 1;
                span.last = place;
            }
            _ => found.push(OpenSpan {
                entity: Entity {
                    label: name.to_owned(),
                    score,
                    text: String::new(),
                    start: place.start,
                    end: place.end,
                },
                tokens: 1,
                last: place,
            }),
        }
        open = true;
    }
    let finish = |OpenSpan {
                      mut entity, tokens, ..
                  }: OpenSpan| {
        entity.score /= tokens as f32;
        let span = characters.get(entity.start..entity.end).unwrap_or_default();
        entity.text = span.iter().collect();
        entity
    };
    found.into_iter().map(finish).collect()
}

/// A span that may continue.
struct OpenSpan {
    entity: Entity,
    tokens: u32,
    last: TokenSpan,
}

/// Whether a token with the first character `first` continues the word of the previous token. In
/// scripts without spaces a tokenizer may treat a whole sentence as a word, so there the answer is
/// no.
fn within_word(before: TokenSpan, place: TokenSpan, first: Option<char>) -> bool {
    let unspaced = [
        Script::Han,
        Script::Hiragana,
        Script::Katakana,
        Script::Thai,
        Script::Lao,
        Script::Khmer,
        Script::Myanmar,
    ];
    let script = first.map(|first| CodePointMapData::<Script>::new().get(first));
    before.end == place.start
        && before.word == place.word
        && !script.is_some_and(|script| unspaced.contains(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_one_label_are_one_entity() {
        let labels: Vec<_> = ["O", "B-PER", "I-PER", "B-LOC"].map(str::to_owned).into();
        // [CLS] Zoë Lee in Ro me [SEP]; "Rome" consists of two tokens.
        let row = Tokens {
            places: vec![
                None,
                place(0, 3, 0),
                place(4, 7, 1),
                place(8, 10, 2),
                place(11, 13, 3),
                place(13, 15, 3),
                None,
            ],
            text: "Zoë Lee in Rome".to_owned(),
            ..Tokens::default()
        };
        let best = [0, 1, 2, 0, 3, 3, 1];
        let numbers: Vec<f32> = best
            .iter()
            .flat_map(|best| (0..4).map(move |index| if index == *best { 0.7 } else { 0.1 }))
            .collect();
        let found = entities(&row, &numbers, &labels);
        let found: Vec<_> = found
            .iter()
            .map(|entity| (entity.label.as_str(), entity.text.as_str(), entity.start))
            .collect();
        assert_eq!(found, [("PER", "Zoë Lee", 0), ("LOC", "Rome", 11)]);
    }

    fn place(start: usize, end: usize, word: u32) -> Option<TokenSpan> {
        let word = Some(word);
        Some(TokenSpan { start, end, word })
    }

    #[test]
    fn what_only_touches_is_not_one_entity() {
        let labels: Vec<_> = ["O", "B-LOC", "I-LOC"].map(str::to_owned).into();
        let found = |text: &str, places: Vec<Option<TokenSpan>>, best: &[usize]| {
            let row = Tokens {
                places,
                text: text.to_owned(),
                ..Tokens::default()
            };
            let number = |best: usize| (0..3).map(move |at| if at == best { 0.9 } else { 0.05 });
            let numbers: Vec<f32> = best.iter().copied().flat_map(number).collect();
            let found = entities(&row, &numbers, &labels).into_iter();
            found.map(|entity| entity.text).collect::<Vec<_>>()
        };
        // Words that the tokenizer separates at a hyphen, and a word that it splits.
        let places = vec![
            place(0, 5, 0),
            place(5, 6, 1),
            place(6, 8, 2),
            place(8, 10, 2),
        ];
        assert_eq!(
            found("Paris/Rome", places, &[1, 1, 1, 1]),
            ["Paris", "/", "Rome"]
        );
        // A text without spaces, which the tokenizer treats as one word.
        let places = (0..4).map(|at| place(at, at + 1, 0)).collect();
        assert_eq!(found("北京上海", places, &[1, 2, 1, 2]), ["北京", "上海"]);
    }

    #[test]
    fn vectors_get_length_one_and_nothing_stays_nothing() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0, 0.0];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0, 0.0]);
    }
}
