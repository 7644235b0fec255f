//! Parameters with several names.

use volley_types::{Parameters, PredictError};

/// The names of the parameter for the maximum length of an answer.
pub(super) const LENGTHS: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "n_predict",
];
/// The names of the penalty for repeated tokens.
pub(super) const PENALTIES: [&str; 2] = ["repetition_penalty", "repeat_penalty"];

/// The first of several names of a parameter that is set, else the first name.
///
/// # Errors
/// `InvalidInput` with two names that have different values.
pub(super) fn named<'a>(
    parameters: &Parameters,
    names: &[&'a str],
) -> Result<&'a str, PredictError> {
    let given = names.iter().copied();
    let mut given = given.filter(|name| parameters.get(name).is_some());
    let Some(first) = given.next() else {
        return Ok(names.first().copied().unwrap_or_default());
    };
    match given.find(|name| parameters.get(name) != parameters.get(first)) {
        Some(other) => Err(PredictError::invalid(format!(
            "parameter '{first}' and parameter '{other}' contradict each other; send one of them"
        ))),
        None => Ok(first),
    }
}

/// Adds `defaults` for missing parameters. A parameter that is set under another name is not
/// missing.
pub(crate) fn or_defaults(parameters: Parameters, defaults: &Parameters) -> Parameters {
    let is_set = |name: &str| {
        let mut groups = [&LENGTHS[..], &PENALTIES[..]].into_iter();
        let names = groups.find(|names| names.contains(&name));
        let mut names = names.into_iter().flatten();
        names.any(|name| parameters.get(name).is_some())
    };
    let missing = defaults.iter().filter(|(name, _)| !is_set(name));
    let missing: Parameters = missing
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    parameters.or_defaults(&missing)
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn of(pairs: &[(&str, i64)]) -> Parameters {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), ParamValue::Int(*value)))
            .collect()
    }

    #[test]
    fn two_names_of_a_parameter_have_one_value() {
        let contradicting = of(&[("max_tokens", 4), ("max_completion_tokens", 3)]);
        let error = named(&contradicting, &LENGTHS).unwrap_err();
        assert!(error.message.contains("'max_tokens'"), "{error}");
        assert!(error.message.contains("'max_completion_tokens'"), "{error}");
        let agreeing = of(&[("max_new_tokens", 4), ("n_predict", 4)]);
        assert_eq!(named(&agreeing, &LENGTHS).unwrap(), "max_new_tokens");
        assert_eq!(named(&of(&[]), &PENALTIES).unwrap(), "repetition_penalty");
    }

    #[test]
    fn a_default_under_another_name_is_no_contradiction() {
        let defaults = of(&[("max_tokens", 9), ("top_k", 5)]);
        let merged = or_defaults(of(&[("max_completion_tokens", 3)]), &defaults);
        assert_eq!(merged, of(&[("max_completion_tokens", 3), ("top_k", 5)]));
        assert_eq!(or_defaults(of(&[("top_k", 1)]), &defaults).len(), 2);
    }
}
