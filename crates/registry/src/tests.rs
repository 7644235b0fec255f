use proptest::prelude::*;
use volley_types::registry::{
    BackendName, ConnectorPolicy, DeployOptions, MOVING_LEVEL, PlacementDecision, ProviderName,
    RolloutAction, Scaling,
};
use volley_types::{Parameters, Revision, WorkerId};

use super::*;

mod deployments;
mod size;

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn text_model() -> ModelVersionSpec {
    ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    }
}

fn remote_model(connector: &str) -> ModelVersionSpec {
    ModelVersionSpec {
        backend: BackendName::REMOTE,
        source: ModelSource::Connector(ConnectorId::new(connector).unwrap()),
        ..text_model()
    }
}

fn connector(id: &str, url: &str) -> ConnectorSpec {
    ConnectorSpec {
        id: ConnectorId::new(id).unwrap(),
        name: id.to_owned(),
        provider: ProviderName::from_static("openai"),
        url: url.to_owned(),
        model: "m".to_owned(),
        credential: None,
        headers: BTreeMap::new(),
        parameters: Parameters::default(),
        request_body: None,
        policy: ConnectorPolicy::default(),
    }
}

fn code(result: Result<RegistryReply, PredictError>) -> Option<ErrorCode> {
    result.err().map(|error| error.code)
}

#[test]
fn the_life_of_a_model() {
    let mut state = RegistryState::default();
    let m = name("m");
    let mut run = |command| apply(&mut state, &command);
    assert_eq!(
        run(RegistryCommand::RegisterModel(m.clone(), text_model()))
            .unwrap()
            .version,
        Some(ModelVersion(1))
    );
    assert_eq!(
        run(RegistryCommand::RegisterModel(m.clone(), text_model()))
            .unwrap()
            .version,
        Some(ModelVersion(2))
    );
    let deploy = |version, replicas| RegistryCommand::Deploy {
        model: name("m"),
        version,
        replicas,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions::default(),
    };
    assert_eq!(
        code(run(deploy(Some(ModelVersion(3)), 1))),
        Some(ErrorCode::NotFound)
    );
    assert_eq!(code(run(deploy(None, 0))), Some(ErrorCode::InvalidInput));
    let deployed = run(deploy(None, 2)).unwrap();
    assert_eq!(deployed.version, Some(ModelVersion(2)));
    assert_eq!(
        run(deploy(None, 2)).unwrap().revision,
        deployed.revision,
        "asked for already"
    );
    assert_eq!(
        code(run(RegistryCommand::DeleteModel(m.clone()))),
        Some(ErrorCode::Conflict)
    );
    let place = |deployment| placing(deployment, &["w"], &[]);
    let stale = run(place(Revision(1))).unwrap();
    assert_eq!(
        stale.revision, deployed.revision,
        "placed for another deployment"
    );
    assert!(deployed.revision < run(place(deployed.revision)).unwrap().revision);
    run(RegistryCommand::Undeploy(m.clone())).unwrap();
    run(RegistryCommand::DeleteModel(m.clone())).unwrap();
    assert_eq!(
        code(run(RegistryCommand::Undeploy(m))),
        Some(ErrorCode::NotFound)
    );
    assert!(state.models.is_empty());
}

#[test]
fn connectors_are_there_before_their_models_and_go_after_them() {
    let mut state = RegistryState::default();
    let mut run = |command| apply(&mut state, &command);
    let remote = || RegistryCommand::RegisterModel(name("r"), remote_model("c"));
    assert_eq!(code(run(remote())), Some(ErrorCode::NotFound));
    run(RegistryCommand::CreateConnector(connector("c", "http://a"))).unwrap();
    run(RegistryCommand::CreateConnector(connector("c", "http://a"))).unwrap();
    let other = RegistryCommand::CreateConnector(connector("c", "http://b"));
    assert_eq!(code(run(other)), Some(ErrorCode::Conflict));
    run(remote()).unwrap();
    let delete = || RegistryCommand::DeleteConnector(ConnectorId::new("c").unwrap());
    assert_eq!(code(run(delete())), Some(ErrorCode::Conflict));
    run(RegistryCommand::DeleteModel(name("r"))).unwrap();
    run(delete()).unwrap();
    assert_eq!(code(run(delete())), Some(ErrorCode::NotFound));
    let long = connector("long", &"x".repeat(MAX_TEXT + 1));
    assert_eq!(
        code(run(RegistryCommand::CreateConnector(long))),
        Some(ErrorCode::TooLarge)
    );
}

#[test]
fn a_backend_of_another_version_is_stored() {
    let mut state = RegistryState::default();
    let spec = ModelVersionSpec {
        backend: BackendName::from_static("of_another_version"),
        ..text_model()
    };
    apply(&mut state, &RegistryCommand::RegisterModel(name("m"), spec)).unwrap();
    let stored = &state.models[&name("m")].versions[&ModelVersion(1)];
    assert_eq!(stored.backend.as_str(), "of_another_version");
}

#[test]
fn what_is_registered_is_bounded_in_size() {
    let mut state = RegistryState::default();
    let long = |bytes: usize| {
        let mut parameters = Parameters::default();
        let text = volley_types::ParamValue::Text("x".repeat(bytes));
        parameters.set("p", text).unwrap();
        ModelVersionSpec {
            parameters,
            ..text_model()
        }
    };
    let over = RegistryCommand::RegisterModel(name("m"), long(MAX_PARAMETERS));
    assert_eq!(code(apply(&mut state, &over)), Some(ErrorCode::TooLarge));
    assert_eq!(state, RegistryState::default());

    // Each version is within its own limits, but there are too many.
    let full = RegistryCommand::RegisterModel(name("m"), long(MAX_PARAMETERS - 1));
    for _ in 0..MAX_VERSIONS {
        apply(&mut state, &full).unwrap();
    }
    assert_eq!(code(apply(&mut state, &full)), Some(ErrorCode::TooLarge));
    let more = (0..).map(|index| name(&format!("m{index}")));
    let refused = more
        .map(|model| {
            let entry = ModelEntry {
                name: model.clone(),
                ..ModelEntry::clone(&state.models[&name("m")])
            };
            let fits = limits::registry_fits(&mut state, 0, 0);
            state.resized(0, entry.bytes());
            state.models.insert(model, Arc::new(entry));
            fits
        })
        .find_map(Result::err);
    assert_eq!(refused.unwrap().code, ErrorCode::TooLarge);
    let one_more = RegistryCommand::RegisterModel(name("other"), text_model());
    assert_eq!(
        code(apply(&mut state, &one_more)),
        Some(ErrorCode::TooLarge)
    );
}

#[test]
fn a_placement_names_each_worker_once_and_no_more_than_replicas_but_one_that_moves() {
    let mut state = RegistryState::default();
    let mut run = |command| apply(&mut state, &command);
    run(RegistryCommand::RegisterModel(name("m"), text_model())).unwrap();
    let deployed = run(RegistryCommand::Deploy {
        model: name("m"),
        version: None,
        replicas: 2,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions::default(),
    });
    let deployment = deployed.unwrap().revision;
    let mut place = |workers: &[&str]| code(run(placing(deployment, workers, &[])));
    assert_eq!(place(&["a", "a"]), Some(ErrorCode::InvalidInput));
    assert_eq!(place(&["a", "b", "c"]), Some(ErrorCode::InvalidInput));
    assert_eq!(place(&["a", "b"]), None);
    let mut moving = |workers: &[&str]| {
        let mut command = placing(deployment, workers, &[]);
        assert_eq!(command.level(), 1);
        if let RegistryCommand::Place(placings) = &mut command {
            placings[0].moving = true;
        }
        assert_eq!(command.level(), MOVING_LEVEL);
        code(run(command))
    };
    assert_eq!(moving(&["a", "b", "c", "d"]), Some(ErrorCode::InvalidInput));
    assert_eq!(moving(&["a", "b", "c"]), None);
    assert_eq!(state.migrating_replicas(), 1);
}

fn placing(deployment: Revision, workers: &[&str], previous: &[&str]) -> RegistryCommand {
    let ids = |names: &[&str]| names.iter().map(|id| WorkerId::new(*id).unwrap()).collect();
    RegistryCommand::Place(vec![PlacementDecision {
        model: name("m"),
        deployment,
        workers: ids(workers),
        previous: ids(previous),
        moving: false,
    }])
}

fn subset() -> impl Strategy<Value = Vec<WorkerId>> {
    let ids = proptest::sample::subsequence(vec!["v", "w"], 0..3);
    ids.prop_map(|ids| {
        ids.into_iter()
            .map(|id| WorkerId::new(id).unwrap())
            .collect()
    })
}

fn any_command() -> impl Strategy<Value = RegistryCommand> {
    let model = || prop_oneof![Just(name("a")), Just(name("b"))];
    let id = || prop_oneof![Just("c"), Just("d")];
    prop_oneof![
        (id(), prop_oneof![Just("http://x"), Just("http://y")])
            .prop_map(|(id, url)| RegistryCommand::CreateConnector(connector(id, url))),
        id().prop_map(|id| RegistryCommand::DeleteConnector(ConnectorId::new(id).unwrap())),
        model().prop_map(|model| RegistryCommand::RegisterModel(model, text_model())),
        (model(), id()).prop_map(|(m, id)| RegistryCommand::RegisterModel(m, remote_model(id))),
        (model(), proptest::option::of(1_u32..4), 0_u32..3).prop_map(
            |(model, version, replicas)| {
                RegistryCommand::Deploy {
                    model,
                    version: version.map(ModelVersion),
                    replicas,
                    overcommit: replicas % 2 == 0,
                    workers: Vec::new(),
                    options: DeployOptions {
                        scaling: (replicas == 2).then_some(Scaling {
                            min_replicas: 0,
                            max_replicas: 4,
                            ..Scaling::default()
                        }),
                        ..DeployOptions::default()
                    },
                }
            }
        ),
        model().prop_map(RegistryCommand::Undeploy),
        model().prop_map(RegistryCommand::DeleteModel),
        (model(), 0_u64..20, subset(), subset()).prop_map(
            |(model, revision, workers, previous)| {
                RegistryCommand::Place(vec![PlacementDecision {
                    model,
                    deployment: Revision(revision),
                    workers,
                    previous,
                    moving: revision % 2 == 0,
                }])
            }
        ),
        (model(), 0_usize..4).prop_map(|(model, action)| RegistryCommand::Rollout {
            model,
            action: [
                RolloutAction::Pause,
                RolloutAction::Resume,
                RolloutAction::Rollback { replicas: None },
                RolloutAction::Stop("why".to_owned()),
            ][action]
                .clone(),
        }),
        (model(), 0_u64..20, 0_u32..9).prop_map(|(model, revision, replicas)| {
            RegistryCommand::Scale {
                model,
                deployment: Revision(revision),
                replicas,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn refusals_change_nothing_and_each_change_is_one_revision(
        commands in proptest::collection::vec(any_command(), 1..60)
    ) {
        let (mut state, mut twin) = (RegistryState::default(), RegistryState::default());
        for command in &commands {
            let before = state.clone();
            let answer = apply(&mut state, command);
            let again = apply(&mut twin, command);
            prop_assert_eq!(&state, &twin);
            prop_assert_eq!(state.size(), state.count());
            prop_assert_eq!(answer.is_ok(), again.is_ok());
            match answer {
                Err(_) => prop_assert_eq!(&state, &before),
                Ok(reply) => {
                    prop_assert_eq!(reply.revision, state.revision);
                    let changed = { let mut same = before.clone(); same.revision = state.revision; same.level = state.level; same != state };
                    prop_assert_eq!(state.revision.0, before.revision.0 + u64::from(changed));
                }
            }
            for model in state.models.values() {
                prop_assert!(!model.versions.is_empty());
                prop_assert!(model.deployment.is_some() || model.placement.is_empty());
                if let Some(deployment) = &model.deployment {
                    prop_assert!(model.versions.contains_key(&deployment.version));
                    if let Some(rollout) = &deployment.rollout {
                        prop_assert!(rollout.from != deployment.version);
                        prop_assert!(!rollout.previous.is_empty());
                        prop_assert!(model.versions.contains_key(&rollout.from));
                    }
                }
                for version in model.versions.values() {
                    if let ModelSource::Connector(id) = &version.source {
                        prop_assert!(state.connectors.contains_key(id));
                    }
                }
            }
        }
        let wire = volley_proto::registry_records::state_to_wire(&state);
        prop_assert_eq!(volley_proto::registry_records::state_from_wire(wire).unwrap(), state);
    }
}

#[test]
fn a_connector_is_changed_while_nothing_runs_on_it() {
    let mut state = RegistryState::default();
    let url = "https://llm.example/v1";
    apply(
        &mut state,
        &RegistryCommand::CreateConnector(connector("c", url)),
    )
    .unwrap();
    apply(
        &mut state,
        &RegistryCommand::RegisterModel(name("m"), remote_model("c")),
    )
    .unwrap();
    let change = RegistryCommand::UpdateConnector(connector("c", "https://other.example/v1"));
    let deploy = RegistryCommand::Deploy {
        model: name("m"),
        version: None,
        replicas: 1,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions::default(),
    };
    apply(&mut state, &deploy).unwrap();
    let refused = apply(&mut state, &change).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    assert!(
        refused.message.contains("undeploy the models first: [m]"),
        "{refused}"
    );
    apply(&mut state, &RegistryCommand::Undeploy(name("m"))).unwrap();
    apply(&mut state, &change).unwrap();
    let revision = state.revision;
    apply(&mut state, &change).unwrap();
    assert_eq!(state.revision, revision, "nothing changed");
    let unknown = RegistryCommand::UpdateConnector(connector("d", url));
    assert_eq!(code(apply(&mut state, &unknown)), Some(ErrorCode::NotFound));
}

#[test]
fn groups_have_names_of_their_own_and_stay_while_models_are_in_them() {
    let mut state = RegistryState::default();
    let group = |id: &str, name: &str| volley_types::registry::ModelGroup {
        id: volley_types::ModelGroupId::new(id).unwrap(),
        name: name.to_owned(),
        description: String::new(),
        created_ms: 1,
        updated_ms: 1,
    };
    let into = |group: Option<&str>| RegistryCommand::UpdateModel {
        model: name("m"),
        description: Some("described".to_owned()),
        group: Some(group.map(|id| volley_types::ModelGroupId::new(id).unwrap())),
    };
    apply(
        &mut state,
        &RegistryCommand::CreateGroup(group("g", "search")),
    )
    .unwrap();
    let twice = RegistryCommand::CreateGroup(group("h", "search"));
    assert_eq!(code(apply(&mut state, &twice)), Some(ErrorCode::Conflict));
    let renamed = RegistryCommand::UpdateGroup(group("g", "find"));
    apply(&mut state, &renamed).unwrap();
    apply(&mut state, &twice).unwrap();
    assert_eq!(
        code(apply(&mut state, &into(Some("g")))),
        Some(ErrorCode::NotFound)
    );
    apply(
        &mut state,
        &RegistryCommand::RegisterModel(name("m"), text_model()),
    )
    .unwrap();
    assert_eq!(
        code(apply(&mut state, &into(Some("x")))),
        Some(ErrorCode::NotFound)
    );
    apply(&mut state, &into(Some("g"))).unwrap();
    let entry = &state.models[&name("m")];
    assert_eq!(entry.versions[&ModelVersion(1)].description, "described");
    let delete = RegistryCommand::DeleteGroup(volley_types::ModelGroupId::new("g").unwrap());
    assert_eq!(code(apply(&mut state, &delete)), Some(ErrorCode::Conflict));
    apply(&mut state, &into(None)).unwrap();
    apply(&mut state, &delete).unwrap();
    assert_eq!(code(apply(&mut state, &renamed)), Some(ErrorCode::NotFound));
}

#[test]
fn settings_are_set_and_taken_back_and_tasks_are_forgotten() {
    let mut state = RegistryState::default();
    let set = |value: Option<&str>| {
        let name = volley_types::registry::MAX_MODEL_ON_NODE.to_owned();
        let change = BTreeMap::from([(name, value.map(str::to_owned))]);
        RegistryCommand::ChangeSettings(change)
    };
    apply(&mut state, &set(Some("3"))).unwrap();
    assert_eq!(state.max_models_on_worker(), Some(3));
    apply(&mut state, &set(None)).unwrap();
    assert_eq!(state.max_models_on_worker(), None);
    let delete = RegistryCommand::DeleteTask {
        model: name("m"),
        task: "register-m-1".to_owned(),
    };
    assert_eq!(code(apply(&mut state, &delete)), Some(ErrorCode::NotFound));
    apply(
        &mut state,
        &RegistryCommand::RegisterModel(name("m"), text_model()),
    )
    .unwrap();
    apply(&mut state, &delete).unwrap();
    assert!(
        state.models[&name("m")]
            .deleted_tasks
            .contains("register-m-1")
    );
}
