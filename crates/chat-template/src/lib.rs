//! Renders the chat templates of models: Jinja with the Python methods and the function
//! (`raise_exception`) that their authors expect. Each rendering has a budget of steps, memory and
//! nesting.

mod budget;
mod compile;
mod operators;
mod rendering;

use std::collections::BTreeMap;

use minijinja::value::{Serde, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, machinery};
use volley_types::{ChatMessage, ErrorOrigin, PredictError};

pub use self::budget::{CancelFlag, EndOnDrop};
use self::budget::{Stop, charge_held, charge_length};
use self::compile::Program;
pub use self::rendering::{OWN, Rendering};
use volley_tool_calls::CallStyle;

/// Maximum number of steps of one rendering, about a second.
const FUEL: u64 = 4_000_000;
/// Maximum recursion of macros and loops.
const MAX_RECURSION: usize = 100;
/// Maximum length of a template's own error message, in characters.
const MAX_REFUSAL: usize = 300;

/// A compiled chat template with its special tokens.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The default template.
    usual: Program,
    /// The template for conversations with tools, if it is separate.
    with_tools: Option<Program>,
    bos: String,
    eos: String,
    takes_tools: bool,
    style: CallStyle,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the special tokens in it.
    ///
    /// # Errors
    /// `InvalidInput` if the template is malformed.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, PredictError> {
        let mut environment = Environment::new();
        operators::equip(&mut environment);
        environment.add_function("raise_exception", refuse);
        environment.set_unknown_method_callback(method);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_RECURSION);
        let takes_tools = source.contains("tools");
        let style = CallStyle::of(&source);
        let usual = Program::of(source).map_err(|error| malformed("the chat template", error))?;
        Ok(Self {
            environment,
            usual,
            with_tools: None,
            bos,
            eos,
            takes_tools,
            style,
        })
    }

    /// Adds a separate template for conversations with tools.
    ///
    /// # Errors
    /// `InvalidInput` if the template is malformed.
    pub fn with_tools(mut self, source: String) -> Result<Self, PredictError> {
        self.style = CallStyle::of(&source);
        let program = Program::of(source);
        let program = program.map_err(|error| malformed("the chat template for tools", error))?;
        self.with_tools = Some(program);
        self.takes_tools = true;
        Ok(self)
    }

    /// Renders a short conversation, so that a template that always fails is detected when its
    /// model is loaded.
    ///
    /// # Errors
    /// `InvalidInput` if the rendering fails, unless the template itself rejects the conversation.
    pub fn tried(self) -> Result<Self, PredictError> {
        let messages = [ChatMessage::new("user", "Hello")];
        let rendering = Rendering {
            invites: true,
            ..Rendering::default()
        };
        match self.written(&messages, None, &rendering, &CancelFlag::default()) {
            // The template may require other messages.
            Err(error) if refusal(&error).is_none() => Err(malformed("the chat template", error)),
            _ => Ok(self),
        }
    }

    /// The format of calls that the template teaches.
    pub fn call_style(&self) -> CallStyle {
        self.style
    }

    /// Whether the template supports tools.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// The source of the default template.
    pub fn source(&self) -> &str {
        self.usual.source
    }

    /// Renders a conversation, and the tools of the request (a JSON array in OpenAI's format), as a
    /// prompt. Stops if the request is cancelled through `ended`.
    ///
    /// # Errors
    /// `InvalidInput` with the template's message if it rejects the conversation. Also if the
    /// template does not support tools, the rendering exceeds its budget, or the last message
    /// cannot be continued.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        tools: Option<&serde_json::Value>,
        rendering: &Rendering,
        ended: &CancelFlag,
    ) -> Result<String, PredictError> {
        if tools.is_some() && !self.takes_tools {
            return Err(PredictError::invalid(
                "this model's chat template does not support tools; leave 'tools' out",
            ));
        }
        let written = self.written(messages, tools, rendering, ended);
        let mut written = written.map_err(refused)?;
        if rendering.continues {
            let last = messages.last().map_or("", |last| last.content.trim());
            let end = written.rfind(last).map(|at| at + last.len());
            let end = end.filter(|_| !last.is_empty()).ok_or_else(|| {
                PredictError::invalid(
                    "the last message cannot be continued: the chat template leaves it out",
                )
            })?;
            written.truncate(end);
        }
        Ok(written)
    }

    fn written(
        &self,
        messages: &[ChatMessage],
        tools: Option<&serde_json::Value>,
        rendering: &Rendering,
        ended: &CancelFlag,
    ) -> Result<String, Error> {
        let lengths = messages.iter().map(|message| {
            message.content.len() + message.tool_calls.as_ref().map_or(0, String::len)
        });
        let given = lengths.sum();
        let messages = messages.iter().map(message);
        let messages: Vec<_> = messages.collect::<Result<_, _>>()?;
        let variables = rendering.variables.iter();
        let mut root: BTreeMap<String, Value> = variables
            .map(|(name, value)| (name.clone(), Value::from(Serde(value))))
            .collect();
        let tools = tools.map(|tools| Value::from(Serde(tools)));
        let program = match (&tools, &self.with_tools) {
            (Some(_), Some(program)) => program,
            _ => &self.usual,
        };
        let invites = Value::from(rendering.invites);
        for (name, value) in [
            ("messages", Value::from(messages)),
            ("tools", tools.unwrap_or_else(|| Value::from(()))),
            ("add_generation_prompt", invites),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ] {
            root.insert(name.to_owned(), value);
        }
        budget::within(given, ended, || {
            let mut text = String::new();
            let mut out = machinery::make_string_output(&mut text);
            machinery::eval(
                &self.environment,
                &program.instructions,
                Value::from(root),
                &program.blocks,
                &mut out,
                AutoEscape::None,
            )?;
            drop(out);
            Ok(text)
        })
    }
}

/// The error for an unusable template.
fn malformed(what: &str, error: Error) -> PredictError {
    let reason: String = match found::<Stop>(&error) {
        Some(stop) => stop.to_string(),
        None => error.to_string().chars().take(MAX_REFUSAL).collect(),
    };
    PredictError::invalid(format!("{what} is malformed: {reason}")).with_source(error)
}

/// The error for a conversation that cannot be rendered.
fn refused(error: Error) -> PredictError {
    let message = "the messages do not fit the model's chat template";
    let reason = match found::<Stop>(&error) {
        Some(stop) => Some(stop.to_string()),
        None if error.kind() == ErrorKind::OutOfFuel => Some("it takes too many steps".to_owned()),
        None => refusal(&error).map(str::to_owned),
    };
    let message = match reason {
        Some(reason) => format!("{message}: {reason}"),
        None => message.to_owned(),
    };
    PredictError::invalid(message)
        .with_source(error)
        .with_origin(ErrorOrigin::Model)
}

/// A message as templates expect it: the arguments of calls are objects instead of JSON text.
fn message(message: &ChatMessage) -> Result<Value, Error> {
    let mut fields = BTreeMap::from([
        ("role", Value::from(message.role.as_str())),
        ("content", Value::from(message.content.as_str())),
    ]);
    if let Some(id) = &message.tool_call_id {
        fields.insert("tool_call_id", Value::from(id.as_str()));
    }
    if let Some(calls) = &message.tool_calls {
        let wrong = || {
            let reason = "a message's 'tool_calls' must be a list of calls".to_owned();
            Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(reason))
        };
        let mut calls: Vec<serde_json::Value> = serde_json::from_str(calls).map_err(|_| wrong())?;
        for call in &mut calls {
            let arguments = call.pointer_mut("/function/arguments");
            let arguments = arguments.ok_or_else(wrong)?;
            let parsed = arguments
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok());
            if let Some(parsed) = parsed {
                *arguments = parsed;
            }
        }
        fields.insert("tool_calls", Serde(calls).into());
    }
    Ok(Value::from_pairs(fields))
}

/// The message of a template that rejects a conversation.
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn refuse(reason: &str) -> Result<Value, Error> {
    let reason = reason.chars().take(MAX_REFUSAL).collect();
    Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(reason)))
}

fn refusal(error: &Error) -> Option<&str> {
    found::<Refusal>(error).map(|Refusal(reason)| reason.as_str())
}

/// Finds a cause of type `T`.
fn found<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Python's methods of strings and dictionaries.
fn method(_: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let made = match (value.as_str(), value.kind()) {
        (Some(text), _) => {
            charge_length(text.len())?;
            text_method(text, name, args)?
        }
        (None, ValueKind::Map) => map_method(value, name, args)?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    // Values in a map exist already.
    if !matches!(name, "get" | "items" | "values") {
        charge_held(&made)?;
    }
    Ok(made)
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let trimmed = |left: bool, right: bool| {
        let (set,): (Option<&str>,) = from_args(args)?;
        let cut = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
        let text = if left {
            text.trim_start_matches(cut)
        } else {
            text
        };
        let text = if right {
            text.trim_end_matches(cut)
        } else {
            text
        };
        Ok(Value::from(text))
    };
    match name {
        "strip" => trimmed(true, true),
        "lstrip" => trimmed(true, false),
        "rstrip" => trimmed(false, true),
        "startswith" => from_args(args).map(|(part,)| Value::from(text.starts_with::<&str>(part))),
        "endswith" => from_args(args).map(|(part,)| Value::from(text.ends_with::<&str>(part))),
        "upper" => from_args(args).map(|()| Value::from(text.to_uppercase())),
        "lower" => from_args(args).map(|()| Value::from(text.to_lowercase())),
        "replace" => {
            let (from, to): (&str, &str) = from_args(args)?;
            charge_length(text.matches(from).count().saturating_mul(to.len()))?;
            Ok(Value::from(text.replace(from, to)))
        }
        "split" => from_args(args).map(|(by,): (Option<&str>,)| match by {
            Some(by) if !by.is_empty() => text.split(by).map(Value::from).collect(),
            _ => text.split_whitespace().map(Value::from).collect(),
        }),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn map_method(map: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let pairs = || -> Result<Vec<[Value; 2]>, Error> {
        let keys = map.try_iter()?;
        keys.map(|key| Ok([key.clone(), map.get_item(&key)?]))
            .collect()
    };
    match name {
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            let found = map.get_item(&key)?;
            let found = (!found.is_undefined()).then_some(found);
            Ok(found.or(default).unwrap_or_else(|| Value::from(())))
        }
        "items" => Ok(pairs()?.into_iter().map(Value::from_iter).collect()),
        "keys" => Ok(pairs()?.into_iter().map(|[key, _]| key).collect()),
        "values" => Ok(pairs()?.into_iter().map(|[_, value]| value).collect()),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

#[cfg(test)]
mod tests;
