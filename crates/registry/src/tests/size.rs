use volley_types::registry::{
    AliasSpec, AliasTarget, ModelGroup, SealedSecret, TaskRecord, TaskState,
};
use volley_types::{
    ApiKey, KeyHash, KeyId, ModelGroupId, ModelScope, NodeId, Quota, Role, SecretName, TenantId,
};

use super::*;

fn group(description: &str) -> ModelGroup {
    ModelGroup {
        id: ModelGroupId::new("g").unwrap(),
        name: "a group".to_owned(),
        description: description.to_owned(),
        created_ms: 0,
        updated_ms: 0,
    }
}

fn put_secret(bytes: usize) -> RegistryCommand {
    RegistryCommand::PutSecret {
        name: SecretName::new("s").unwrap(),
        sealed: SealedSecret {
            master: "m".to_owned(),
            key: vec![1],
            text: vec![0; bytes],
        },
    }
}

fn key() -> ApiKey {
    ApiKey {
        id: KeyId::new("k1").unwrap(),
        name: "a service".to_owned(),
        hash: KeyHash([1; 32]),
        previous: None,
        role: Role::Predict,
        models: ModelScope::read(["a.*", "b"]).unwrap(),
        tenant: TenantId::default(),
        created_ms: 1,
        expires_ms: None,
        quota: Quota::default(),
    }
}

fn put_task(id: &str, state: TaskState) -> RegistryCommand {
    let record = TaskRecord {
        node: NodeId(1),
        model: name("m"),
        tenant: None,
        created_ms: 0,
        updated_ms: 1,
        state,
        forget_ms: 10,
    };
    let id = id.to_owned();
    RegistryCommand::PutTask { id, record }
}

fn set(value: Option<&str>) -> RegistryCommand {
    let setting = ("a.setting".to_owned(), value.map(str::to_owned));
    RegistryCommand::ChangeSettings([setting].into())
}

fn describe(text: &str) -> RegistryCommand {
    RegistryCommand::UpdateModel {
        model: name("m"),
        description: Some(text.to_owned()),
        group: None,
    }
}

#[test]
fn keys_groups_secrets_settings_and_tasks_are_counted() {
    let mut state = RegistryState::default();
    let delete_task = RegistryCommand::DeleteTask {
        model: name("m"),
        task: "a task".to_owned(),
    };
    let growing = [
        RegistryCommand::RegisterModel(name("m"), text_model()),
        RegistryCommand::CreateGroup(group("short")),
        RegistryCommand::UpdateGroup(group("somewhat longer")),
        put_secret(10),
        put_secret(20),
        RegistryCommand::CreateKey(key()),
        set(Some("short")),
        set(Some("somewhat longer")),
        put_task("t", TaskState::Running),
        put_task("t", TaskState::Failed("because".to_owned())),
        delete_task,
    ];
    let mut before = state.size();
    for command in growing {
        apply(&mut state, &command).unwrap();
        assert!(before < state.size(), "{command:?}");
        assert_eq!(state.size(), state.count(), "after {command:?}");
        before = state.size();
    }
    let shrinking = [
        RegistryCommand::ForgetTask("t".to_owned()),
        set(None),
        RegistryCommand::RevokeKey(key().id),
        RegistryCommand::DeleteSecret(SecretName::new("s").unwrap()),
        RegistryCommand::DeleteGroup(group("").id),
        RegistryCommand::DeleteModel(name("m")),
    ];
    for command in shrinking {
        apply(&mut state, &command).unwrap();
        assert!(state.size() < before, "{command:?}");
        assert_eq!(state.size(), state.count(), "after {command:?}");
        before = state.size();
    }
    assert_eq!(before, 0);
}

#[test]
fn a_full_registry_takes_only_what_does_not_grow() {
    let mut state = RegistryState::default();
    for command in [
        RegistryCommand::RegisterModel(name("m"), text_model()),
        RegistryCommand::CreateGroup(group("short")),
        RegistryCommand::CreateConnector(connector("c", "http://x")),
        put_secret(10),
    ] {
        apply(&mut state, &command).unwrap();
    }
    // As if other definitions filled it.
    let free = MAX_REGISTRY_BYTES - state.size();
    state.resized(0, free);
    for command in [
        describe("described"),
        RegistryCommand::UpdateGroup(group("somewhat longer")),
        RegistryCommand::UpdateConnector(connector("c", "http://longer")),
        put_secret(11),
        set(Some("1")),
        RegistryCommand::CreateKey(key()),
    ] {
        let refused = code(apply(&mut state, &command));
        assert_eq!(refused, Some(ErrorCode::TooLarge), "{command:?}");
    }
    for command in [
        describe(""),
        RegistryCommand::UpdateGroup(group("other")),
        RegistryCommand::UpdateConnector(connector("c", "http://y")),
        put_secret(10),
        put_task("t", TaskState::Running),
    ] {
        apply(&mut state, &command).unwrap();
    }
}

#[test]
fn what_is_counted_follows_every_change() {
    let mut state = RegistryState::default();
    let alias = |description: &str| RegistryCommand::PutAlias {
        alias: AliasSpec {
            name: name("n"),
            targets: vec![AliasTarget {
                model: "m".parse().unwrap(),
                weight: 1,
            }],
            mirror: None,
            sticky_header: None,
            description: description.to_owned(),
        },
        expected: None,
    };
    let longer = ConnectorSpec {
        model: "a longer name".to_owned(),
        ..connector("c", "http://x")
    };
    let commands = [
        RegistryCommand::CreateConnector(connector("c", "http://x")),
        RegistryCommand::RegisterModel(name("m"), text_model()),
        RegistryCommand::UpdateConnector(longer),
        describe("described"),
        alias("short"),
        alias("somewhat longer"),
        RegistryCommand::DeleteAlias {
            name: name("n"),
            expected: None,
        },
        RegistryCommand::DeleteModel(name("m")),
        RegistryCommand::DeleteConnector(ConnectorId::new("c").unwrap()),
    ];
    for command in commands {
        apply(&mut state, &command).unwrap();
        assert_eq!(state.size(), state.count(), "after {command:?}");
    }
    assert_eq!(state.size(), 0);
}

#[test]
fn a_limit_is_told_with_what_exceeds_it() {
    let told = |what| within(what, 3, 2).unwrap_err().to_string();
    let size = told("the model's path");
    let count = told("the number of models");
    assert!(
        size.ends_with("the model's path is 3, over the limit of 2 bytes"),
        "{size}"
    );
    assert!(
        count.ends_with("the number of models is 3, over the limit of 2"),
        "{count}"
    );
}
