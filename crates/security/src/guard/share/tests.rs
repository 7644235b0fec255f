use volley_types::registry::SealedSecret;

use super::*;

fn put(name: &str, bytes: usize) -> RegistryCommand {
    RegistryCommand::PutSecret {
        name: SecretName::new(name).unwrap(),
        sealed: SealedSecret {
            master: "m".to_owned(),
            key: vec![1],
            text: vec![0; bytes],
        },
    }
}

#[test]
fn a_tenant_fills_its_own_part_and_no_more() {
    let mut registry = RegistryState::default();
    let scope = ModelScope::read(["a.*"]).unwrap();
    let share = Share {
        things: 2,
        bytes: 1_000,
    };
    let mut write = |command: RegistryCommand, scope: &ModelScope| {
        share.check(&command, scope, &registry)?;
        if let RegistryCommand::PutSecret { name, sealed } = command {
            std::sync::Arc::make_mut(&mut registry.secrets).insert(name, sealed);
        }
        Ok::<_, PredictError>(())
    };
    write(put("a.one", 100), &scope).unwrap();
    write(put("a.two", 100), &scope).unwrap();
    let refused = write(put("a.three", 100), &scope).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
    assert!(refused.message.contains("secrets"), "{}", refused.message);
    // An existing object may be replaced, within the limit of bytes.
    write(put("a.two", 200), &scope).unwrap();
    let refused = write(put("a.two", 900), &scope).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
    // Other tenants have their own shares; administrators have no share.
    write(put("b.one", 100), &ModelScope::read(["b.*"]).unwrap()).unwrap();
    write(put("a.three", 2_000), &ModelScope::default()).unwrap();
}
