//! Chat templates as models bring them along: Jinja, with the few Python methods and the one
//! function that their authors take for granted. A rendering has a `budget`.

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

/// Steps of one rendering, which takes a second at most.
const FUEL: u64 = 4_000_000;
/// How deep macros and loops may call themselves.
const MAX_RECURSION: usize = 100;
/// Of what a template says about a conversation that it refuses, at most so many characters.
const MAX_REFUSAL: usize = 300;

/// A chat template with the special tokens that it may name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    usual: Program,
    /// The one for conversations with tools, where there are two.
    with_tools: Option<Program>,
    bos: String,
    eos: String,
    takes_tools: bool,
    style: CallStyle,
}

impl ChatTemplate {
    /// The template with this source.
    ///
    /// # Errors
    /// `InvalidInput` when it is malformed.
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

    /// With this source for conversations with tools.
    ///
    /// # Errors
    /// `InvalidInput` when it is malformed.
    pub fn with_tools(mut self, source: String) -> Result<Self, PredictError> {
        self.style = CallStyle::of(&source);
        let program = Program::of(source);
        let program = program.map_err(|error| malformed("the chat template for tools", error))?;
        self.with_tools = Some(program);
        self.takes_tools = true;
        Ok(self)
    }

    /// Renders a short conversation, so that a template which never could is found as its model is
    /// loaded.
    ///
    /// # Errors
    /// `InvalidInput` with what is wrong with the template.
    pub fn tried(self) -> Result<Self, PredictError> {
        let messages = [ChatMessage::new("user", "Hello")];
        let rendering = Rendering {
            invites: true,
            ..Rendering::default()
        };
        match self.written(&messages, None, &rendering, &CancelFlag::default()) {
            // It may well want other messages.
            Err(error) if refusal(&error).is_none() => Err(malformed("the chat template", error)),
            _ => Ok(self),
        }
    }

    /// How it teaches a model to write calls.
    pub fn call_style(&self) -> CallStyle {
        self.style
    }

    /// Whether it writes tools into a prompt.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// What it is written in.
    pub fn source(&self) -> &str {
        self.usual.source
    }

    /// The conversation, and the tools that may be called in it (a JSON array in OpenAI's
    /// form), as one text that ends where the answer begins. Stops where the request has `ended`.
    ///
    /// # Errors
    /// `InvalidInput` when the template refuses the conversation, in its own words, takes no
    /// tools, or makes too much of it.
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

/// A template that cannot be used.
fn malformed(what: &str, error: Error) -> PredictError {
    let reason: String = match found::<Stop>(&error) {
        Some(stop) => stop.to_string(),
        None => error.to_string().chars().take(MAX_REFUSAL).collect(),
    };
    PredictError::invalid(format!("{what} is malformed: {reason}")).with_source(error)
}

/// A conversation that cannot be written.
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

/// A message as templates expect it: arguments of calls are objects, not texts of JSON.
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

/// What a template said when it refused.
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

/// The cause of that type.
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

/// Python's methods of texts and dictionaries.
fn method(_: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let made = match (value.as_str(), value.kind()) {
        (Some(text), _) => {
            charge_length(text.len())?;
            text_method(text, name, args)?
        }
        (None, ValueKind::Map) => map_method(value, name, args)?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    // What a map holds is there already.
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
