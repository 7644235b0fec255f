//! Rollouts and numbers of replicas.

use super::*;

fn roll(action: RolloutAction) -> RegistryCommand {
    RegistryCommand::Rollout {
        model: name("m"),
        action,
    }
}

#[test]
fn a_version_follows_another_step_by_step_and_can_go_back() {
    let mut state = RegistryState::default();
    for _ in 0..2 {
        apply(
            &mut state,
            &RegistryCommand::RegisterModel(name("m"), text_model()),
        )
        .unwrap();
    }
    let deploy = |version| RegistryCommand::Deploy {
        model: name("m"),
        version: Some(ModelVersion(version)),
        replicas: 2,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions::default(),
    };
    let first = apply(&mut state, &deploy(1)).unwrap().revision;
    apply(&mut state, &placing(first, &["a", "b"], &[])).unwrap();
    assert_eq!(
        code(apply(&mut state, &roll(RolloutAction::Pause))),
        Some(ErrorCode::Conflict)
    );
    assert_eq!(
        code(apply(
            &mut state,
            &roll(RolloutAction::Rollback { replicas: None })
        )),
        Some(ErrorCode::Conflict)
    );

    let second = apply(&mut state, &deploy(2)).unwrap().revision;
    let held = |state: &RegistryState, worker: &str| -> Vec<u32> {
        let worker = WorkerId::new(worker).unwrap();
        let mut versions: Vec<u32> = state
            .assignments(&worker)
            .iter()
            .map(|a| a.spec.version.0)
            .collect();
        versions.sort_unstable();
        versions
    };
    assert_eq!(held(&state, "a"), [1], "what serves goes on");
    apply(&mut state, &placing(second, &["a"], &["a", "b"])).unwrap();
    assert_eq!(
        (held(&state, "a"), held(&state, "b")),
        (vec![1, 2], vec![1])
    );

    apply(
        &mut state,
        &roll(RolloutAction::Stop("no such file".to_owned())),
    )
    .unwrap();
    let rollout = |state: &RegistryState| {
        state.models[&name("m")]
            .deployment
            .as_ref()
            .unwrap()
            .rollout
            .clone()
    };
    assert_eq!(
        rollout(&state).unwrap().stopped.as_deref(),
        Some("no such file")
    );
    assert_eq!(
        code(apply(&mut state, &roll(RolloutAction::Resume))),
        Some(ErrorCode::Conflict),
        "it would only stop again"
    );

    let back = apply(
        &mut state,
        &roll(RolloutAction::Rollback { replicas: None }),
    )
    .unwrap();
    assert_eq!(back.version, Some(ModelVersion(1)));
    assert_eq!(state.models[&name("m")].placement.len(), 2);
    assert_eq!(rollout(&state).unwrap().from, ModelVersion(2));
    apply(&mut state, &placing(back.revision, &["a", "b"], &[])).unwrap();
    assert_eq!(rollout(&state), None);
    assert_eq!((held(&state, "a"), held(&state, "b")), (vec![1], vec![1]));
}

#[test]
fn a_new_version_keeps_the_number_of_replicas_and_a_rollback_restores_it() {
    let mut state = RegistryState::default();
    for _ in 1..=2 {
        let version = RegistryCommand::RegisterModel(name("m"), text_model());
        apply(&mut state, &version).unwrap();
    }
    let deployment = |state: &RegistryState| state.models[&name("m")].deployment.clone().unwrap();
    let deploy = |replicas| RegistryCommand::Deploy {
        model: name("m"),
        version: Some(ModelVersion(1)),
        replicas,
        overcommit: true,
        workers: Vec::new(),
        options: DeployOptions::default(),
    };
    apply(&mut state, &deploy(3)).unwrap();

    let again = state.deploy_again(&name("m"), None);
    apply(&mut state, &again).unwrap();
    let second = deployment(&state);
    assert_eq!((second.version, second.replicas), (ModelVersion(2), 3));
    assert!(second.overcommit, "options stay too");

    let RegistryCommand::Deploy { options, .. } = again else {
        panic!("not a deployment");
    };
    let fewer = RegistryCommand::Deploy {
        model: name("m"),
        version: Some(ModelVersion(2)),
        replicas: 1,
        overcommit: true,
        workers: Vec::new(),
        options,
    };
    apply(&mut state, &fewer).unwrap();
    let replicas = deployment(&state).replaced_replicas;
    assert_eq!(replicas, Some(3), "what version 1 had");

    let back = RolloutAction::Rollback { replicas };
    let command = roll(back);
    assert_eq!(command.level(), 5);
    apply(&mut state, &command).unwrap();
    let first = deployment(&state);
    assert_eq!((first.version, first.replicas), (ModelVersion(1), 3));
    assert_eq!(
        first.replaced_replicas,
        Some(1),
        "and back again restores that of version 2"
    );
    let none = RolloutAction::Rollback { replicas: Some(0) };
    assert_eq!(
        code(apply(&mut state, &roll(none))),
        Some(ErrorCode::InvalidInput)
    );
}

#[test]
fn the_cluster_scales_only_what_asked_for_it_and_within_its_bounds() {
    let mut state = RegistryState::default();
    apply(
        &mut state,
        &RegistryCommand::RegisterModel(name("m"), text_model()),
    )
    .unwrap();
    let deploy = |scaling| RegistryCommand::Deploy {
        model: name("m"),
        version: None,
        replicas: 1,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions {
            scaling,
            ..DeployOptions::default()
        },
    };
    let scale = |deployment, replicas| RegistryCommand::Scale {
        model: name("m"),
        deployment,
        replicas,
    };
    let replicas = |state: &RegistryState| {
        state.models[&name("m")]
            .deployment
            .as_ref()
            .unwrap()
            .replicas
    };
    let fixed = apply(&mut state, &deploy(None)).unwrap().revision;
    apply(&mut state, &scale(fixed, 3)).unwrap();
    assert_eq!(replicas(&state), 1);
    let scaling = Scaling {
        min_replicas: 2,
        max_replicas: 4,
        ..Scaling::default()
    };
    let scaled = apply(&mut state, &deploy(Some(scaling))).unwrap().revision;
    assert_eq!(replicas(&state), 2, "at least the minimum");
    apply(&mut state, &scale(scaled, 9)).unwrap();
    assert_eq!(replicas(&state), 4);
    apply(&mut state, &scale(fixed, 2)).unwrap();
    assert_eq!(replicas(&state), 4, "chosen for another deployment");
    let again = apply(&mut state, &deploy(Some(scaling))).unwrap();
    assert_eq!(
        (again.revision, replicas(&state)),
        (state.revision, 4),
        "asked for already"
    );
    let upside_down = Scaling {
        min_replicas: 5,
        ..scaling
    };
    assert_eq!(
        code(apply(&mut state, &deploy(Some(upside_down)))),
        Some(ErrorCode::InvalidInput)
    );
}

#[test]
fn a_version_stands_beside_another_until_it_takes_its_place_or_goes() {
    let mut state = RegistryState::default();
    for _ in 0..3 {
        let register = RegistryCommand::RegisterModel(name("m"), text_model());
        apply(&mut state, &register).unwrap();
    }
    let deploy = |version, replicas, beside| RegistryCommand::Deploy {
        model: name("m"),
        version: Some(ModelVersion(version)),
        replicas,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions {
            keep_previous: beside,
            ..DeployOptions::default()
        },
    };
    let deployment = |state: &RegistryState| state.models[&name("m")].deployment.clone().unwrap();
    let alone = code(apply(&mut state, &deploy(1, 1, 1)));
    assert_eq!(alone, Some(ErrorCode::Conflict), "there is no other");
    let first = apply(&mut state, &deploy(1, 2, 0)).unwrap().revision;
    apply(&mut state, &placing(first, &["a", "b"], &[])).unwrap();

    let second = apply(&mut state, &deploy(2, 1, 2)).unwrap().revision;
    apply(&mut state, &placing(second, &["a"], &[])).unwrap();
    let stays = deployment(&state).rollout.unwrap();
    assert_eq!(
        stays.from,
        ModelVersion(1),
        "it stays while no worker can hold it, too"
    );
    apply(&mut state, &placing(second, &["a"], &["a", "b"])).unwrap();

    let third = apply(&mut state, &deploy(3, 1, 2)).unwrap().revision;
    let stays = deployment(&state).rollout.unwrap();
    assert_eq!((stays.from, stays.previous.len()), (ModelVersion(1), 2));
    apply(&mut state, &placing(third, &["b"], &["a", "b"])).unwrap();

    let mut back = state.clone();
    let revision = apply(&mut back, &roll(RolloutAction::Rollback { replicas: None }))
        .unwrap()
        .revision;
    let alone = deployment(&back);
    assert_eq!(
        (alone.version, alone.replicas, alone.options.keep_previous),
        (ModelVersion(1), 2, 0)
    );
    apply(&mut back, &placing(revision, &["a", "b"], &[])).unwrap();
    assert_eq!(deployment(&back).rollout, None);

    let whole = apply(&mut state, &deploy(3, 2, 0)).unwrap().revision;
    assert_eq!(
        deployment(&state).rollout.unwrap().previous.len(),
        2,
        "it rolls as ever"
    );
    apply(&mut state, &placing(whole, &["a", "b"], &[])).unwrap();
    assert_eq!(deployment(&state).rollout, None);
}
