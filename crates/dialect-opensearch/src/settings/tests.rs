use super::*;

fn changed(persistent: Value) -> Result<Change, PredictError> {
    read(json!({ "persistent": persistent }).as_object().unwrap())
}

#[test]
fn settings_are_read_nested_and_flat_and_shown_as_texts() {
    let nested = json!({ "plugins": { "ml_commons": { "max_model_on_node": "3" } } });
    let flat = json!({ "plugins.ml_commons.max_model_on_node": 3 });
    assert_eq!(changed(nested).unwrap(), changed(flat).unwrap());
    let both = vec![
        ("plugins.ml_commons.max_model_on_node".to_owned(), json!(3)),
        ("plugins.ml_commons.stream_enabled".to_owned(), json!(true)),
    ];
    let shown = json!({ "plugins": { "ml_commons": {
        "max_model_on_node": "3", "stream_enabled": "true",
    } } });
    assert_eq!(shaped(both.clone(), false), shown);
    assert_eq!(
        shaped(both, true)["plugins.ml_commons.max_model_on_node"],
        "3"
    );
}

#[test]
fn a_long_name_is_not_written_before_each_of_those_below_it() {
    let below: Map<String, Value> = (0..100).map(|n| (n.to_string(), json!(n))).collect();
    let persistent = json!({ "a".repeat(300): below });
    let mut flat = BTreeMap::new();
    let refused = flatten("", persistent.as_object().unwrap(), &mut flat).unwrap_err();
    assert!(refused.message.contains("not recognized"), "{refused}");
    assert!(flat.is_empty());
}

#[test]
fn what_has_no_meaning_here_is_refused() {
    let long = "a".repeat(300);
    for persistent in [
        json!({ "plugins.ml_commons.unheard_of": true }),
        json!({ "cluster.routing.allocation.enable": "all" }),
        json!({ "plugins.ml_commons.max_model_on_node": 0 }),
        json!({ "plugins.ml_commons.max_model_on_node": "many" }),
        json!({ "volley.placement.strategy": "tight" }),
        json!({ "volley.placement.rebalance": "sometimes" }),
        json!({ "plugins.ml_commons.stream_enabled": "maybe" }),
        json!({ "plugins.ml_commons.trusted_connector_endpoints_regex": "x" }),
        json!({ "plugins.ml_commons.trusted_connector_endpoints_regex": ["("] }),
        json!({ "plugins.ml_commons.trusted_connector_endpoints_regex": [long] }),
        json!({ "plugins.ml_commons.connector.private_ip_enabled": true }),
        json!({ "plugins.ml_commons.model_access_control_enabled": true }),
        json!({}),
    ] {
        assert!(changed(persistent.clone()).is_err(), "{persistent}");
    }
    assert!(read(json!({ "transient": { "a": 1 } }).as_object().unwrap()).is_err());
}

#[test]
fn every_setting_has_a_name_of_its_own_and_a_default_that_is_json() {
    let names: std::collections::BTreeSet<_> = SETTINGS.iter().map(|it| it.name).collect();
    assert_eq!(names.len(), SETTINGS.len());
    for setting in SETTINGS {
        serde_json::from_str::<Value>(setting.default).unwrap();
        // A reset is always allowed.
        assert_eq!(check(setting.name, &Value::Null).unwrap(), None);
    }
}

#[test]
fn a_pattern_must_fit_from_end_to_end() {
    let mut registry = RegistryState::default();
    let body = json!({ "connector_id": "c", "url": "https://api.openai.com/v1/chat/completions",
                       "model": "m" });
    let spec = crate::connectors::read(body.as_object().unwrap()).unwrap();
    trust_connector(&registry, &spec).unwrap();
    let mut trusting = |pattern: &str| {
        let value = json!([pattern]).to_string();
        registry
            .settings
            .insert(TRUSTED_ENDPOINTS.to_owned(), value);
        trust_connector(&registry, &spec)
    };
    trusting(r"^https://api\.openai\.com/.*$").unwrap();
    assert!(trusting(r"https://api\.openai\.com").is_err());
    assert!(trusting(r"^https://api\.cohere\.ai/.*$").is_err());
}
