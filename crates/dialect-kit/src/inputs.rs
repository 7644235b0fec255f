//! Inputs of a request: texts or token ids. Pure.

use serde_json::{Map, Value};
use volley_types::PredictError;
use volley_types::params::TOKEN_INPUTS;

/// Texts or tokens, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Texts.
    Texts(Vec<String>),
    /// Lists of ids in the model's vocabulary.
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// Takes a field: a text, a list of texts, a list of token ids, or a list of such lists.
    ///
    /// # Errors
    /// `InvalidInput` naming the field.
    pub fn take(body: &mut Map<String, Value>, name: &str) -> Result<Self, PredictError> {
        match body.remove(name) {
            None | Some(Value::Null) => {
                Err(PredictError::invalid(format!("field '{name}' is missing")))
            }
            Some(value) => Self::read(value).ok_or_else(|| {
                PredictError::invalid(format!(
                    "field '{name}' must be a text, a list of texts, a list of token ids, or a \
                     list of such lists, and have at least one of them"
                ))
            }),
        }
    }

    /// `None` for other values.
    pub fn read(value: Value) -> Option<Self> {
        let items = match value {
            Value::String(text) => return Some(Self::Texts(vec![text])),
            Value::Array(items) => items,
            _ => return None,
        };
        match items.first()? {
            Value::String(_) => {
                let texts = items.into_iter().map(|item| match item {
                    Value::String(text) => Some(text),
                    _ => None,
                });
                texts.collect::<Option<_>>().map(Self::Texts)
            }
            Value::Number(_) => Some(Self::Tokens(vec![ids(&items)?])),
            Value::Array(_) => {
                let lists = items.iter().map(|item| ids(item.as_array()?));
                lists.collect::<Option<_>>().map(Self::Tokens)
            }
            _ => None,
        }
    }

    /// Converts the input to texts; token ids become JSON lists, and a parameter marks them.
    pub fn into_texts(self, parameters: &mut Map<String, Value>) -> Vec<String> {
        match self {
            Self::Texts(texts) => texts,
            Self::Tokens(lists) => {
                parameters.insert(TOKEN_INPUTS.to_owned(), true.into());
                let written = lists.into_iter().map(|ids| Value::from(ids).to_string());
                written.collect()
            }
        }
    }
}

/// Parses a non-empty list of token ids.
fn ids(items: &[Value]) -> Option<Vec<u32>> {
    let ids = items.iter().map(|item| u32::try_from(item.as_u64()?).ok());
    let ids: Vec<_> = ids.collect::<Option<_>>()?;
    (!ids.is_empty()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_tokens_are_told_apart_and_a_mixture_is_refused() {
        for (given, wanted) in [
            (json!("a"), Inputs::Texts(vec!["a".to_owned()])),
            (
                json!(["a", "b"]),
                Inputs::Texts(vec!["a".to_owned(), "b".to_owned()]),
            ),
            (json!([1, 2]), Inputs::Tokens(vec![vec![1, 2]])),
            (
                json!([[1], [2, 3]]),
                Inputs::Tokens(vec![vec![1], vec![2, 3]]),
            ),
        ] {
            assert_eq!(Inputs::read(given), Some(wanted));
        }
        for bad in [
            json!([]),
            json!([[]]),
            json!([1, "a"]),
            json!(["a", 1]),
            json!(["a", [1]]),
            json!([[1], 2]),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296_u64]),
            json!({}),
            json!(null),
        ] {
            assert_eq!(Inputs::read(bad.clone()), None, "{bad}");
        }
        let mut parameters = Map::new();
        let texts = Inputs::Tokens(vec![vec![1, 2]]).into_texts(&mut parameters);
        assert_eq!(texts, ["[1,2]"]);
        assert_eq!(parameters[TOKEN_INPUTS], true);
    }
}
