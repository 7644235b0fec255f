//! Sampling options of Ollama without a counterpart here. They are accepted only with values that
//! change nothing. Pure.

use serde_json::{Map, Value};
use volley_types::PredictError;

/// Options with the values that have no effect.
const NEUTRAL: [(&str, &[f64]); 4] = [
    ("mirostat", &[0.0]),
    // Contexts are not shifted here, so that nothing is discarded. 4 is Ollama's default.
    ("num_keep", &[0.0, 4.0]),
    ("tfs_z", &[1.0]),
    ("typical_p", &[1.0]),
];
/// Options that have an effect only with `mirostat`, which is rejected.
const OF_MIROSTAT: [&str; 2] = ["mirostat_eta", "mirostat_tau"];
/// Penalties with the values that disable them.
const PENALTIES: [(&str, f64); 3] = [
    ("repeat_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

/// Whether `name` is a sampling option without a counterpart whose value has no effect beside the
/// other options, `all`.
///
/// # Errors
/// `InvalidInput` naming the option, if its value has an effect.
pub(super) fn is_neutral(
    name: &str,
    value: &Value,
    all: Option<&Map<String, Value>>,
) -> Result<bool, PredictError> {
    let number = value.as_f64();
    let is = |neutral: f64| number.is_some_and(|it| (it - neutral).abs() < f64::EPSILON);
    if OF_MIROSTAT.contains(&name) {
        return match number {
            Some(_) => Ok(true),
            None => Err(refused(name, "it must be a number")),
        };
    }
    if let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) {
        return match neutral.iter().any(|neutral| is(*neutral)) {
            true => Ok(true),
            false => Err(refused(
                name,
                &format!("leave it out or set it to {}", neutral[0]),
            )),
        };
    }
    match name {
        // Penalties here apply to every token of the whole text.
        "repeat_last_n" if is(-1.0) || number.is_some() && !is_penalized(all) => Ok(true),
        "repeat_last_n" => Err(refused(name, "leave it out or set it to -1")),
        "penalize_newline" if *value == Value::Bool(true) => Ok(true),
        "penalize_newline" if *value == Value::Bool(false) && !is_penalized(all) => Ok(true),
        "penalize_newline" => Err(refused(name, "leave it out or set it to true")),
        _ => Ok(false),
    }
}

/// Whether one of the options is a penalty with an effect.
fn is_penalized(all: Option<&Map<String, Value>>) -> bool {
    PENALTIES.iter().any(|(name, neutral)| {
        let given = all.and_then(|all| all.get(*name)).and_then(Value::as_f64);
        given.is_some_and(|given| (given - neutral).abs() >= f64::EPSILON)
    })
}

fn refused(name: &str, what: &str) -> PredictError {
    PredictError::invalid(format!("option '{name}' is not supported: {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(options: &Value) -> Result<bool, String> {
        let all = options.as_object().unwrap();
        let mut neutral = true;
        for (name, value) in all.iter().filter(|(name, _)| !name.ends_with("_penalty")) {
            neutral &= is_neutral(name, value, Some(all)).map_err(|error| error.message)?;
        }
        Ok(neutral)
    }

    #[test]
    fn sampling_without_a_counterpart_is_refused_by_name_unless_it_changes_nothing() {
        for (name, nothing, something) in [
            ("mirostat", json!(0), json!(2)),
            ("num_keep", json!(4), json!(24)),
            ("penalize_newline", json!(true), json!("no")),
            ("repeat_last_n", json!(64), json!("all")),
            ("tfs_z", json!(1), json!(0.5)),
            ("typical_p", json!(1.0), json!(0.2)),
            ("mirostat_tau", json!(5.0), json!("5")),
        ] {
            assert_eq!(read(&json!({ name: nothing })), Ok(true), "{name}");
            let error = read(&json!({ name: something })).unwrap_err();
            assert!(error.contains(&format!("'{name}'")), "{error}");
        }
        assert_eq!(read(&json!({ "temperature": 1 })), Ok(false));
    }

    #[test]
    fn a_window_of_penalties_has_an_effect_only_beside_one() {
        for (penalty, neutral) in PENALTIES {
            let beside = |name: &str, value: Value, strength: f64| {
                read(&json!({ name: value, penalty: strength }))
            };
            assert_eq!(beside("repeat_last_n", json!(64), neutral), Ok(true));
            assert_eq!(beside("repeat_last_n", json!(-1), 1.5), Ok(true));
            assert_eq!(beside("penalize_newline", json!(false), neutral), Ok(true));
            assert!(beside("repeat_last_n", json!(64), 1.5).is_err());
            assert!(beside("penalize_newline", json!(false), 1.5).is_err());
        }
    }
}
