//! Converts reasoning effort between levels and token budgets. Pure.

use serde_json::Value;
use volley_types::PredictError;

use crate::parameters::RequestFields;

/// A reasoning level, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// The least reasoning.
    Minimal,
    /// Little reasoning.
    Low,
    /// Medium reasoning.
    Medium,
    /// Much reasoning.
    High,
    /// More than `High`.
    Xhigh,
    /// The maximum of the model.
    Max,
}

const EFFORTS: [(&str, Effort, u64); 6] = [
    ("minimal", Effort::Minimal, 128),
    ("low", Effort::Low, 1_024),
    ("medium", Effort::Medium, 2_048),
    ("high", Effort::High, 4_096),
    ("xhigh", Effort::Xhigh, 8_192),
    ("max", Effort::Max, 16_384),
];

impl Effort {
    fn of_name(name: &str) -> Option<Self> {
        let known = EFFORTS.iter().find(|(known, ..)| *known == name);
        known.map(|(_, effort, _)| *effort)
    }

    /// The level's name in OpenAI's interfaces.
    pub fn as_str(self) -> &'static str {
        let known = EFFORTS.iter().find(|(_, effort, _)| *effort == self);
        known.map_or("medium", |(name, ..)| name)
    }

    /// The token budget that corresponds to the level.
    pub fn budget(self) -> u64 {
        let known = EFFORTS.iter().find(|(_, effort, _)| *effort == self);
        known.map_or(2_048, |(.., budget)| *budget)
    }

    /// The highest level whose budget is at most `budget` tokens.
    fn of_budget(budget: u64) -> Self {
        let mut fitting = EFFORTS.iter().rev().filter(|(.., known)| *known <= budget);
        fitting
            .next()
            .map_or(Self::Minimal, |(_, effort, _)| *effort)
    }
}

/// The reasoning that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// No reasoning.
    Off,
    /// The model decides.
    On,
    /// A level.
    Level(Effort),
    /// A maximum number of tokens.
    Budget(u64),
}

impl Thinking {
    /// As a level; `None` without reasoning, and where the model decides.
    pub fn level(self) -> Option<Effort> {
        match self {
            Self::Level(effort) => Some(effort),
            Self::Budget(budget) => Some(Effort::of_budget(budget)),
            Self::Off | Self::On => None,
        }
    }

    /// As a number of tokens; `None` without reasoning, and where the model decides.
    pub fn budget(self) -> Option<u64> {
        match self {
            Self::Level(effort) => Some(effort.budget()),
            Self::Budget(budget) => Some(budget),
            Self::Off | Self::On => None,
        }
    }
}

/// Removes `reasoning_effort` and `thinking` from the parameters and returns what they ask for.
///
/// # Errors
/// `InvalidInput` naming a malformed parameter, or both if they contradict each other.
pub fn take(request: &mut RequestFields<'_>) -> Result<Option<Thinking>, PredictError> {
    let level = request
        .take("reasoning_effort")
        .map(|effort| of_effort(&effort));
    let thinking = request
        .take("thinking")
        .map(|thinking| of_thinking(&thinking));
    let (level, thinking) = (level.transpose()?, thinking.transpose()?);
    Ok(match (level, thinking) {
        (level, None) | (level @ Some(_), Some(Thinking::On)) => level,
        (None, thinking) => thinking,
        (Some(level), Some(thinking)) if level == thinking => Some(level),
        (Some(_), Some(_)) => {
            return Err(PredictError::invalid(
                "parameter 'thinking' and parameter 'reasoning_effort' contradict each other; \
                 send one of them",
            ));
        }
    })
}

fn of_effort(effort: &Value) -> Result<Thinking, PredictError> {
    let name = effort.as_str().unwrap_or_default();
    if name == "none" {
        return Ok(Thinking::Off);
    }
    Effort::of_name(name).map(Thinking::Level).ok_or_else(|| {
        PredictError::invalid(
            "parameter 'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max",
        )
    })
}

/// Parses `thinking` in the format of Anthropic and Cohere.
fn of_thinking(thinking: &Value) -> Result<Thinking, PredictError> {
    let budget = ["budget_tokens", "token_budget"];
    let budget = budget.iter().find_map(|name| thinking[*name].as_u64());
    match (thinking["type"].as_str(), budget) {
        (Some("disabled"), _) => Ok(Thinking::Off),
        (Some("adaptive"), _) | (Some("enabled"), None) => Ok(Thinking::On),
        (Some("enabled"), Some(budget)) => Ok(Thinking::Budget(budget)),
        _ => Err(PredictError::invalid(
            "parameter 'thinking' must be an object of the type 'enabled', 'adaptive' or 'disabled'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_and_budgets_stand_for_each_other() {
        for (name, effort, budget) in EFFORTS {
            assert_eq!(of_effort(&name.into()).unwrap(), Thinking::Level(effort));
            assert_eq!(Thinking::Budget(budget).level(), Some(effort));
            assert_eq!(Thinking::Level(effort).budget(), Some(budget));
        }
        assert_eq!(of_effort(&"none".into()).unwrap(), Thinking::Off);
        assert_eq!(Thinking::Budget(5_000).level(), Some(Effort::High));
        assert_eq!(Thinking::Budget(1).level(), Some(Effort::Minimal));
        let claude = json!({ "type": "enabled", "budget_tokens": 2_048 });
        assert_eq!(of_thinking(&claude).unwrap(), Thinking::Budget(2_048));
        let cohere = json!({ "type": "enabled", "token_budget": 9 });
        assert_eq!(of_thinking(&cohere).unwrap(), Thinking::Budget(9));
        let off = json!({ "type": "disabled" });
        assert_eq!(of_thinking(&off).unwrap(), Thinking::Off);
        assert!(of_thinking(&json!(true)).is_err());
        assert!(
            of_effort(&json!("hard"))
                .unwrap_err()
                .message
                .contains("'reasoning_effort'")
        );
    }
}
