use super::*;

fn read(pairs: &[(&str, ParamValue)]) -> Result<Options, PredictError> {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    let parameters: Parameters = pairs.collect();
    check_names(&parameters, None)?;
    Options::read(&parameters, 1_000)
}

fn json(text: &str) -> ParamValue {
    ParamValue::Json(text.into())
}

#[test]
fn nothing_given_is_greedy_and_anything_of_sampling_turns_it_on() {
    assert!(read(&[]).unwrap().sampling.temperature.abs() < f32::EPSILON);
    for (name, value) in [
        ("top_p", ParamValue::Float(0.9)),
        ("seed", ParamValue::Int(7)),
    ] {
        let sampling = read(&[(name, value)]).unwrap().sampling;
        assert!((sampling.temperature - 1.0).abs() < f32::EPSILON);
    }
    let both = read(&[
        ("temperature", ParamValue::Int(0)),
        ("seed", ParamValue::Int(7)),
    ]);
    assert!(both.unwrap().sampling.temperature.abs() < f32::EPSILON);
}

#[test]
fn an_answer_goes_to_the_context_unless_less_is_asked_for() {
    for (given, expected) in [
        (vec![], 1_000),
        (vec![("max_tokens", ParamValue::Int(7))], 7),
        (vec![("n_predict", ParamValue::Int(7))], 7),
        (vec![("max_tokens", ParamValue::Int(-1))], 1_000),
        (vec![("max_tokens", ParamValue::Int(1_000_000))], 1_000),
        (
            vec![
                ("max_tokens", ParamValue::Int(0)),
                ("raw", ParamValue::Bool(true)),
            ],
            0,
        ),
    ] {
        assert_eq!(read(&given).unwrap().max_tokens, expected, "{given:?}");
    }
}

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    for (name, value) in [
        ("max_tokens", ParamValue::Int(0)),
        ("max_tokens", ParamValue::Int(-2)),
        ("min_tokens", ParamValue::Int(1_001)),
        ("temperature", ParamValue::Float(-0.1)),
        ("top_p", ParamValue::Float(1.1)),
        ("min_p", ParamValue::Float(-0.5)),
        ("repetition_penalty", ParamValue::Int(0)),
        ("repeat_penalty", ParamValue::Int(0)),
        ("top_logprobs", ParamValue::Int(21)),
        ("logprobs", ParamValue::Int(21)),
        ("logit_bias", json(r#"{"1": 101}"#)),
        ("logit_bias", json(r#"{"fox": 1}"#)),
        ("stop_token_ids", json(r#"["a"]"#)),
        ("allowed_token_ids", json("[]")),
        ("bad_words", json(r#"[""]"#)),
        ("tool_choice", ParamValue::Text("required".into())),
        ("tool_choice", ParamValue::Text("perhaps".into())),
        ("stop", ParamValue::Text(String::new())),
        ("chat_template_kwargs", json("[1]")),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert!(error.message.contains(name), "{}", error.message);
    }
}

#[test]
fn a_name_that_nothing_knows_is_refused_with_the_nearest() {
    for (name, nearest) in [
        ("temprature", Some("'temperature'")),
        ("max_token", Some("'max_tokens'")),
        ("topp", Some("'top_p'")),
        ("colour_of_the_sky", None),
    ] {
        let error = read(&[(name, ParamValue::Int(1))]).unwrap_err();
        assert!(error.message.contains(name), "{}", error.message);
        assert_eq!(
            nearest.is_some(),
            error.message.contains("did you mean"),
            "{}",
            error.message
        );
        if let Some(nearest) = nearest {
            assert!(error.message.contains(nearest), "{}", error.message);
        }
    }
}

#[test]
fn what_changes_nothing_is_taken_and_what_would_is_refused_by_name() {
    for (name, value) in [
        ("user", ParamValue::Text("u".into())),
        ("metadata", json("{}")),
        ("best_of", ParamValue::Int(1)),
        ("use_beam_search", ParamValue::Bool(false)),
        ("skip_special_tokens", ParamValue::Bool(true)),
        ("top_k", ParamValue::Int(-1)),
        ("cache_prompt", ParamValue::Bool(true)),
    ] {
        read(&[(name, value)]).unwrap_or_else(|error| panic!("{name}: {}", error.message));
    }
    for (name, value) in [
        ("best_of", ParamValue::Int(2)),
        ("use_beam_search", ParamValue::Bool(true)),
        ("skip_special_tokens", ParamValue::Bool(false)),
        ("chat_template", ParamValue::Text("{{ 1 }}".into())),
        ("prompt_logprobs", ParamValue::Int(1)),
        ("dry_multiplier", ParamValue::Float(0.8)),
        ("mirostat", ParamValue::Int(2)),
        ("suffix", ParamValue::Text("s".into())),
        ("functions", json("[]")),
        ("reasoning_effort", ParamValue::Text("high".into())),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert!(error.message.contains(name), "{}", error.message);
    }
}

#[test]
fn a_required_call_needs_tools() {
    let choice = ("tool_choice", ParamValue::Text("required".into()));
    let error = read(&[choice]).unwrap_err();
    assert!(error.message.contains("'tools' lists none"), "{error}");
}

#[test]
fn two_lengths_that_differ_are_refused() {
    let error = read(&[
        ("max_tokens", ParamValue::Int(4)),
        ("max_completion_tokens", ParamValue::Int(3)),
    ]);
    let message = error.unwrap_err().message;
    assert!(message.contains("'max_completion_tokens'"), "{message}");
}

#[test]
fn a_number_of_log_probabilities_is_one_of_alternatives() {
    let one = read(&[("logprobs", ParamValue::Int(1))]).unwrap();
    assert_eq!(one.logprobs, Some(1));
    let none = read(&[("logprobs", ParamValue::Bool(false))]).unwrap();
    assert_eq!(none.logprobs, None);
    let told = read(&[("logprobs", ParamValue::Bool(true))]).unwrap();
    assert_eq!(told.logprobs, Some(0));
}
