use volley_types::registry::RegistryCommand;
use volley_types::{ErrorCode, ModelScope, Role, TenantId};

use crate::apply;

use super::*;

fn key(id: &str, secret: u8) -> ApiKey {
    ApiKey {
        id: KeyId::new(id).unwrap(),
        name: "a service".to_owned(),
        hash: KeyHash([secret; 32]),
        previous: None,
        role: Role::Predict,
        models: ModelScope::default(),
        tenant: TenantId::default(),
        created_ms: 1,
        expires_ms: None,
        quota: Quota::default(),
    }
}

#[test]
fn a_key_is_created_rotated_and_revoked() {
    let mut state = RegistryState::default();
    let create = RegistryCommand::CreateKey(key("k1", 1));
    apply(&mut state, &create).unwrap();
    let twice = apply(&mut state, &create).unwrap_err();
    assert_eq!(twice.code, ErrorCode::Conflict);

    let id = KeyId::new("k1").unwrap();
    let rotate = |hash, previous_until_ms| RegistryCommand::RotateKey {
        id: id.clone(),
        hash: KeyHash([hash; 32]),
        previous_until_ms,
    };
    apply(&mut state, &rotate(2, 50)).unwrap();
    assert_eq!(state.keys[&id].hash, KeyHash([2; 32]));
    assert_eq!(state.keys[&id].previous, Some((KeyHash([1; 32]), 50)));
    apply(&mut state, &rotate(3, 0)).unwrap();
    assert_eq!(state.keys[&id].previous, None);

    let revoke = RegistryCommand::RevokeKey(id.clone());
    apply(&mut state, &revoke).unwrap();
    assert!(state.keys.is_empty());
    for gone in [revoke, rotate(4, 0)] {
        assert_eq!(
            apply(&mut state, &gone).unwrap_err().code,
            ErrorCode::NotFound
        );
    }
}

#[test]
fn what_a_key_may_name_is_bounded() {
    let mut state = RegistryState::default();
    let mut long = key("k1", 1);
    long.name = "x".repeat(MAX_TEXT + 1);
    let mut many = key("k2", 1);
    let pattern = "m".parse().unwrap();
    many.models = ModelScope::new(vec![pattern; MAX_KEY_MODELS + 1]);
    for key in [long, many] {
        let refused = apply(&mut state, &RegistryCommand::CreateKey(key)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::TooLarge);
    }
    assert_eq!(state, RegistryState::default());
}
