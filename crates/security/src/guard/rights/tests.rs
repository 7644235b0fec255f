//! Visibility and permissions of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use volley_types::registry::{
    AliasEntry, AliasSpec, AliasTarget, BackendName, ConnectorPolicy, ModelGroup, ModelVersionSpec,
    ProviderName, SealedSecret,
};
use volley_types::{ModelVersion, Parameters, Revision, TenantId};

use super::*;

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn connector(id: &str, credential: Option<CredentialRef>) -> ConnectorSpec {
    ConnectorSpec {
        id: ConnectorId::new(id).unwrap(),
        name: id.to_owned(),
        provider: ProviderName::from_static("openai"),
        url: "https://llm.example/v1/chat/completions".to_owned(),
        model: "m".to_owned(),
        credential,
        headers: BTreeMap::new(),
        parameters: Parameters::default(),
        request_body: None,
        policy: ConnectorPolicy::default(),
    }
}

fn version(source: ModelSource) -> ModelVersionSpec {
    ModelVersionSpec {
        version: ModelVersion(1),
        backend: BackendName::REMOTE,
        source,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    }
}

fn secret(text: &str) -> SecretName {
    SecretName::new(text).unwrap()
}

fn sealed() -> SealedSecret {
    SealedSecret {
        master: "m".to_owned(),
        key: vec![1],
        text: vec![2],
    }
}

fn group(id: &str, name: &str) -> ModelGroup {
    ModelGroup {
        id: ModelGroupId::new(id).unwrap(),
        name: name.to_owned(),
        description: String::new(),
        created_ms: 0,
        updated_ms: 0,
    }
}

fn alias(text: &str, to: &str) -> AliasSpec {
    AliasSpec {
        name: name(text),
        targets: vec![AliasTarget {
            model: to.parse().unwrap(),
            weight: 1,
        }],
        mirror: None,
        sticky_header: None,
        description: String::new(),
    }
}

/// A registry in which each tenant of `of` has one object of every kind.
fn registry(of: &[&str]) -> RegistryState {
    let mut state = RegistryState::default();
    for tenant in of {
        let model = name(&format!("{tenant}.model"));
        let spec = connector(&format!("{tenant}.c"), None);
        let (group_id, group_name) = (format!("group-{tenant}"), format!("{tenant}.g"));
        let own = group(&group_id, &group_name);
        let entry = ModelEntry {
            name: model.clone(),
            versions: [(
                ModelVersion(1),
                version(ModelSource::Connector(spec.id.clone())),
            )]
            .into(),
            deployment: None,
            placement: Vec::new(),
            ever_deployed: false,
            group: Some(own.id.clone()),
            deleted_tasks: BTreeSet::new(),
        };
        state.models.insert(model, Arc::new(entry));
        state.connectors.insert(spec.id.clone(), spec);
        state.groups.insert(own.id.clone(), own);
        let spec = alias(&format!("{tenant}.alias"), &format!("{tenant}.model"));
        let entry = AliasEntry {
            spec,
            revision: Revision(1),
        };
        state.aliases.insert(entry.spec.name.clone(), entry);
        Arc::make_mut(&mut state.secrets).insert(secret(&format!("{tenant}.s")), sealed());
    }
    state
}

fn tenant(text: &str) -> Principal {
    let tenant = TenantId::new(text).unwrap();
    let scope = ModelScope::of_tenant(&tenant);
    Principal::token(text.to_owned(), Role::ModelAdmin, scope, tenant)
}

/// Every command of a tenant on objects of `of`.
fn commands(of: &str) -> Vec<RegistryCommand> {
    let model = name(&format!("{of}.model"));
    let own = connector(&format!("{of}.c"), None);
    let credential = CredentialRef::Secret(secret(&format!("{of}.s")));
    vec![
        RegistryCommand::CreateConnector(own.clone()),
        RegistryCommand::UpdateConnector(own.clone()),
        RegistryCommand::DeleteConnector(own.id.clone()),
        RegistryCommand::CreateConnector(connector("b.new", Some(credential))),
        RegistryCommand::RegisterModel(name("b.new"), version(ModelSource::Connector(own.id))),
        RegistryCommand::RegisterModel(model.clone(), version(ModelSource::None)),
        RegistryCommand::Undeploy(model.clone()),
        RegistryCommand::DeleteModel(model.clone()),
        RegistryCommand::DeleteTask {
            model: model.clone(),
            task: "t".to_owned(),
        },
        RegistryCommand::UpdateModel {
            model: model.clone(),
            description: None,
            group: None,
        },
        RegistryCommand::UpdateModel {
            model: name("b.model"),
            description: None,
            group: Some(Some(ModelGroupId::new(format!("group-{of}")).unwrap())),
        },
        RegistryCommand::CreateGroup(group("new", &format!("{of}.g"))),
        RegistryCommand::UpdateGroup(group(&format!("group-{of}"), "b.mine")),
        RegistryCommand::DeleteGroup(ModelGroupId::new(format!("group-{of}")).unwrap()),
        RegistryCommand::PutAlias {
            alias: alias("b.alias", &format!("{of}.model")),
            expected: None,
        },
        RegistryCommand::PutAlias {
            alias: alias(&format!("{of}.alias"), "b.model"),
            expected: None,
        },
        RegistryCommand::DeleteAlias {
            name: name(&format!("{of}.alias")),
            expected: None,
        },
        RegistryCommand::DeletePipeline {
            name: name(&format!("{of}.alias")),
            expected: None,
        },
        RegistryCommand::PutSecret {
            name: secret(&format!("{of}.s")),
            sealed: sealed(),
        },
        RegistryCommand::DeleteSecret(secret(&format!("{of}.s"))),
    ]
}

#[test]
fn what_is_another_tenants_and_what_is_not_there_are_refused_alike() {
    let (with, without) = (registry(&["a", "b"]), registry(&["b"]));
    let tenant = tenant("b");
    for command in commands("a") {
        let there = permit(&command, &tenant, &with).expect_err(&format!("{command:?}"));
        let absent = permit(&command, &tenant, &without).expect_err(&format!("{command:?}"));
        assert_eq!(
            (there.code, &there.message),
            (absent.code, &absent.message),
            "{command:?}"
        );
        let code = there.code;
        assert!(
            matches!(code, ErrorCode::NotFound | ErrorCode::PermissionDenied),
            "{command:?}: {code}"
        );
    }
    for command in commands("b") {
        permit(&command, &tenant, &with).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }
}

#[test]
fn a_tenant_sees_its_own_things_and_what_its_models_use() {
    let mut state = registry(&["a", "b"]);
    let shared = connector("shared", None);
    let mut model = ModelEntry::clone(&state.models[&name("b.model")]);
    model.versions.insert(
        ModelVersion(2),
        version(ModelSource::Connector(shared.id.clone())),
    );
    state.models.insert(model.name.clone(), Arc::new(model));
    state.connectors.insert(shared.id.clone(), shared.clone());
    let seen = seen(&state, tenant("b").models());
    assert_eq!(seen.models.len(), 1);
    let connectors: Vec<_> = seen.connectors.keys().map(ConnectorId::as_str).collect();
    assert_eq!(connectors, ["b.c", "shared"]);
    assert_eq!(seen.groups.len(), 1);
    assert_eq!(seen.aliases.len(), 1);
    assert_eq!(seen.secrets.len(), 1);
    assert!(seen.keys.is_empty());

    // A tenant may use visible objects but not change those of others.
    let register = RegistryCommand::RegisterModel(
        name("b.other"),
        version(ModelSource::Connector(shared.id.clone())),
    );
    permit(&register, &tenant("b"), &state).unwrap();
    let delete = RegistryCommand::DeleteConnector(shared.id.clone());
    let refused = permit(&delete, &tenant("b"), &state).unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    let refused = permit(&delete, &tenant("a"), &state).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound);
}

#[test]
fn who_else_uses_a_thing_is_not_told() {
    let mut state = registry(&["b"]);
    let entry = AliasEntry {
        spec: alias("front", "b.model"),
        revision: Revision(1),
    };
    state.aliases.insert(name("front"), entry);
    let delete = RegistryCommand::DeleteModel(name("b.model"));
    let refused = permit(&delete, &tenant("b"), &state).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(!refused.message.contains("front"), "{}", refused.message);
}

#[test]
fn workers_variables_files_and_disks_are_no_tenants() {
    let state = registry(&["b"]);
    let denied = |command: RegistryCommand| {
        let refused = permit(&command, &tenant("b"), &state).unwrap_err();
        assert_eq!(refused.code, ErrorCode::PermissionDenied);
    };
    for credential in [
        CredentialRef::Env("KEY".to_owned()),
        CredentialRef::File("/key".to_owned()),
    ] {
        denied(RegistryCommand::CreateConnector(connector(
            "b.new",
            Some(credential),
        )));
    }
    for source in [
        ModelSource::Path("/models/a".to_owned()),
        ModelSource::Url {
            url: "file:///models/a.zip".parse().unwrap(),
            sha256: None,
        },
    ] {
        denied(RegistryCommand::RegisterModel(
            name("b.new"),
            version(source),
        ));
    }
}
