//! Requests in Anthropic's format. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::{
    Image, Stretch, arguments, calls, check_system, image, is_error, is_system, messages, parts,
    reasoned, said, without_first_system,
};
use volley_provider_kit::effort::{self, Thinking};
use volley_provider_kit::normalize::{
    ResponseFormat, allowed_only, check_tool_choice, take_response_format, take_users,
};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::ANSWER_TOOL;
use volley_provider_kit::tools::check_functions;
use volley_types::{ChatMessage, Dialect, PredictError};

use super::claude::{self, Claude};

/// The server requires a limit. All models support this one.
const DEFAULT_MAX_TOKENS: u64 = 4_096;
/// Minimum thinking budget of the server, in tokens.
const LEAST_BUDGET: u64 = 1_024;
/// First version of the interface without sampling parameters.
const WITHOUT_SAMPLING: &str = "2026-10-21";

pub(super) static PARAMETERS: ParameterTable = ParameterTable {
    server: "Anthropic's messages",
    dialects: &[Dialect::Anthropic, Dialect::Own],
    names: &[
        ("max_tokens", "max_tokens"),
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop", "stop_sequences"),
        ("stop_sequences", "stop_sequences"),
    ],
    own: &[
        "anthropic_beta",
        "anthropic_version",
        "cache_control",
        "container",
        "context_management",
        "mcp_servers",
        "metadata",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    ],
    ranges: &[("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)],
    stops: usize::MAX,
};

/// Builds the body of a request.
///
/// # Errors
/// `InvalidInput` naming an unsupported parameter.
pub(super) fn body(
    model: &str,
    item: &Item,
    mut request: RequestFields<'_>,
) -> Result<Value, PredictError> {
    let claude = Claude::of(model);
    let is_own = request.dialect() == Dialect::Anthropic;
    sampling(&mut request)?;
    named(&mut request, is_own)?;
    check_tool_choice(&request.fields)?;
    allowed_only(&mut request.fields);
    let form = take_response_format(&mut request.fields);
    let parallel = request.take("parallel_tool_calls");
    let thinking = match is_own {
        // Fields of the server's own dialect are sent unchanged.
        true => own_effort(&mut request)?,
        false => foreign_thinking(&mut request)?,
    };
    let mut body = request.finish()?;
    if let Some(Value::Array(given)) = body.get_mut("tools") {
        if !is_own {
            check_functions(given)?;
        }
        given.iter_mut().try_for_each(|given| tool(given, claude))?;
    }
    if let Some(choice) = body.get_mut("tool_choice") {
        tool_choice(choice);
    }
    if let Some(form) = form {
        answer_in(&mut body, form, claude, is_own)?;
    }
    if parallel == Some(Value::Bool(false)) {
        one_at_a_time(&mut body);
    }
    if let Some(thinking) = thinking {
        think(&mut body, thinking, claude, is_own)?;
    }
    body.insert("model".to_owned(), model.into());
    body.entry("max_tokens")
        .or_insert_with(|| DEFAULT_MAX_TOKENS.into());
    // System messages are a field of the body in this format.
    let talk = messages(item);
    check_system(&talk, "Anthropic's messages")?;
    let (system, rest) = without_first_system(talk);
    if let Some(system) = system {
        body.entry("system").or_insert_with(|| system.into());
    }
    body.insert("messages".to_owned(), turns(&rest)?.into());
    Ok(Value::Object(body))
}

/// Rejects sampling parameters for newer versions of the interface, and blank stop sequences,
/// because the server would reject them.
fn sampling(request: &mut RequestFields<'_>) -> Result<(), PredictError> {
    let version = request.header("anthropic-version").unwrap_or_default();
    if WITHOUT_SAMPLING <= version {
        if request.fields.get("temperature").and_then(Value::as_f64) == Some(1.0) {
            request.take("temperature");
        }
        for name in ["temperature", "top_p", "top_k"] {
            if request.fields.contains_key(name) {
                let why = "this version of the interface has no sampling parameters";
                return Err(request.refused(name, why));
            }
        }
    }
    let stops = request.fields.get("stop").and_then(Value::as_array);
    let mut stops = stops.into_iter().flatten().filter_map(Value::as_str);
    if stops.any(|stop| stop.trim().is_empty()) {
        return Err(request.refused(
            "stop",
            "a stop text needs a character other than white space",
        ));
    }
    Ok(())
}

/// Translates the end user and the service tier.
fn named(request: &mut RequestFields<'_>, is_own: bool) -> Result<(), PredictError> {
    if is_own {
        return Ok(());
    }
    let mut users = take_users(&mut request.fields);
    if 1 < users.len() {
        let why = "with another 'safety_identifier' it cannot be sent; send one of them";
        return Err(request.refused("user", why));
    }
    let user = users.pop().map(|(_, user)| user);
    match request.take("metadata") {
        None => {}
        Some(Value::Object(given)) if given.keys().all(|name| name == "user_id") => {
            request.fields.insert("metadata".to_owned(), given.into());
        }
        Some(_) => return Err(request.refused("metadata", "it may only have a 'user_id'")),
    }
    if let Some(user) = user {
        let metadata = request.fields.entry("metadata");
        metadata.or_insert_with(|| json!({ "user_id": user }));
    }
    let tier = match request.fields.get("service_tier").and_then(Value::as_str) {
        None | Some("standard_only") => return Ok(()),
        Some("default" | "standard") => "standard_only",
        Some(_) => {
            return Err(request.refused("service_tier", "it must be 'auto' or 'default'"));
        }
    };
    request
        .fields
        .insert("service_tier".to_owned(), tier.into());
    Ok(())
}

/// Takes the effort level of a caller in Anthropic's dialect, and leaves `thinking` in place. The
/// level goes into `output_config`, with the answer's format.
fn own_effort(request: &mut RequestFields<'_>) -> Result<Option<Thinking>, PredictError> {
    let thinking = request.take("thinking");
    let effort = effort::take(request)?;
    if let Some(thinking) = thinking {
        request.fields.insert("thinking".to_owned(), thinking);
    }
    Ok(effort)
}

/// Takes the effort of other callers. `thinking` alone stays in place in dialects that send the
/// server's format.
fn foreign_thinking(request: &mut RequestFields<'_>) -> Result<Option<Thinking>, PredictError> {
    let is_ours = matches!(request.dialect(), Dialect::Own | Dialect::OpenAi);
    if is_ours && !request.fields.contains_key("reasoning_effort") {
        return Ok(None);
    }
    effort::take(request)
}

/// Adds the thinking options to the body.
fn think(
    body: &mut Map<String, Value>,
    thinking: Thinking,
    claude: Claude,
    is_own: bool,
) -> Result<(), PredictError> {
    if let (Some(level), true) = (thinking.level(), claude.adapts || is_own) {
        let config = body.entry("output_config").or_insert_with(|| json!({}));
        config["effort"] = claude::level(level).into();
    }
    let forced = matches!(body.get("tool_choice"), Some(choice) if matches!(
        choice["type"].as_str(),
        Some("any" | "tool")
    ));
    match thinking {
        Thinking::Off => {
            let thinking = body.entry("thinking");
            thinking.or_insert_with(|| json!({ "type": "disabled" }));
        }
        _ if is_own => {}
        // A required tool call excludes thinking, but the effort level still applies.
        _ if claude.adapts && forced => {}
        _ if claude.adapts => {
            let adaptive = json!({ "type": "adaptive", "display": "summarized" });
            body.insert("thinking".to_owned(), adaptive);
        }
        _ if forced => {
            return Err(PredictError::invalid(
                "this model does not support parameter 'reasoning_effort' with a required tool \
                 call or a response schema: leave one of them out",
            ));
        }
        thinking => {
            let budget = thinking.budget().unwrap_or(LEAST_BUDGET).max(LEAST_BUDGET);
            let limit = body.get("max_tokens").and_then(Value::as_u64);
            let budget = match limit {
                Some(limit) if limit <= LEAST_BUDGET => {
                    return Err(PredictError::invalid(format!(
                        "parameter 'reasoning_effort' needs a 'max_tokens' over {LEAST_BUDGET} \
                         for this model; it includes reasoning tokens"
                    )));
                }
                Some(limit) => budget.min(limit - 1),
                None => {
                    let room = (budget + DEFAULT_MAX_TOKENS).into();
                    body.insert("max_tokens".to_owned(), room);
                    budget
                }
            };
            let enabled = json!({ "type": "enabled", "budget_tokens": budget });
            body.insert("thinking".to_owned(), enabled);
        }
    }
    Ok(())
}

/// Sets the format of the answer: by schema if the model supports it, otherwise by a required tool
/// whose input is the answer.
fn answer_in(
    body: &mut Map<String, Value>,
    form: ResponseFormat,
    claude: Claude,
    is_own: bool,
) -> Result<(), PredictError> {
    let schema = match form {
        ResponseFormat::Text => return Ok(()),
        ResponseFormat::Object => json!({ "type": "object" }),
        ResponseFormat::Schema(schema) => {
            let fitted = match is_own {
                true => Some(schema.clone()),
                false => claude.has_forms.then(|| claude::fitted(&schema)).flatten(),
            };
            if let Some(schema) = fitted {
                let config = body.entry("output_config").or_insert_with(|| json!({}));
                config["format"] = json!({ "type": "json_schema", "schema": schema });
                return Ok(());
            }
            schema
        }
    };
    let given = body
        .get("tool_choice")
        .and_then(|choice| choice["type"].as_str());
    let is_forced = matches!(given, Some("any" | "tool"));
    let is_none = given == Some("none");
    let tools = body.entry("tools").or_insert_with(|| json!([]));
    let Value::Array(tools) = tools else {
        return Err(PredictError::invalid("parameter 'tools' must be a list"));
    };
    let alone = tools.is_empty();
    // The required call comes first, and the answer in a later turn.
    if is_forced && !alone {
        return Ok(());
    }
    tools.push(json!({
        "name": ANSWER_TOOL,
        "description": "Gives the answer. Call this tool once, with the whole answer as its input.",
        "input_schema": claude::object(schema)?,
    }));
    let choice = match alone || is_none {
        true => json!({ "type": "tool", "name": ANSWER_TOOL }),
        false => json!({ "type": "any" }),
    };
    body.insert("tool_choice".to_owned(), choice);
    Ok(())
}

fn one_at_a_time(body: &mut Map<String, Value>) {
    if !body.contains_key("tools") {
        return;
    }
    let choice = body.entry("tool_choice");
    let choice = choice.or_insert_with(|| json!({ "type": "auto" }));
    // Without calls there is nothing to limit, and the server has no such field there.
    if let Value::Object(choice) = choice
        && choice.get("type").is_none_or(|kind| kind != "none")
    {
        choice.insert("disable_parallel_tool_use".to_owned(), true.into());
    }
}

/// Converts a tool in OpenAI's format. A tool in Anthropic's format stays unchanged.
///
/// # Errors
/// `InvalidInput` for a strict tool whose schema the model does not support.
fn tool(tool: &mut Value, claude: Claude) -> Result<(), PredictError> {
    let Some(function) = tool.get_mut("function").map(Value::take) else {
        return Ok(());
    };
    let schema = function.get("parameters").cloned();
    let schema = schema.filter(|schema| !schema.is_null());
    let mut schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
    let mut made = json!({ "name": function["name"] });
    if let Some(said) = function.get("description").filter(|said| !said.is_null()) {
        made["description"] = said.clone();
    }
    if function.get("strict") == Some(&Value::Bool(true)) {
        let fitted = claude.has_forms.then(|| claude::fitted(&schema)).flatten();
        schema = fitted.ok_or_else(|| {
            let name = function["name"].as_str().unwrap_or_default();
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            PredictError::invalid(format!(
                "parameter 'tools' has 'strict' for the tool '{name}', but this model does not \
                 support its schema in strict mode; leave 'strict' out"
            ))
        })?;
        made["strict"] = true.into();
    }
    made["input_schema"] = schema;
    if let Some(cache) = tool.get("cache_control") {
        made["cache_control"] = cache.clone();
    }
    *tool = made;
    Ok(())
}

fn tool_choice(choice: &mut Value) {
    let made = match (choice.as_str(), choice.pointer("/function/name")) {
        (Some("auto"), _) => json!({ "type": "auto" }),
        (Some("none"), _) => json!({ "type": "none" }),
        (Some("required"), _) => json!({ "type": "any" }),
        (None, Some(name)) => json!({ "type": "tool", "name": name }),
        _ => return,
    };
    *choice = made;
}

/// Messages in Anthropic's format. Consecutive tool results are blocks of one user message.
fn turns(messages: &[ChatMessage]) -> Result<Vec<Value>, PredictError> {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_result = false;
    for message in messages {
        let result = message.role == "tool";
        if result {
            let mut block = json!({
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": blocks(message).unwrap_or_else(|| message.content.clone().into()),
            });
            if is_error(message) {
                block["is_error"] = true.into();
            }
            match turns
                .last_mut()
                .and_then(|turn| turn["content"].as_array_mut())
            {
                Some(blocks) if after_result => blocks.push(block),
                _ => turns.push(json!({ "role": "user", "content": [block] })),
            }
        } else {
            turns.push(turn(message)?);
        }
        after_result = result;
    }
    Ok(turns)
}

fn turn(message: &ChatMessage) -> Result<Value, PredictError> {
    if is_system(message) {
        return Ok(json!({ "role": "system", "content": message.content }));
    }
    if let Some(blocks) = blocks(message) {
        return Ok(json!({ "role": message.role, "content": blocks }));
    }
    let (calls, reasoned) = (calls(message), reasoned(message, "anthropic"));
    if calls.is_empty() && reasoned.is_empty() {
        return Ok(json!({ "role": message.role, "content": message.content }));
    }
    // Signed reasoning must be unchanged and come first.
    let mut blocks: Vec<_> = reasoned.iter().map(thinking).collect();
    for said in said(message) {
        blocks.push(match said {
            Stretch::Text(text) => json!({ "type": "text", "text": text }),
            Stretch::Call(call) => {
                let (id, name) = (&call["id"], &call["function"]["name"]);
                let input = arguments(&call)?;
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
            Stretch::Mark(control) => {
                if let Some(last) = blocks.last_mut() {
                    last["cache_control"] = control;
                }
                continue;
            }
        });
    }
    Ok(json!({ "role": message.role, "content": blocks }))
}

/// The content blocks of a message with images.
fn blocks(message: &ChatMessage) -> Option<Value> {
    let blocks = parts(message)?.into_iter().map(|part| {
        let source = match image(&part) {
            None => return json!({ "type": "text", "text": part["text"] }),
            Some(Image::Address(url)) => json!({ "type": "url", "url": url }),
            Some(Image::Data(media, data)) => {
                json!({ "type": "base64", "media_type": media, "data": data })
            }
        };
        json!({ "type": "image", "source": source })
    });
    Some(blocks.collect())
}

fn thinking(stretch: &Value) -> Value {
    match stretch.get("redacted") {
        Some(data) => json!({ "type": "redacted_thinking", "data": data }),
        None => json!({
            "type": "thinking", "thinking": stretch["text"], "signature": stretch["signature"],
        }),
    }
}

#[cfg(test)]
mod tests;
