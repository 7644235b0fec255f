//! `/tokenize` and `/detokenize` with the model's own tokenizer, in the formats of vLLM, llama.cpp
//! and Hugging Face's servers. The fields of the body select the format: `prompt` or `messages`
//! (vLLM), `content` (llama.cpp), `inputs` (Hugging Face).

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::params::{DETOKENIZE, TOKEN_INPUTS, TOKENIZE};
use volley_types::signature::{QUERY, TEXT};
use volley_types::{ErrorCode, GenerationRow, PredictError, Task};

use crate::error::HuggingFaceErrors;
use volley_dialect_kit::answer::{self, failure};
use volley_dialect_kit::inputs::Inputs;
use volley_dialect_kit::messages;
use volley_dialect_kit::openai_error::OpenAiErrors;
use volley_dialect_kit::requests::{ResolvedModel, RouteModel, choose, request};
use volley_dialect_kit::{catalogue, chat};
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::{DialectError, ErrorFormat};

/// Tasks whose models have a tokenizer.
const TASKS: [Task; 6] = [
    Task::Generate,
    Task::Embed,
    Task::Rerank,
    Task::Classify,
    Task::ClassifyTokens,
    Task::EncodeSparse,
];

/// The model whose tokenizer is used. If the request names none, it is the only generation model,
/// or without such a model the only model that reads texts.
///
/// # Errors
/// As [`choose`].
pub(crate) async fn choose_tokenizer(
    caller: &Caller,
    named: RouteModel,
    body: &mut Map<String, Value>,
    what: &str,
) -> Result<ResolvedModel, PredictError> {
    let is_named = named.is_some() || body.get("model").is_some_and(|model| !model.is_null());
    if !is_named {
        let generates = catalogue::only(caller, &TASKS[..1], what).await;
        if !matches!(&generates, Err(error) if error.code == ErrorCode::NotFound) {
            let (model, signature) = generates?;
            return Ok(ResolvedModel {
                name: model.to_string(),
                model,
                signature,
            });
        }
    }
    choose(caller, named, body, &TASKS, what).await
}

/// Parameter that requests the text of each token.
const SPELLING: &str = "return_token_strs";

/// Tokenizes a text or a conversation.
pub(crate) async fn tokenize(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, DialectError> {
    let format: &'static dyn ErrorFormat = match body.contains_key("inputs") {
        true => &HuggingFaceErrors,
        false => &OpenAiErrors,
    };
    let work = async {
        let chosen = choose_tokenizer(&caller, named, &mut body, "tokenize").await?;
        if body.contains_key("inputs") {
            of_inputs(&caller, &context, &chosen, body).await
        } else if body.contains_key("content") {
            of_content(&caller, &context, &chosen, body).await
        } else {
            of_prompt(&caller, &context, &chosen, body).await
        }
    };
    let done = context.in_time(work).await;
    done.map(Json).map_err(|error| DialectError(format, error))
}

/// Converts tokens to text, with the field names of vLLM or llama.cpp.
pub(crate) async fn detokenize(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, DialectError> {
    let work = async {
        let chosen = choose_tokenizer(&caller, named, &mut body, "tokenize").await?;
        body.only("tokens to spell", &["tokens"])?;
        let lists = match body.remove("tokens") {
            Some(Value::Array(none)) if none.is_empty() => {
                return Ok(json!({ "prompt": "", "content": "" }));
            }
            Some(tokens) => Inputs::read(tokens),
            None => None,
        };
        let Some(Inputs::Tokens(lists)) = lists.filter(|lists| match lists {
            Inputs::Tokens(lists) => lists.len() == 1,
            Inputs::Texts(_) => false,
        }) else {
            return Err(PredictError::invalid(
                "field 'tokens' must be a list of token ids",
            ));
        };
        let texts = decoded(&caller, &context, &chosen, lists, false).await?;
        let text = texts.into_iter().next().unwrap_or_default();
        Ok(json!({ "prompt": text, "content": text }))
    };
    let done = context.in_time(work).await;
    done.map(Json)
        .map_err(|error| DialectError(&OpenAiErrors, error))
}

/// One token with its text.
#[derive(Clone, Debug, Default, Deserialize)]
struct Piece {
    #[serde(default)]
    token: Value,
    /// Whether the tokenizer added the token to the text, if the model reports it.
    #[serde(default)]
    special: bool,
    /// Start of the token in its text in characters, if the model reports it.
    start: Option<usize>,
    stop: Option<usize>,
}

impl Piece {
    fn read(value: Value) -> Self {
        match value {
            Value::Object(_) => serde_json::from_value(value).unwrap_or_default(),
            token => Self {
                token,
                ..Self::default()
            },
        }
    }
}

/// The tokens of one row.
struct RowTokens {
    ids: Vec<u32>,
    /// The tokens with their text, one for each id; empty if not requested.
    spelt: Vec<Piece>,
    /// The tokenized text, if the model reports it.
    text: String,
}

/// Builds the input rows of a model from texts.
fn texts_for(chosen: &ResolvedModel, texts: &[String]) -> Result<RecordBatch, PredictError> {
    let task = chosen.signature.task;
    if task == Task::Generate {
        return chat::prompts(texts);
    }
    let column = Arc::new(StringArray::from_iter_values(texts)) as ArrayRef;
    let mut columns = vec![(TEXT, column)];
    if task == Task::Rerank {
        // Only the text of a pair is tokenized, but the model requires the query column.
        let none = StringArray::from_iter_values(texts.iter().map(|_| ""));
        columns.push((QUERY, Arc::new(none)));
    }
    RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

async fn ask(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    rows: RecordBatch,
    parameters: &Map<String, Value>,
) -> Result<Vec<RecordBatch>, PredictError> {
    let request = request(chosen.model.clone(), rows, parameters, context)?;
    answer::collect(caller.cluster.inference.predict(request).await?).await
}

async fn tokenised(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    rows: RecordBatch,
    mut parameters: Map<String, Value>,
) -> Result<Vec<RowTokens>, PredictError> {
    parameters.insert(TOKENIZE.to_owned(), true.into());
    let batches = ask(caller, context, chosen, rows, &parameters).await?;
    let mut all = Vec::new();
    for batch in &batches {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            let ids = row.token_ids().ok_or_else(|| {
                PredictError::new(
                    ErrorCode::Unimplemented,
                    "this model has no tokenizer here: it runs at a provider, and only the \
                     provider counts tokens",
                )
            })?;
            let spelt = row.token_logprobs().map(serde_json::from_str);
            let spelt: Vec<Value> = match spelt {
                Some(Ok(Value::Array(spelt))) => spelt,
                _ => Vec::new(),
            };
            all.push(RowTokens {
                ids: ids.values().to_vec(),
                spelt: spelt.into_iter().map(Piece::read).collect(),
                text: row.text().unwrap_or_default().to_owned(),
            });
        }
    }
    Ok(all)
}

fn none() -> PredictError {
    PredictError::internal("the model's answer is malformed", "no row of tokens")
}

/// Tokenizes in the format of vLLM.
async fn of_prompt(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    let rows = match (body.contains_key("prompt"), body.contains_key("messages")) {
        (true, false) => {
            let prompt = body.text("prompt")?.unwrap_or_default().to_owned();
            body.remove("prompt");
            body.entry("raw").or_insert(true.into());
            texts_for(chosen, &[prompt])?
        }
        (false, true) => {
            if chosen.signature.task != Task::Generate {
                return Err(PredictError::invalid(
                    "this model does not support conversations; send 'prompt' instead of \
                     'messages'",
                ));
            }
            let messages = messages::take_messages(&mut body)?;
            chat::conversation(&messages)?
        }
        _ => {
            return Err(PredictError::invalid(
                "send one of the fields 'prompt', 'messages', 'content' and 'inputs'",
            ));
        }
    };
    let spelt = take_flag(&mut body, SPELLING)?;
    if spelt {
        body.insert(SPELLING.to_owned(), true.into());
    }
    let all = tokenised(caller, context, chosen, rows, body).await?;
    let row = all.into_iter().next().ok_or_else(none)?;
    Ok(json!({
        "count": row.ids.len(),
        "max_model_len": chosen.signature.context(),
        "tokens": row.ids,
        "token_strs": spelt.then(|| row.spelt.into_iter().map(|piece| piece.token).collect::<Value>()),
    }))
}

/// Tokenizes in the format of llama.cpp.
async fn of_content(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    let known = ["content", "add_special", "parse_special", "with_pieces"];
    body.only("a text to tokenize", &known)?;
    let content = body.text("content")?.unwrap_or_default().to_owned();
    if content.is_empty() {
        return Ok(json!({ "tokens": [] }));
    }
    if body.get("parse_special") == Some(&Value::Bool(false)) {
        return Err(PredictError::invalid(
            "field 'parse_special' must be true: special tokens in a text are always parsed",
        ));
    }
    let special = take_flag(&mut body, "add_special")?;
    let pieces = take_flag(&mut body, "with_pieces")?;
    let rows = texts_for(chosen, &[content])?;
    let all = tokenised(caller, context, chosen, rows, raw(special, pieces)).await?;
    let row = all.into_iter().next().ok_or_else(none)?;
    if !pieces {
        return Ok(json!({ "tokens": row.ids }));
    }
    let told = row.ids.iter().zip(row.spelt);
    let told = told.map(|(id, piece)| json!({ "id": id, "piece": piece.token }));
    Ok(json!({ "tokens": told.collect::<Vec<_>>() }))
}

fn raw(special: bool, spelt: bool) -> Map<String, Value> {
    let mut parameters = Map::new();
    parameters.insert("raw".to_owned(), true.into());
    parameters.insert("add_special_tokens".to_owned(), special.into());
    if spelt {
        parameters.insert(SPELLING.to_owned(), true.into());
    }
    parameters
}

/// Tokenizes in the format of Hugging Face's servers: one list for each text of a list, as Text
/// Embeddings Inference does, or a single list for a single text, as Text Generation Inference
/// does.
async fn of_inputs(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    body.only(
        "texts to tokenize",
        &["inputs", "add_special_tokens", "prompt_name", "parameters"],
    )?;
    for name in ["prompt_name", "parameters"] {
        if body.remove(name).is_some_and(|value| !value.is_null()) {
            let message = format!("field '{name}' is not supported here; leave it out");
            return Err(PredictError::invalid(message));
        }
    }
    let alone = body.get("inputs").is_some_and(Value::is_string);
    let Inputs::Texts(texts) = Inputs::take(&mut body, "inputs")? else {
        return Err(PredictError::invalid(
            "field 'inputs' must be a text or a list of texts here",
        ));
    };
    let special = match body.get("add_special_tokens") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(special)) => *special,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'add_special_tokens' must be true or false",
            ));
        }
    };
    let rows = texts_for(chosen, &texts)?;
    let all = tokenised(caller, context, chosen, rows, raw(special, true)).await?;
    let mut told = all.iter().map(|row| placed(row, &row.text));
    Ok(match alone {
        true => told.next().ok_or_else(none)?,
        false => told.collect(),
    })
}

/// Returns the tokens of a conversation and its templated text.
pub(crate) async fn of_chat(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    let messages = messages::take_messages(&mut body)?;
    let mut parameters = Map::new();
    for name in ["tools", "chat_template_kwargs"] {
        parameters.extend(body.remove_entry(name));
    }
    // Generation parameters have no effect here, as in Text Generation Inference.
    parameters.insert(SPELLING.to_owned(), true.into());
    let rows = chat::conversation(&messages)?;
    let all = tokenised(caller, context, chosen, rows, parameters).await?;
    let row = all.into_iter().next().ok_or_else(none)?;
    let list = vec![row.ids.clone()];
    let text = match row.text.is_empty() {
        true => decoded(caller, context, chosen, list, false).await?.pop(),
        false => Some(row.text.clone()),
    };
    let text = text.unwrap_or_default();
    Ok(json!({ "tokenize_response": placed(&row, &text), "templated_text": text }))
}

/// Formats tokens with their positions in `text`, in characters. A position is null if the text of
/// the tokens does not match `text`.
fn placed(row: &RowTokens, text: &str) -> Value {
    let (mut rest, mut at) = (Some(text), 0);
    let told = row.ids.iter().enumerate().map(|(place, id)| {
        let told = row.spelt.get(place);
        let piece = told
            .and_then(|piece| piece.token.as_str())
            .unwrap_or_default();
        if let Some(told) = told.filter(|told| told.special || told.start.is_some()) {
            return json!({
                "id": id, "text": piece, "special": told.special,
                "start": told.start, "stop": told.stop,
            });
        }
        rest = rest.and_then(|rest| rest.strip_prefix(piece));
        let (start, stop) = (at, at + piece.chars().count());
        at = stop;
        let known = rest.is_some();
        json!({
            "id": id, "text": piece, "special": false,
            "start": known.then_some(start), "stop": known.then_some(stop),
        })
    });
    told.collect()
}

/// Converts each list of tokens to text.
pub(crate) async fn decoded(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    lists: Vec<Vec<u32>>,
    skip_special: bool,
) -> Result<Vec<String>, PredictError> {
    let mut parameters = Map::new();
    parameters.insert(DETOKENIZE.to_owned(), true.into());
    if skip_special {
        parameters.insert("skip_special_tokens".to_owned(), true.into());
    }
    let texts = Inputs::Tokens(lists).into_texts(&mut parameters);
    parameters.remove(TOKEN_INPUTS);
    let rows = texts_for(chosen, &texts)?;
    let batches = ask(caller, context, chosen, rows, &parameters).await?;
    Ok(answer::choices(&batches)?
        .into_iter()
        .map(|choice| choice.text)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_while_the_spelling_follows_the_text() {
        let row = |spelt: &[&str]| RowTokens {
            ids: (0..spelt.len() as u32).collect(),
            spelt: spelt
                .iter()
                .map(|piece| Piece::read(Value::from(*piece)))
                .collect(),
            text: String::new(),
        };
        let told = placed(&row(&["Zo", "ë", " sings"]), "Zoë sings");
        assert_eq!(
            (&told[1]["start"], &told[1]["stop"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(told[2]["stop"], 9);
        let strange = placed(&row(&["<s>", "Zo"]), "Zo");
        assert_eq!(strange[1]["start"], Value::Null);
    }
}
