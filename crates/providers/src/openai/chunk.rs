//! The objects of a chunk: known fields, and the rest unchanged.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Defines an object with known fields, each of which may be null or missing. Fields in `passed`
/// are ignored; all others are kept in `rest`.
macro_rules! open_object {
    (
        $(#[$attribute:meta])*
        $name:ident {
            $($(#[$note:meta])* $field:ident: $kind:ty = $key:literal $(| $other:literal)*,)*
        }
        passed { $($passed:literal),* }
    ) => {
        $(#[$attribute])*
        #[derive(Default)]
        pub(super) struct $name<'a> {
            $($(#[$note])* pub(super) $field: Option<$kind>,)*
            /// Unknown fields.
            pub(super) rest: Vec<(String, &'a RawValue)>,
        }

        impl<'de: 'a, 'a> Deserialize<'de> for $name<'a> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields<'a>(std::marker::PhantomData<&'a ()>);

                impl<'de: 'a, 'a> Visitor<'de> for Fields<'a> {
                    type Value = $name<'a>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut made = $name::default();
                        while let Some(Key(key)) = map.next_key()? {
                            match key.as_ref() {
                                $($key $(| $other)* => made.$field = map.next_value()?,)*
                                $($passed => _ = map.next_value::<serde::de::IgnoredAny>()?,)*
                                _ => {
                                    let value: &'de RawValue = map.next_value()?;
                                    if value.get() != "null" {
                                        made.rest.push((key.into_owned(), value));
                                    }
                                }
                            }
                        }
                        Ok(made)
                    }
                }
                deserializer.deserialize_map(Fields(std::marker::PhantomData))
            }
        }
    };
}

open_object! {
    /// A chunk. Servers omit absent fields or send null; both have the same meaning.
    Chunk {
        choices: Vec<Choice<'a>> = "choices",
        usage: &'a RawValue = "usage",
        error: &'a RawValue = "error",
        /// `error` if the event itself is an error.
        object: Cow<'a, str> = "object",
        message: &'a RawValue = "message",
    }
    passed { "id", "created", "model", "obfuscation" }
}

impl<'a> Chunk<'a> {
    pub(super) fn failure(&self) -> Option<&'a RawValue> {
        let bare = || {
            self.message
                .filter(|_| self.object.as_deref() == Some("error"))
        };
        self.error.or_else(bare)
    }
}

open_object! {
    Choice {
        delta: Content<'a> = "delta" | "message",
        finish_reason: Cow<'a, str> = "finish_reason",
        index: u32 = "index",
        logprobs: Logprobs<'a> = "logprobs",
        /// The text of a completion, which is not a chat.
        text: &'a RawValue = "text",
    }
    passed {}
}

#[derive(Default, Deserialize)]
pub(super) struct Logprobs<'a> {
    #[serde(borrow, default)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) refusal: Option<&'a RawValue>,
}

open_object! {
    Content {
        content: ContentPart<'a> = "content",
        reasoning_content: Cow<'a, str> = "reasoning_content",
        /// The newer name of `reasoning_content`. Some servers send both.
        reasoning: Cow<'a, str> = "reasoning",
        tool_calls: &'a RawValue = "tool_calls",
        /// The predecessor of tool calls: a single call.
        function_call: &'a RawValue = "function_call",
        refusal: Cow<'a, str> = "refusal",
        annotations: Vec<Value> = "annotations",
    }
    passed { "role" }
}

/// Parses the fields.
pub(super) fn values(fields: &[(String, &RawValue)]) -> Map<String, Value> {
    let read = fields.iter().filter_map(|(name, value)| {
        let value = serde_json::from_str(value.get()).ok()?;
        Some((name.clone(), value))
    });
    read.collect()
}

/// A field name, borrowed if possible.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl<'de> Visitor<'de> for Name {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field's name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// Content: a text or, from some servers, a list of typed parts.
pub(super) enum ContentPart<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Value>),
}

impl<'de: 'a, 'a> Deserialize<'de> for ContentPart<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentPartVisitor)
    }
}

struct ContentPartVisitor;

impl<'de> Visitor<'de> for ContentPartVisitor {
    type Value = ContentPart<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(ContentPart::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(ContentPart::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            all.push(part);
        }
        Ok(ContentPart::Parts(all))
    }
}
