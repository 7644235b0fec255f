//! Chat templates as models bring them along: Jinja, with the few Python methods and the one
//! function that their authors take for granted.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};
use volley_types::{ChatMessage, PredictError};

use super::tools::CallStyle;

/// The name of the template in its environment.
const TEMPLATE: &str = "chat";
/// The name of the one for conversations with tools, where there are two.
const WITH_TOOLS: &str = "tools";
/// Of what a template says about a conversation that it refuses, at most so many characters.
const MAX_REFUSAL: usize = 300;

/// A chat template with the special tokens that it may name.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    takes_tools: bool,
    /// There is a template of its own for tools.
    apart: bool,
    style: CallStyle,
}

impl ChatTemplate {
    /// The template with this source.
    ///
    /// # Errors
    /// `InvalidInput` when it is malformed.
    pub(crate) fn new(source: String, bos: String, eos: String) -> Result<Self, PredictError> {
        let mut environment = Environment::new();
        // As the templates' own library sets it up.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| {
            PredictError::internal("the template syntax could not be set up", error)
        })?);
        environment.add_function("raise_exception", refuse);
        environment.set_unknown_method_callback(method);
        let takes_tools = source.contains("tools");
        let style = CallStyle::of(&source);
        environment
            .add_template_owned(TEMPLATE, source)
            .map_err(|error| {
                PredictError::invalid("the chat template is malformed").with_source(error)
            })?;
        Ok(Self {
            environment,
            bos,
            eos,
            takes_tools,
            apart: false,
            style,
        })
    }

    /// With this source for conversations with tools.
    ///
    /// # Errors
    /// `InvalidInput` when it is malformed.
    pub(crate) fn with_tools(mut self, source: String) -> Result<Self, PredictError> {
        self.style = CallStyle::of(&source);
        self.environment
            .add_template_owned(WITH_TOOLS, source)
            .map_err(|error| {
                PredictError::invalid("the chat template for tools is malformed").with_source(error)
            })?;
        (self.takes_tools, self.apart) = (true, true);
        Ok(self)
    }

    /// How it teaches a model to write calls.
    pub(crate) fn call_style(&self) -> CallStyle {
        self.style
    }

    /// Whether it writes tools into a prompt.
    pub(crate) fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// The conversation, and the tools that may be called in it (a JSON array in OpenAI's
    /// form), as one text that ends where the answer begins.
    ///
    /// # Errors
    /// `InvalidInput` when the template refuses the conversation, in its own words, or takes no
    /// tools.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        tools: Option<&serde_json::Value>,
    ) -> Result<String, PredictError> {
        if tools.is_some() && !self.takes_tools {
            return Err(PredictError::invalid(
                "this model's chat template takes no tools; leave 'tools' out",
            ));
        }
        let messages = messages.iter().map(message);
        let messages: Vec<_> = messages.collect::<Result<_, _>>()?;
        let rendered = self
            .environment
            .get_template(if tools.is_some() && self.apart {
                WITH_TOOLS
            } else {
                TEMPLATE
            })
            .and_then(|template| {
                template.render(context! {
                    messages => messages,
                    tools => tools.map(|tools| Value::from(Serde(tools))),
                    add_generation_prompt => true,
                    bos_token => &self.bos,
                    eos_token => &self.eos,
                })
            });
        rendered.map_err(|error| {
            let message = "the messages do not fit the model's chat template";
            let message = match refusal(&error) {
                Some(reason) => format!("{message}: {reason}"),
                None => message.to_owned(),
            };
            PredictError::invalid(message).with_source(error)
        })
    }
}

/// A message as templates expect it: arguments of calls are objects, not texts of JSON.
fn message(message: &ChatMessage) -> Result<Value, PredictError> {
    let mut fields = BTreeMap::from([
        ("role", Value::from(message.role.as_str())),
        ("content", Value::from(message.content.as_str())),
    ]);
    if let Some(id) = &message.tool_call_id {
        fields.insert("tool_call_id", Value::from(id.as_str()));
    }
    if let Some(calls) = &message.tool_calls {
        let wrong = || PredictError::invalid("a message's 'tool_calls' must be a list of calls");
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
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(Refusal(reason)) = error.downcast_ref() {
            return Some(reason);
        }
        next = error.source();
    }
    None
}

/// Python's methods of texts and dictionaries.
fn method(_: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text_method(text, name, args),
        (None, ValueKind::Map) => map_method(value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
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
        "replace" => from_args(args).map(|(from, to)| Value::from(text.replace::<&str>(from, to))),
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
mod tests {
    use super::*;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, PredictError> {
        let messages: Vec<_> = messages
            .iter()
            .map(|(role, content)| ChatMessage::new(*role, *content))
            .collect();
        let template = ChatTemplate::new(source.to_owned(), "<s>".to_owned(), "</s>".to_owned())?;
        template.render(&messages, None)
    }

    #[test]
    fn tools_and_calls_reach_the_template_as_objects() {
        let source = "{{ tools[0].function.name }}|{% for m in messages %}\
            {% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}\
            {{ m.tool_call_id }}{{ m.content }};{% endfor %}{{ tools | tojson }}";
        let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
        let calls = r#"[{"id":"c","function":{"name":"f","arguments":"{\"city\":\"Rome\"}"}}]"#;
        let said = [
            ChatMessage {
                tool_calls: Some(calls.to_owned()),
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage {
                tool_call_id: Some("c".to_owned()),
                ..ChatMessage::new("tool", "21")
            },
        ];
        let tools = serde_json::json!([{ "function": { "name": "f" } }]);
        assert_eq!(
            template.render(&said, Some(&tools)).unwrap(),
            r#"f|Rome;c21;[{"function": {"name": "f"}}]"#
        );
    }

    #[test]
    fn templates_use_what_python_gives_them() {
        let source = "{{ bos_token }}{% for m in messages %}
            {%- if m.role.startswith('us') %}U:{{ m.content.strip() }}
            {%- else %}{{ m.get('name', 'A') }}:{{ m['content'].split('|')[-1] | trim }}{% endif %}{{ eos_token }}
            {%- endfor %}{% if add_generation_prompt %}A:{% endif %}";
        let told = render(
            source,
            &[("user", "  hi \n"), ("assistant", "thought| hello")],
        );
        assert_eq!(told.unwrap(), "<s>U:hi</s>A:hello</s>A:");
        let methods = "{{ 'xaxx'.strip('x') }} {{ 'aB'.upper() }} {{ 'aB'.lower() }} \
                       {{ 'a b'.replace(' ', '-') }} {{ 'ab'.endswith('b') }} \
                       {% for k, v in {'k': 1}.items() %}{{ k }}{{ v }}{% endfor %}";
        assert_eq!(render(methods, &[]).unwrap(), "a AB ab a-b True k1");
    }

    #[test]
    fn a_template_says_itself_why_it_refuses() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let error = render(source, &[("user", "hi")]).unwrap_err();
        assert!(
            error.message.ends_with(": roles must alternate"),
            "{}",
            error.message
        );
        let error = render("{{ 'x'.no_such_method() }}", &[]).unwrap_err();
        assert!(!error.message.contains(':'), "{}", error.message);
        assert!(
            render("{% if %}", &[]).is_err(),
            "a malformed template is refused"
        );
    }
}
