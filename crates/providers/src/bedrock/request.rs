//! Requests in Converse's format. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::{
    Image, Stretch, arguments, calls, check_system, image, is_error, is_system, marks, messages,
    no_address, parts, reasoned, said,
};
use volley_provider_kit::normalize::{
    ToolChoice, allowed_only, check_tool_choice, is_one_call, take_response_format,
    take_tool_choice, take_users,
};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::tools::check_functions;
use volley_types::{ChatMessage, Dialect, PredictError};

use super::model;

pub(super) static PARAMETERS: ParameterTable = ParameterTable {
    server: "Bedrock's Converse",
    dialects: &[Dialect::Own],
    names: &[
        ("max_tokens", "inferenceConfig.maxTokens"),
        ("max_completion_tokens", "inferenceConfig.maxTokens"),
        ("max_new_tokens", "inferenceConfig.maxTokens"),
        ("maxTokens", "inferenceConfig.maxTokens"),
        ("temperature", "inferenceConfig.temperature"),
        ("top_p", "inferenceConfig.topP"),
        ("topP", "inferenceConfig.topP"),
        ("stop", "inferenceConfig.stopSequences"),
        ("stop_sequences", "inferenceConfig.stopSequences"),
        ("stopSequences", "inferenceConfig.stopSequences"),
        // Converse lacks these, but models may support them.
        ("top_k", "additionalModelRequestFields.top_k"),
        ("thinking", "additionalModelRequestFields.thinking"),
        ("metadata", "requestMetadata"),
    ],
    own: &OWN,
    ranges: &[
        ("max_tokens", 1.0, f64::MAX),
        ("temperature", 0.0, 1.0),
        ("top_p", 0.0, 1.0),
    ],
    stops: 2_500,
};

/// Fields of Converse. All others are fields of the model.
const OWN: [&str; 12] = [
    "additionalModelRequestFields",
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "inferenceConfig",
    "outputConfig",
    "performanceConfig",
    "promptVariables",
    "requestMetadata",
    "serviceTier",
    "system",
    "toolConfig",
    "tools",
];

/// Builds the body of a request. The model is in the URL.
///
/// # Errors
/// `InvalidInput` naming an unsupported parameter, or for `tool_choice: none` in a conversation
/// with tool calls.
pub(super) fn body(
    model: &str,
    item: &Item,
    mut request: RequestFields<'_>,
) -> Result<Value, PredictError> {
    let mut talk = messages(item);
    check_system(&talk, "Converse")?;
    let caches = model::has_cache(model);
    if !caches {
        unmarked(&mut talk);
    }
    check_tool_choice(&request.fields)?;
    allowed_only(&mut request.fields);
    let stops = request.fields.get("stop").and_then(Value::as_array);
    if stops.is_some_and(|stops| stops.iter().any(|stop| stop == "")) {
        return Err(request.refused("stop", "a stop text may not be empty"));
    }
    let tier = tier(&mut request)?;
    let users = take_users(&mut request.fields);
    let form = take_response_format(&mut request.fields);
    let choice = take_tool_choice(&mut request.fields);
    let alone = request.take("parallel_tool_calls") == Some(Value::Bool(false));
    if alone && !model::is_claude(model) {
        let mut told = request.fields.clone();
        if let Some(ToolChoice::Named(name)) = &choice {
            told.insert("tool_choice".to_owned(), json!({ "name": name }));
        }
        if !is_one_call(&told) {
            let why = "name the tool in 'tool_choice', or send one tool";
            return Err(request.refused("parallel_tool_calls", why));
        }
    }
    let thinking = model::thinking(model, &mut request)?;
    let mut body = request.finish()?;
    if let Some(tier) = tier {
        body.insert("serviceTier".to_owned(), json!({ "type": tier }));
    }
    for (name, user) in users {
        let metadata = body.entry("requestMetadata").or_insert_with(|| json!({}));
        metadata[name] = user.into();
    }
    tools(&mut body, choice, &talk, caches)?;
    if let Some(form) = form {
        model::answer_in(&mut body, model, form)?;
    }
    if let Some(thinking) = thinking {
        model::think(&mut body, thinking)?;
    }
    if alone && model::is_claude(model) && body.contains_key("toolConfig") {
        model::one_at_a_time(&mut body);
    }
    models_own(&mut body);
    system(&mut body, &talk);
    body.insert("messages".to_owned(), turns(&talk)?.into());
    Ok(Value::Object(body))
}

/// Moves fields that Converse lacks to the fields of the model.
fn models_own(body: &mut Map<String, Value>) {
    let names = body.keys().filter(|name| !OWN.contains(&name.as_str()));
    let names: Vec<_> = names.cloned().collect();
    for name in names {
        if let Some(value) = body.remove(&name) {
            let fields = body.entry("additionalModelRequestFields");
            let fields = fields.or_insert_with(|| json!({}));
            if fields[&name].is_null() {
                fields[&name] = value;
            }
        }
    }
}

fn system(body: &mut Map<String, Value>, talk: &[ChatMessage]) {
    // Later ones stay in place.
    let told = talk.iter().take_while(|message| is_system(message));
    let told: Vec<_> = told
        .flat_map(said)
        .filter_map(|said| match said {
            Stretch::Text(text) => Some(json!({ "text": text })),
            Stretch::Mark(control) => Some(cache_point(&control)),
            Stretch::Call(_) => None,
        })
        .collect();
    match body.remove("system") {
        Some(Value::String(text)) => {
            _ = body.insert("system".to_owned(), json!([{ "text": text }]))
        }
        Some(blocks) => _ = body.insert("system".to_owned(), blocks),
        None if told.is_empty() => {}
        None => _ = body.insert("system".to_owned(), told.into()),
    }
}

fn tier(request: &mut RequestFields<'_>) -> Result<Option<String>, PredictError> {
    let tiers = ["default", "flex", "priority", "reserved"];
    match request.take("service_tier") {
        None => Ok(None),
        Some(Value::String(tier)) if tiers.contains(&tier.as_str()) => Ok(Some(tier)),
        Some(_) => {
            let why = "it must be 'auto', 'default', 'flex', 'priority' or 'reserved'";
            Err(request.refused("service_tier", why))
        }
    }
}

fn tools(
    body: &mut Map<String, Value>,
    choice: Option<ToolChoice>,
    talk: &[ChatMessage],
    caches: bool,
) -> Result<(), PredictError> {
    let choice = match choice {
        None | Some(ToolChoice::Auto) => None,
        Some(ToolChoice::Required) => Some(json!({ "any": {} })),
        Some(ToolChoice::Named(name)) => Some(json!({ "tool": { "name": name } })),
        Some(ToolChoice::None) => {
            if talk.iter().any(|message| !calls(message).is_empty()) {
                return Err(PredictError::invalid(
                    "parameter 'tool_choice' cannot be 'none' after tools were called: the remote \
                     model's server requires their definitions and has no option that forbids \
                     calls",
                ));
            }
            body.remove("tools");
            None
        }
    };
    let given = match body.remove("tools") {
        Some(Value::Array(given)) => given,
        _ => named_in(talk),
    };
    if given.is_empty() {
        return Ok(());
    }
    check_functions(&given)?;
    let mut specs = Vec::with_capacity(given.len());
    for given in given {
        let control = given.get("cache_control").filter(|_| caches);
        let point = control.map(cache_point);
        specs.push(tool(given));
        specs.extend(point);
    }
    let mut config = json!({ "tools": specs });
    if let Some(choice) = choice {
        config["toolChoice"] = choice;
    }
    body.entry("toolConfig").or_insert(config);
    Ok(())
}

/// Definitions of the tools that the conversation has called, with names only. The server requires
/// definitions of these tools, even if no further calls are allowed.
fn named_in(talk: &[ChatMessage]) -> Vec<Value> {
    let called = talk.iter().flat_map(calls);
    let names = called.filter_map(|call| call["function"]["name"].as_str().map(str::to_owned));
    let names: std::collections::BTreeSet<String> = names.collect();
    let tools = names
        .into_iter()
        .map(|name| json!({ "function": { "name": name } }));
    tools.collect()
}

/// Converts a tool in OpenAI's format. A tool in Converse's format stays unchanged.
fn tool(mut tool: Value) -> Value {
    let Some(function) = tool.get_mut("function").map(Value::take) else {
        return tool;
    };
    let schema = function.get("parameters").cloned();
    let schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
    let mut made = json!({ "name": function["name"], "inputSchema": { "json": schema } });
    for name in ["description", "strict"] {
        if let Some(value) = function.get(name).filter(|value| !value.is_null()) {
            made[name] = value.clone();
        }
    }
    json!({ "toolSpec": made })
}

/// The conversation as alternating turns. Consecutive messages of one side, including tool results,
/// are one turn.
fn turns(talk: &[ChatMessage]) -> Result<Vec<Value>, PredictError> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in talk.iter().skip_while(|message| is_system(message)) {
        let role = match message.role.as_str() {
            "tool" => "user",
            "developer" => "system",
            role => role,
        };
        match turns.last_mut() {
            Some((last, blocks)) if *last == role => blocks.extend(content(message)?),
            _ => turns.push((role, content(message)?)),
        }
    }
    let turns = turns.into_iter();
    let turns = turns.map(|(role, content)| json!({ "role": role, "content": content }));
    Ok(turns.collect())
}

fn content(message: &ChatMessage) -> Result<Vec<Value>, PredictError> {
    if message.role == "tool" {
        let images = shown(message)?.unwrap_or_default().into_iter();
        let mut told: Vec<_> = images.filter(|block| block.get("text").is_none()).collect();
        if told.is_empty() || !message.content.is_empty() {
            told.insert(0, json!({ "text": message.content }));
        }
        let mut result = json!({ "toolUseId": message.tool_call_id, "content": told });
        if is_error(message) {
            result["status"] = "error".into();
        }
        let mut blocks = vec![json!({ "toolResult": result })];
        blocks.extend(marks(message).last().map(cache_point));
        return Ok(blocks);
    }
    if let Some(mut blocks) = shown(message)? {
        blocks.extend(marks(message).last().map(cache_point));
        return Ok(blocks);
    }
    // Signed reasoning must be unchanged and come first.
    let thoughts = reasoned(message, "bedrock");
    let thoughts = thoughts.iter().map(reasoning);
    let told = said(message);
    if told.is_empty() {
        return Ok(thoughts
            .chain([json!({ "text": message.content })])
            .collect());
    }
    // The server rejects empty text.
    let told = told.into_iter().map(|said| match said {
        Stretch::Text(text) => Ok(json!({ "text": text })),
        Stretch::Call(call) => {
            let (id, name) = (&call["id"], &call["function"]["name"]);
            let input = arguments(&call)?;
            Ok(json!({ "toolUse": { "toolUseId": id, "name": name, "input": input } }))
        }
        Stretch::Mark(control) => Ok(cache_point(&control)),
    });
    thoughts.map(Ok).chain(told).collect()
}

/// A mark for a cache as a block of its own.
fn cache_point(control: &Value) -> Value {
    let mut point = json!({ "type": "default" });
    if let Some(ttl) = control.get("ttl").filter(|ttl| !ttl.is_null()) {
        point["ttl"] = ttl.clone();
    }
    json!({ "cachePoint": point })
}

/// Removes marks for a cache from messages for a model without one.
fn unmarked(talk: &mut [ChatMessage]) {
    for message in talk {
        let details = message.details.as_deref();
        let details = details.and_then(|details| serde_json::from_str(details).ok());
        if let Some(Value::Object(mut details)) = details
            && details.remove("cache").is_some()
        {
            message.details = Some(Value::from(details).to_string());
        }
    }
}

fn reasoning(stretch: &Value) -> Value {
    let content = match stretch.get("redacted") {
        Some(data) => json!({ "redactedContent": data }),
        None => json!({ "reasoningText": {
            "text": stretch["text"], "signature": stretch["signature"] } }),
    };
    json!({ "reasoningContent": content })
}

/// Text and images as content blocks; `None` for plain text.
fn shown(message: &ChatMessage) -> Result<Option<Vec<Value>>, PredictError> {
    let Some(parts) = parts(message) else {
        return Ok(None);
    };
    let made = parts.iter().map(|part| match image(part) {
        None => Ok(json!({ "text": part["text"] })),
        Some(Image::Data(media, data)) => {
            let format = media.strip_prefix("image/").unwrap_or(&media);
            Ok(json!({ "image": { "format": format, "source": { "bytes": data } } }))
        }
        Some(Image::Address(_)) => Err(no_address("Bedrock's Converse")),
    });
    made.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests;
