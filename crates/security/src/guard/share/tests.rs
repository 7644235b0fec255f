use volley_types::registry::{ModelEntry, ModelSource, ModelVersionSpec};
use volley_types::{ModelGroupId, ModelVersion, Parameters};

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

#[test]
fn a_longer_description_counts_and_a_replaced_one_does_not() {
    let scope = ModelScope::read(["a.*"]).unwrap();
    let name = ModelName::new("a.m").unwrap();
    let spec = ModelVersionSpec {
        version: ModelVersion(1),
        backend: volley_types::registry::BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: "x".repeat(100),
        created_ms: 0,
    };
    let entry = ModelEntry {
        name: name.clone(),
        versions: [(spec.version, spec)].into(),
        deployment: None,
        placement: Vec::new(),
        ever_deployed: false,
        group: None,
        deleted_tasks: std::collections::BTreeSet::new(),
    };
    let group = |length: usize| ModelGroup {
        id: ModelGroupId::new("g").unwrap(),
        name: "a.group".to_owned(),
        description: "x".repeat(length),
        created_ms: 0,
        updated_ms: 0,
    };
    let mut registry = RegistryState::default();
    registry
        .models
        .insert(name.clone(), std::sync::Arc::new(entry));
    registry.groups.insert(group(0).id, group(100));
    let share = Share {
        things: 10,
        bytes: registry.count() + 10,
    };
    let check = |command: &RegistryCommand| share.check(command, &scope, &registry);
    let describe = |length: usize| RegistryCommand::UpdateModel {
        model: name.clone(),
        description: Some("x".repeat(length)),
        group: None,
    };
    for fits in [
        describe(110),
        describe(0),
        RegistryCommand::UpdateGroup(group(110)),
    ] {
        check(&fits).unwrap();
    }
    for over in [describe(111), RegistryCommand::UpdateGroup(group(111))] {
        assert_eq!(check(&over).unwrap_err().code, ErrorCode::TooLarge);
    }
}
