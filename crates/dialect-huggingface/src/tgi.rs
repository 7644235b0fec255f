//! Text Generation Inference: generations, complete and streamed, and information about the model.

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::Response;
use volley_types::{Dialect, GenerationRow, PredictError, PredictRequest, Task};

use super::events::{self, TokenEvents};
use super::options::{self, Options};
use super::{Body, FORMAT};
use crate::tokens;
use volley_dialect_kit::answer;
use volley_dialect_kit::catalogue;
use volley_dialect_kit::chat;
use volley_dialect_kit::generation;
use volley_dialect_kit::refusal;
use volley_dialect_kit::requests::{ResolvedModel, RouteModel, choose, request};
use volley_dialect_kit::supplement;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

const TASK: [Task; 1] = [Task::Generate];

/// Generates a complete text.
pub(crate) async fn generate(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &TASK, "generate").await?;
        whole(&caller, &context, chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}

/// Generates text, one event for each token.
pub(crate) async fn generate_stream(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let chosen = choose(&caller, named, &mut body, &TASK, "generate");
    let chosen = context.in_time(chosen).await?;
    streamed(&caller, &context, chosen, body).await
}

struct GenerateRequest {
    inputs: String,
    options: Options,
    request: PredictRequest,
}

fn read(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Body,
    stream: bool,
) -> Result<GenerateRequest, PredictError> {
    body.only("a generation", &["inputs", "parameters", "stream"])?;
    let inputs = body.required("inputs")?.to_owned();
    let parameters = match body.remove("parameters") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(parameters)) => parameters,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'parameters' must be an object",
            ));
        }
    };
    let rows = chat::prompts(&[&inputs])?;
    if chosen.signature.takes_native(FORMAT) {
        let options = options::own(parameters)?;
        let mut parameters = options.parameters.clone();
        // For the other models of an alias; it is not sent to servers.
        parameters.insert("raw".to_owned(), true.into());
        let mut request = request(chosen.model, rows, &parameters, context)?;
        request.dialect = Dialect::TextGeneration;
        return Ok(GenerateRequest {
            request,
            inputs,
            options,
        });
    }
    let options = options::read(parameters)?;
    let mut parameters = options.parameters.clone();
    // The events of a stream contain log probabilities. A remote model may not support them.
    if options.details || stream && catalogue::runs_here(caller, &chosen.model) {
        parameters.insert("logprobs".to_owned(), true.into());
        if 0 < options.alternatives {
            parameters.insert("top_logprobs".to_owned(), options.alternatives.into());
        }
    }
    parameters.entry("raw").or_insert(true.into());
    Ok(GenerateRequest {
        request: request(chosen.model, rows, &parameters, context)?,
        inputs,
        options,
    })
}

pub(super) async fn streamed(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    body: Body,
) -> Result<Response, ApiError> {
    let asked = read(caller, context, chosen, body, true)?;
    let begun = match asked.options.return_full_text {
        true => asked.inputs,
        false => String::new(),
    };
    let events = TokenEvents::new(begun, asked.options.details, asked.options.seed);
    generation::stream(caller, asked.request, events, context).await
}

pub(super) async fn whole(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    body: Body,
) -> Result<Value, PredictError> {
    let mut asked = read(caller, context, chosen, body, false)?;
    asked.request.whole = true;
    let batches = answer::collect(caller.cluster.inference.predict(asked.request).await?).await?;
    let choice = answer::choices(&batches)?.into_iter().next();
    let choice = choice.ok_or_else(volley_dialect_kit::sse::silent_end)?;
    // The format has no finish reason for a content filter.
    refusal::filtered(choice.finish_reason, &choice.details)?;
    if let Some(told) = upstreams(supplement::of(&choice.details, FORMAT), &asked.options) {
        return Ok(told);
    }
    let text = match asked.options.return_full_text {
        true => asked.inputs + &choice.text,
        false => choice.text.clone(),
    };
    let mut told = json!({ "generated_text": text });
    if !asked.options.details {
        return Ok(told);
    }
    let mut all = Vec::new();
    for batch in &batches {
        for row in GenerationRow::rows(batch)? {
            all.extend(events::all_tokens(&row));
        }
    }
    let usage = choice.usage.unwrap_or_default();
    told["details"] = json!({
        "finish_reason": events::finish_reason(choice.finish_reason, &choice.details),
        "generated_tokens": usage.completion_tokens,
        "seed": asked.options.seed,
        "prefill": [],
        "tokens": all,
    });
    if 0 < asked.options.alternatives {
        let tops = choice.tokens.iter().map(|token| {
            let others = token["top_logprobs"].as_array().into_iter().flatten();
            let others = others.map(|other| {
                json!({ "id": other.get("id").cloned().unwrap_or(0.into()),
                        "text": other["token"], "logprob": other["logprob"], "special": false })
            });
            others.collect::<Value>()
        });
        told["details"]["top_tokens"] = tops.collect();
    }
    Ok(told)
}

/// The answer of a server of the same format: an object, or a list of one. It has `details` only
/// for callers that want them.
fn upstreams(answer: Option<&Value>, options: &Options) -> Option<Value> {
    let answer = match answer? {
        Value::Array(list) => list.first()?,
        answer => answer,
    };
    let mut told = answer.as_object()?.clone();
    if !options.details {
        told.remove("details");
    }
    Some(Value::Object(told))
}

/// Describes the model in the format of the server that would serve it.
pub(crate) async fn info(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
) -> Result<Json<Value>, ApiError> {
    let tasks = [
        Task::Generate,
        Task::Embed,
        Task::Rerank,
        Task::Classify,
        Task::EncodeSparse,
    ];
    let mut nothing = Map::new();
    let chosen = choose(&caller, named, &mut nothing, &tasks, "answer");
    let chosen = context.in_time(chosen).await?;
    let limit = chosen.signature.context();
    if chosen.signature.task == Task::Generate {
        return Ok(Json(json!({
            "model_id": chosen.name,
            "model_sha": null,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": caller.config.max_connections,
            "max_best_of": 1,
            "max_stop_sequences": 16,
            "max_input_tokens": limit.map(|limit| limit.saturating_sub(1)),
            "max_total_tokens": limit,
            "max_client_batch_size": 1,
            "router": "volley",
            "version": env!("CARGO_PKG_VERSION"),
            "sha": null,
            "docker_label": null,
        })));
    }
    let kind = match chosen.signature.task {
        Task::Embed => json!({ "embedding": { "pooling": null } }),
        Task::EncodeSparse => json!({ "embedding": { "pooling": "splade" } }),
        Task::Rerank => json!({ "reranker": {} }),
        _ => json!({ "classifier": {} }),
    };
    Ok(Json(json!({
        "model_id": chosen.name,
        "served_model_name": chosen.name,
        "model_sha": null,
        "model_dtype": "float32",
        "model_type": kind,
        "max_concurrent_requests": caller.config.max_connections,
        "max_input_length": limit,
        "max_batch_tokens": null,
        "max_batch_requests": null,
        "max_client_batch_size": 1_024,
        "auto_truncate": false,
        "tokenization_workers": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })))
}

/// Returns the tokens of a conversation and its templated text.
pub(crate) async fn chat_tokenize(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &TASK, "chat").await?;
        tokens::of_chat(&caller, &context, &chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}
