//! Names of tools and ids of calls that a server would reject: shortened on the way to the server,
//! and restored in its answer. The same name always becomes the same one. Pure.

use std::borrow::Cow;

use serde_json::Value;
use volley_backend::items::Item;
use volley_types::ChatMessage;

use crate::conversation::calls;
use crate::options::RequestOptions;

/// The names that a server accepts: letters and digits of ASCII, `_`, `-` and some more characters.
#[derive(Clone, Copy, Debug)]
pub struct NameRule {
    /// Maximum length in characters, at least 16.
    pub max: usize,
    /// The additional characters.
    pub more: &'static str,
}

/// The rules of a server.
#[derive(Clone, Copy, Debug)]
pub struct NameRules {
    /// The names of tools.
    pub tools: NameRule,
    /// The ids of calls; `None` if the server does not check them.
    pub ids: Option<NameRule>,
}

impl NameRule {
    /// The name, or a name for it that the server accepts.
    pub fn fit<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let is_known = |c: char| is_known(c) || self.more.contains(c);
        if name.is_empty() || name.len() <= self.max && name.chars().all(is_known) {
            return Cow::Borrowed(name);
        }
        let kept = name.chars().take(self.max.saturating_sub(9));
        let kept: String = kept.map(|c| if is_known(c) { c } else { '_' }).collect();
        Cow::Owned(format!("{kept}_{:08x}", sum(name)))
    }
}

/// The FNV-1a checksum, which is the same on each node.
fn sum(text: &str) -> u32 {
    let bytes = text.bytes();
    bytes.fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The request with names that the server accepts; `None` if it has only such names.
pub fn fitted(
    rules: NameRules,
    item: &Item,
    options: &RequestOptions,
) -> Option<(Item, RequestOptions)> {
    let (mut made, mut changed) = (options.clone(), false);
    for name in names_of(&mut made) {
        changed |= fit(name, rules.tools);
    }
    let mut item = item.clone();
    if let Item::Chat(messages) = &mut item {
        for message in messages {
            changed |= fit_message(message, rules);
        }
    }
    changed.then_some((item, made))
}

/// The tools' names and the caller's names of them: names of the caller that the server gets under
/// another one.
pub fn changed(rules: NameRules, tools: &Value) -> Vec<(String, String)> {
    let tools = tools.as_array().into_iter().flatten();
    let names = tools.filter_map(|tool| tool.pointer("/function/name")?.as_str());
    let pairs = names.filter_map(|name| match rules.tools.fit(name) {
        Cow::Owned(sent) => Some((sent, name.to_owned())),
        Cow::Borrowed(_) => None,
    });
    pairs.collect()
}

/// The names of tools in the parameters of a request.
fn names_of(options: &mut RequestOptions) -> Vec<&mut Value> {
    let mut names = Vec::new();
    for (name, value) in &mut options.fields {
        match (name.as_str(), value) {
            ("tools", Value::Array(tools)) => {
                names.extend(
                    tools
                        .iter_mut()
                        .filter_map(|it| it.pointer_mut("/function/name")),
                );
            }
            ("tool_choice", choice) if choice.pointer("/allowed_tools/tools").is_some() => {
                let tools = choice.pointer_mut("/allowed_tools/tools");
                let tools = tools.and_then(Value::as_array_mut).into_iter().flatten();
                names.extend(tools.filter_map(|it| it.pointer_mut("/function/name")));
            }
            ("tool_choice", choice) => names.extend(choice.pointer_mut("/function/name")),
            _ => {}
        }
    }
    names
}

fn fit(value: &mut Value, rule: NameRule) -> bool {
    let sent = value.as_str().and_then(|name| match rule.fit(name) {
        Cow::Owned(sent) => Some(sent),
        Cow::Borrowed(_) => None,
    });
    let is_other = sent.is_some();
    if let Some(sent) = sent {
        *value = sent.into();
    }
    is_other
}

fn fit_message(message: &mut ChatMessage, rules: NameRules) -> bool {
    let (mut calls, mut changed) = (calls(message), false);
    for call in &mut calls {
        if let Some(name) = call.pointer_mut("/function/name") {
            changed |= fit(name, rules.tools);
        }
        if let (Some(id), Some(rule)) = (call.get_mut("id"), rules.ids) {
            changed |= fit(id, rule);
        }
    }
    if changed {
        message.tool_calls = Some(Value::Array(calls).to_string());
    }
    if let (Some(id), Some(rule)) = (&mut message.tool_call_id, rules.ids)
        && let Cow::Owned(sent) = rule.fit(id)
    {
        *id = sent;
        changed = true;
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: NameRules = NameRules {
        tools: NameRule { max: 64, more: "" },
        ids: Some(NameRule {
            max: 64,
            more: ".:",
        }),
    };

    #[test]
    fn names_that_a_server_rejects_have_others_and_return() {
        let long = "a".repeat(65);
        for name in ["files.read", "größe", &long] {
            let sent = RULES.tools.fit(name);
            assert!(sent != name && sent.len() <= 64, "{sent}");
            assert_eq!(RULES.tools.fit(&sent), sent, "it fits");
        }
        assert_ne!(RULES.tools.fit("a.b"), RULES.tools.fit("a:b"));
        assert_eq!(RULES.tools.fit("files_read-2"), "files_read-2");
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let mut options = RequestOptions::default();
        let tools = json!([tool("a.b"), tool("c")]);
        options.fields.insert("tools".to_owned(), tools.clone());
        options.fields.insert("tool_choice".to_owned(), tool("a.b"));
        let call = json!({ "id": "call|1", "function": { "name": "a.b", "arguments": "{}" } });
        let item = Item::Chat(vec![
            ChatMessage {
                tool_calls: Some(json!([call]).to_string()),
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage {
                tool_call_id: Some("call|1".to_owned()),
                ..ChatMessage::new("tool", "21")
            },
        ]);
        let (item, made) = fitted(RULES, &item, &options).unwrap();
        let sent = RULES.tools.fit("a.b");
        assert_eq!(made.fields["tools"][0]["function"]["name"], *sent);
        assert_eq!(made.fields["tool_choice"]["function"]["name"], *sent);
        let Item::Chat(talk) = &item else { panic!() };
        let called = &calls(&talk[0])[0];
        assert_eq!(called["function"]["name"], *sent);
        assert_eq!(called["id"], talk[1].tool_call_id.as_deref().unwrap());
        let pairs = [(sent.into_owned(), "a.b".to_owned())];
        assert_eq!(changed(RULES, &tools), pairs);
        assert!(fitted(RULES, &item, &made).is_none());
    }
}
