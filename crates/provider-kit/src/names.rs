//! Names of tools and ids of calls that a server would reject: shortened on the way to the server,
//! and restored in its answer. The same name always becomes the same one. Pure.

use std::borrow::Cow;

use serde_json::Value;
use volley_backend::items::Item;
use volley_types::ChatMessage;

use crate::conversation::calls;
use crate::options::RequestOptions;

/// The names that a server accepts: letters and digits of ASCII, `_` and some more characters.
#[derive(Clone, Copy, Debug)]
pub struct NameRule {
    /// Maximum length in characters, at least 16.
    pub max: usize,
    /// The additional characters.
    pub more: &'static str,
    /// Whether the first character must be a letter or `_`.
    pub starts_with_letter: bool,
}

/// The ids of calls that a server accepts.
#[derive(Clone, Copy, Debug)]
pub enum IdRule {
    /// The same characters as in names.
    Name(NameRule),
    /// Exactly this number of letters and digits of ASCII, at most 10.
    Letters(usize),
}

/// The rules of a server.
#[derive(Clone, Copy, Debug)]
pub struct NameRules {
    /// The names of tools.
    pub tools: NameRule,
    /// The ids of calls; `None` if the server does not check them.
    pub ids: Option<IdRule>,
    /// Domains of the servers with these rules; empty for all servers of a provider.
    pub domains: &'static [&'static str],
}

impl NameRule {
    /// Names of 1 to `max` letters, digits, `_` and `-`.
    #[must_use]
    pub const fn up_to(max: usize) -> Self {
        Self {
            max,
            more: "-",
            starts_with_letter: false,
        }
    }

    /// The name, or a name for it that the server accepts.
    pub fn fit<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let is_known = |c: char| c.is_ascii_alphanumeric() || c == '_' || self.more.contains(c);
        let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
        let begins = !self.starts_with_letter || name.starts_with(starts);
        if name.is_empty() || name.len() <= self.max && begins && name.chars().all(is_known) {
            return Cow::Borrowed(name);
        }
        let first = if begins { "" } else { "_" };
        let kept = name.chars().take(self.max.saturating_sub(9 + first.len()));
        let kept: String = kept.map(|c| if is_known(c) { c } else { '_' }).collect();
        Cow::Owned(format!("{first}{kept}_{:08x}", sum(name)))
    }
}

impl IdRule {
    /// The id, or an id for it that the server accepts.
    pub fn fit<'a>(&self, id: &'a str) -> Cow<'a, str> {
        let count = match self {
            Self::Name(rule) => return rule.fit(id),
            Self::Letters(count) => *count,
        };
        if id.len() == count && id.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Cow::Borrowed(id);
        }
        let left = std::iter::successors(Some(long_sum(id)), |left| Some(left / 36));
        let digits = left.filter_map(|left| char::from_digit(u32::try_from(left % 36).ok()?, 36));
        Cow::Owned(digits.take(count).collect())
    }
}

/// The FNV-1a checksum, which is the same on each node.
fn sum(text: &str) -> u32 {
    let bytes = text.bytes();
    bytes.fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The same checksum with 64 bits.
fn long_sum(text: &str) -> u64 {
    let bytes = text.bytes();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
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
    replace(value, |name| rule.fit(name))
}

fn replace(value: &mut Value, fit: impl Fn(&str) -> Cow<'_, str>) -> bool {
    let sent = value.as_str().and_then(|name| match fit(name) {
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
        changed |= fit_call(call, rules);
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

fn fit_call(call: &mut Value, rules: NameRules) -> bool {
    let mut changed = false;
    if let Some(name) = call.pointer_mut("/function/name") {
        changed |= fit(name, rules.tools);
    }
    if let (Some(id), Some(rule)) = (call.get_mut("id"), rules.ids) {
        changed |= replace(id, |id| rule.fit(id));
    }
    changed
}

/// Replaces the names and ids in messages of chat completions that the server would reject.
pub fn fit_chat(rules: NameRules, messages: &mut Value) {
    for message in messages.as_array_mut().into_iter().flatten() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            fit_call(call, rules);
        }
        if let Some(name) = message.pointer_mut("/function_call/name") {
            fit(name, rules.tools);
        }
        if message["role"] == "function"
            && let Some(name) = message.get_mut("name")
        {
            fit(name, rules.tools);
        }
        if let (Some(id), Some(rule)) = (message.get_mut("tool_call_id"), rules.ids) {
            replace(id, |id| rule.fit(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: NameRules = NameRules {
        tools: NameRule::up_to(64),
        ids: Some(IdRule::Name(NameRule {
            more: "-.:",
            ..NameRule::up_to(64)
        })),
        domains: &[],
    };

    #[test]
    fn a_first_character_and_an_exact_length_are_kept_as_rules_too() {
        let rule = NameRule {
            max: 64,
            more: "",
            starts_with_letter: true,
        };
        assert_eq!(rule.fit("_f1"), "_f1");
        for name in ["1f", "read-file", &"1".repeat(70)] {
            let sent = rule.fit(name).into_owned();
            assert!(sent != name && rule.fit(&sent) == sent, "{sent}");
        }
        let nine = IdRule::Letters(9);
        assert_eq!(nine.fit("D681PevKs"), "D681PevKs");
        let sent = nine.fit("call_1");
        assert!(sent.len() == 9 && nine.fit(&sent) == sent, "{sent}");
        assert_eq!(sent, nine.fit("call_1"), "the same on each node");
        assert_ne!(sent, nine.fit("call_2"));
    }

    #[test]
    fn forwarded_messages_have_the_same_names() {
        let call = json!({ "id": "call|1", "function": { "name": "a.b", "arguments": "{}" } });
        let mut messages = json!([
            { "role": "assistant", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "call|1", "content": "21" },
            { "role": "assistant", "function_call": { "name": "a.b", "arguments": "{}" } },
            { "role": "function", "name": "a.b", "content": "21" },
            { "role": "user", "name": "Ada L.", "content": "hi" },
        ]);
        fit_chat(RULES, &mut messages);
        let sent = RULES.tools.fit("a.b");
        let call = &messages[0]["tool_calls"][0];
        assert_eq!(call["function"]["name"], *sent);
        assert_eq!(call["id"], messages[1]["tool_call_id"]);
        assert_ne!(call["id"], "call|1");
        assert_eq!(messages[2]["function_call"]["name"], *sent);
        assert_eq!(messages[3]["name"], *sent);
        assert_eq!(messages[4]["name"], "Ada L.");
    }

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
