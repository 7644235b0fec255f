use serde_json::json;

use super::*;

#[test]
fn what_is_a_secret_and_what_refers_to_one() {
    let literal = |credential: Value| literal(Some(&credential));
    assert_eq!(
        literal(json!({ "openAI_key": "sk-1" })).as_deref(),
        Some("sk-1")
    );
    let keys = json!({ "access_key": "a", "secret_key": "b", "session_token": "c" });
    assert_eq!(literal(keys.clone()), Some(keys.to_string()));
    for none in [
        json!("sk-1"),
        json!({}),
        json!({ "key": "" }),
        json!({ "key": 1 }),
        json!({ "key": "env:KEY" }),
        json!({ "key": "secret:key" }),
        json!({ "a": "1", "b": "2" }),
        json!({ "access_key": "a", "secret_key": "env:B" }),
    ] {
        assert_eq!(literal(none.clone()), None, "{none}");
    }
}
