use volley_types::ErrorCode;
use volley_types::registry::{
    AliasMirror, AliasTarget, BackendName, ModelSource, ModelVersionSpec, PipelineStep,
    RegistryCommand, StepKind,
};
use volley_types::{ModelVersion, Parameters, Task};

use super::*;
use crate::apply;

fn registered(names: &[&str]) -> RegistryState {
    let mut state = RegistryState::default();
    for name in names {
        register(&mut state, name).unwrap();
    }
    state
}

fn register(state: &mut RegistryState, name: &str) -> Result<RegistryReply, PredictError> {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    apply(
        state,
        &RegistryCommand::RegisterModel(name.parse().unwrap(), spec),
    )
}

fn alias(name: &str, targets: &[&str]) -> AliasSpec {
    let target = |model: &&str| AliasTarget {
        model: model.parse().unwrap(),
        weight: 1,
    };
    AliasSpec {
        name: name.parse().unwrap(),
        targets: targets.iter().map(target).collect(),
        mirror: None,
        sticky_header: None,
        description: String::new(),
    }
}

fn put(
    state: &mut RegistryState,
    alias: AliasSpec,
    expected: Option<u64>,
) -> Result<RegistryReply, PredictError> {
    let expected = expected.map(Revision);
    apply(state, &RegistryCommand::PutAlias { alias, expected })
}

fn delete(
    state: &mut RegistryState,
    name: &str,
    expected: Option<u64>,
) -> Result<RegistryReply, PredictError> {
    let (name, expected) = (name.parse().unwrap(), expected.map(Revision));
    apply(state, &RegistryCommand::DeleteAlias { name, expected })
}

#[test]
fn an_alias_is_created_switched_and_deleted_each_at_the_revision_that_was_read() {
    let mut state = registered(&["a", "b"]);
    let first = put(&mut state, alias("chat", &["a"]), Some(0)).unwrap();
    let again = put(&mut state, alias("chat", &["b"]), Some(0)).unwrap_err();
    assert_eq!(again.code, ErrorCode::Conflict);
    let same = put(&mut state, alias("chat", &["a"]), None).unwrap();
    assert_eq!(same.revision, first.revision, "nothing changed");

    let switched = put(&mut state, alias("chat", &["b:1"]), Some(first.revision.0)).unwrap();
    let late = put(&mut state, alias("chat", &["a"]), Some(first.revision.0)).unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict);
    let entry = &state.aliases[&"chat".parse().unwrap()];
    assert_eq!(entry.revision, switched.revision);
    assert_eq!(entry.spec, alias("chat", &["b:1"]));

    assert!(delete(&mut state, "chat", Some(first.revision.0)).is_err());
    delete(&mut state, "chat", Some(switched.revision.0)).unwrap();
    let gone = delete(&mut state, "chat", None).unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    let gone = put(&mut state, alias("chat", &["a"]), Some(4)).unwrap_err();
    assert_eq!(gone.code, ErrorCode::Conflict);
}

#[test]
fn what_an_alias_leads_to_is_there_and_stays_there() {
    let mut state = registered(&["a", "b"]);
    for targets in [["nobody"], ["a:2"], ["nobody:1"]] {
        let refused = put(&mut state, alias("chat", &targets), None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotFound, "{targets:?}");
    }
    let mirrored = AliasSpec {
        mirror: Some(AliasMirror {
            model: "b".parse().unwrap(),
            permille: 10,
        }),
        ..alias("chat", &["a"])
    };
    put(&mut state, mirrored, None).unwrap();
    for used in ["a", "b"] {
        let delete = RegistryCommand::DeleteModel(used.parse().unwrap());
        let refused = apply(&mut state, &delete).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains("alias 'chat'"), "{refused}");
    }
    put(&mut state, alias("front", &["chat"]), None).unwrap();
    let versioned = put(&mut state, alias("second", &["chat:1"]), None).unwrap_err();
    assert!(versioned.message.contains("no versions"), "{versioned}");
    assert_eq!(
        delete(&mut state, "chat", None).unwrap_err().code,
        ErrorCode::Conflict
    );
    for (name, taken) in [("a", "model"), ("chat", "alias")] {
        let refused = match taken {
            "model" => put(&mut state, alias(name, &["b"]), None),
            _ => register(&mut state, name),
        };
        assert_eq!(refused.unwrap_err().code, ErrorCode::Conflict, "{name}");
    }
}

#[test]
fn names_do_not_lead_in_circles_nor_too_far() {
    let mut state = registered(&["a"]);
    put(&mut state, alias("n0", &["a"]), None).unwrap();
    for index in 1..volley_types::registry::MAX_NAME_DEPTH {
        let before = format!("n{}", index - 1);
        put(&mut state, alias(&format!("n{index}"), &[&before]), None).unwrap();
    }
    let far = put(&mut state, alias("far", &["n7"]), None).unwrap_err();
    assert_eq!(far.code, ErrorCode::InvalidInput);
    // A change at the end of the chain makes the chain above it too long.
    put(&mut state, alias("low", &["a"]), None).unwrap();
    let far = put(&mut state, alias("n0", &["low"]), None).unwrap_err();
    assert_eq!(far.code, ErrorCode::InvalidInput);
    for (name, to) in [("n0", "n0"), ("n0", "n1"), ("n0", "n7"), ("self", "self")] {
        let before = state.clone();
        let circle = put(&mut state, alias(name, &[to]), None).unwrap_err();
        assert_eq!(circle.code, ErrorCode::Conflict, "{name} to {to}");
        assert_eq!(state, before);
    }
}

/// Builds a pipeline of one step, which calls `model`.
fn pipeline(name: &str, model: &str) -> RegistryCommand {
    let spec = PipelineSpec {
        name: name.parse().unwrap(),
        task: Task::Generate,
        inputs: Default::default(),
        steps: vec![PipelineStep {
            name: "answer".to_owned(),
            over: None,
            kind: StepKind::Model {
                model: model.parse().unwrap(),
                inputs: [("prompt".to_owned(), "request.prompt".parse().unwrap())].into(),
                parameters: Parameters::default(),
            },
        }],
        output: "answer".to_owned(),
        description: String::new(),
        ensemble: None,
    };
    RegistryCommand::PutPipeline {
        pipeline: Arc::new(spec),
        expected: None,
    }
}

#[test]
fn pipelines_and_aliases_are_one_space_of_names_without_circles() {
    let mut state = registered(&["a"]);
    apply(&mut state, &pipeline("p", "a")).unwrap();
    put(&mut state, alias("chat", &["p"]), None).unwrap();
    let circle = apply(&mut state, &pipeline("p", "chat")).unwrap_err();
    assert_eq!(circle.code, ErrorCode::Conflict);
    for (taken, code) in [
        (
            apply(&mut state, &pipeline("chat", "a")),
            ErrorCode::Conflict,
        ),
        (apply(&mut state, &pipeline("a", "a")), ErrorCode::Conflict),
        (
            put(&mut state, alias("p", &["a"]), None),
            ErrorCode::Conflict,
        ),
        (register(&mut state, "p"), ErrorCode::Conflict),
        (
            apply(&mut state, &pipeline("q", "nobody")),
            ErrorCode::NotFound,
        ),
    ] {
        assert_eq!(taken.unwrap_err().code, code);
    }
    let used = RegistryCommand::DeleteModel("a".parse().unwrap());
    let used = apply(&mut state, &used).unwrap_err();
    assert!(used.message.contains("pipeline 'p'"), "{used}");
    let delete = RegistryCommand::DeletePipeline {
        name: "p".parse().unwrap(),
        expected: None,
    };
    let used = apply(&mut state, &delete).unwrap_err();
    assert!(used.message.contains("alias 'chat'"), "{used}");
    apply(
        &mut state,
        &RegistryCommand::DeleteAlias {
            name: "chat".parse().unwrap(),
            expected: None,
        },
    )
    .unwrap();
    apply(&mut state, &delete).unwrap();
    assert!(state.pipelines.is_empty());
}
