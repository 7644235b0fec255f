//! Registry records survive encoding and decoding, and arbitrary bytes are decoded or rejected.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use prost::Message;
use volley_proto::registry::v1 as wire;
use volley_proto::registry_records::{
    assignment_from_wire, assignment_to_wire, command_from_wire, command_to_wire, reply_from_wire,
    reply_to_wire, state_from_wire, state_to_wire,
};
use volley_proto::secret_records::{credential_from_text, credential_to_text};
use volley_types::registry::{
    AliasEntry, Assignment, BackendName, ConnectorEndpoint, ConnectorPolicy, ConnectorSpec,
    CredentialRef, DeployOptions, Deployment, ModelEntry, ModelGroup, ModelSource, ModelUrl,
    ModelVersionSpec, PipelineEntry, PlacementDecision, ProviderName, RegistryCommand,
    RegistryReply, RegistryState, Rollout, RolloutAction, Scaling, Sha256,
};
use volley_types::{
    ApiKey, ConnectorId, ErrorCode, KeyHash, KeyId, ModelGroupId, ModelName, ModelScope,
    ModelVersion, ParamValue, Parameters, PredictError, Revision, Role, TenantId, WorkerId,
};

use crate::drains;
use crate::names;
use crate::secrets::{quota, sealed, secret_name};
use crate::tasks;

fn id() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_.-]{1,20}".prop_filter("ids start plainly", |id| ModelName::new(id).is_ok())
}

pub(crate) fn model() -> impl Strategy<Value = ModelName> {
    id().prop_map(|id| ModelName::new(id).unwrap())
}

fn connector_id() -> impl Strategy<Value = ConnectorId> {
    id().prop_map(|id| ConnectorId::new(id).unwrap())
}

fn workers() -> impl Strategy<Value = Vec<WorkerId>> {
    vec(id().prop_map(|id| WorkerId::new(id).unwrap()), 0..4)
}

pub(crate) fn parameters() -> impl Strategy<Value = Parameters> {
    let value = prop_oneof![
        any::<bool>().prop_map(ParamValue::Bool),
        any::<i64>().prop_map(ParamValue::Int),
        (-1e300..1e300).prop_map(ParamValue::Float),
        ".*".prop_map(ParamValue::Text),
        Just(ParamValue::Json("[1, {}]".to_owned())),
    ];
    btree_map("[a-z]{1,8}", value, 0..4).prop_map(|values| {
        let mut parameters = Parameters::default();
        for (name, value) in values {
            parameters.set(name, value).unwrap();
        }
        parameters
    })
}

fn credential() -> impl Strategy<Value = CredentialRef> {
    prop_oneof![
        "[A-Z_:]{1,12}".prop_map(CredentialRef::Env),
        "/.{0,20}".prop_map(CredentialRef::File),
    ]
}

prop_compose! {
    fn endpoint()(
        provider in select(vec!["openai", "a_later_one"]).prop_map(ProviderName::from_static),
        texts in (".*", ".*"),
        credential in option::of(credential()),
        headers in btree_map(".{0,8}", ".*", 0..4),
        weight in any::<u32>(),
        fallback in any::<bool>(),
    ) -> ConnectorEndpoint {
        let (url, model) = texts;
        ConnectorEndpoint { provider, url, model, credential, headers, weight, fallback }
    }
}

prop_compose! {
    fn policy()(
        limits in (option::of(1..u32::MAX), option::of(1..u32::MAX)),
        numbers in any::<[u32; 5]>(),
        endpoints in vec(endpoint(), 0..3),
    ) -> ConnectorPolicy {
        let [max_retries, retry_backoff_ms, breaker_window, breaker_open_ms, weight] = numbers;
        ConnectorPolicy {
            max_concurrent: limits.0,
            max_per_minute: limits.1,
            max_retries,
            retry_backoff_ms,
            breaker_window,
            breaker_open_ms,
            weight,
            endpoints,
        }
    }
}

prop_compose! {
    fn connector()(
        id in connector_id(),
        texts in (".*", ".*", ".*"),
        provider in select(vec!["openai", "a_later_one"]).prop_map(ProviderName::from_static),
        policy in policy(),
        credential in option::of(credential()),
        headers in btree_map(".{0,8}", ".*", 0..4),
        parameters in parameters(),
        request_body in option::of(".+"),
    ) -> ConnectorSpec {
        ConnectorSpec {
            id,
            name: texts.0,
            provider,
            url: texts.1,
            model: texts.2,
            credential,
            headers,
            parameters,
            request_body,
            policy,
        }
    }
}

fn source() -> impl Strategy<Value = ModelSource> {
    prop_oneof![
        Just(ModelSource::None),
        ".*".prop_map(ModelSource::Path),
        ("[a-z0-9/]{0,9}", option::of(any::<[u8; 32]>())).prop_filter_map(
            "no URL",
            |(path, hash)| {
                let url = ModelUrl::parse(&format!("s3://bucket/{path}.zip")).ok()?;
                Some(ModelSource::Url {
                    url,
                    sha256: hash.map(Sha256),
                })
            }
        ),
        connector_id().prop_map(ModelSource::Connector),
    ]
}

prop_compose! {
    fn version()(
        version in 1_u32..,
        backend in "[a-z_]{1,31}",
        source in source(),
        parameters in parameters(),
        description in ".*",
        created_ms in any::<u64>(),
    ) -> ModelVersionSpec {
        ModelVersionSpec {
            version: ModelVersion(version),
            backend: BackendName::new(&backend).unwrap(),
            source,
            parameters,
            description,
            created_ms,
        }
    }
}

prop_compose! {
    fn options()(
        labels in btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3),
        spread in option::of("[a-z]{1,4}"),
        memory_bytes in any::<u64>(),
        scaling in option::of((any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>())),
        (max_surge, max_unavailable, beside) in any::<(u32, u32, u32)>(),
    ) -> DeployOptions {
        let scaling = scaling.map(|(min, max, percent, wait)| Scaling {
            min_replicas: min,
            max_replicas: max,
            target_percent: percent,
            queue_wait_ms: wait,
            idle_ms: wait,
        });
        DeployOptions { labels, spread, memory_bytes, scaling, max_surge, max_unavailable, keep_previous: beside }
    }
}

prop_compose! {
    fn rollout()(
        from in any::<u32>(),
        previous in workers(),
        paused in any::<bool>(),
        stopped in option::of(".{1,9}"),
    ) -> Rollout {
        Rollout { from: ModelVersion(from), previous, paused, stopped }
    }
}

fn action() -> impl Strategy<Value = RolloutAction> {
    prop_oneof![
        Just(RolloutAction::Pause),
        Just(RolloutAction::Resume),
        prop::option::of(1..9_u32).prop_map(|replicas| RolloutAction::Rollback { replicas }),
        ".{1,9}".prop_map(RolloutAction::Stop),
    ]
}

prop_compose! {
    fn placing()(
        model in model(),
        deployment in any::<u64>(),
        workers in workers(),
        previous in workers(),
        moving in any::<bool>(),
    ) -> PlacementDecision {
        PlacementDecision { model, deployment: Revision(deployment), workers, previous, moving }
    }
}

prop_compose! {
    fn entry()(
        name in model(),
        versions in vec(version(), 1..4),
        deployment in option::of((any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>(), workers())),
        placement in workers(),
        ever_deployed in any::<bool>(),
        (options, rollout) in (options(), option::of(rollout())),
        group in option::of(group_id()),
        deleted_tasks in btree_set(".{0,9}", 0..4),
    ) -> ModelEntry {
        let deployment = deployment.map(|(version, replicas, revision, overcommit, workers)| Deployment {
            overcommit,
            workers,
            options,
            rollout,
            replaced: None,
            replaced_replicas: None,
            ..Deployment::new(ModelVersion(version), replicas, Revision(revision))
        });
        let versions = versions.into_iter().map(|version| (version.version, version));
        ModelEntry {
            name,
            versions: versions.collect(),
            deployment,
            placement,
            ever_deployed,
            group,
            deleted_tasks,
        }
    }
}

prop_compose! {
    fn state()(
        revision in any::<u64>(),
        models in vec(entry(), 0..4),
        connectors in vec(connector(), 0..4),
        keys in vec(key(), 0..4),
        groups in vec(group(), 0..4),
        settings in btree_map(".{0,9}", ".*", 0..4),
        aliases in vec((names::alias(), any::<u64>()), 0..4),
        pipelines in vec((names::pipeline(), any::<u64>()), 0..4),
        secrets in vec((secret_name(), sealed()), 0..4),
        (drains, tasks, level) in (drains::all(), tasks::all(), any::<u32>()),
    ) -> RegistryState {
        let models = models.into_iter().map(|model| (model.name.clone(), Arc::new(model)));
        let connectors = connectors.into_iter().map(|spec| (spec.id.clone(), spec));
        RegistryState {
            revision: Revision(revision),
            models: models.collect(),
            connectors: connectors.collect::<BTreeMap<_, _>>(),
            keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect(),
            groups: groups.into_iter().map(|group| (group.id.clone(), group)).collect(),
            settings,
            aliases: aliases.into_iter().map(|(spec, revision)| {
                let revision = Revision(revision);
                (spec.name.clone(), AliasEntry { spec, revision })
            }).collect(),
            pipelines: pipelines.into_iter().map(|(spec, revision)| {
                let (name, revision) = (spec.name.clone(), Revision(revision));
                (name, PipelineEntry { spec: Arc::new(spec), revision })
            }).collect(),
            secrets: Arc::new(secrets.into_iter().collect()),
            drains,
            tasks: Arc::new(tasks),
            level,
            ..RegistryState::default()
        }
    }
}

fn group_id() -> impl Strategy<Value = ModelGroupId> {
    "[a-z0-9]{1,9}".prop_map(|id| ModelGroupId::new(id).unwrap())
}

prop_compose! {
    fn group()(
        id in group_id(),
        (name, description) in (".*", ".*"),
        (created_ms, updated_ms) in any::<(u64, u64)>(),
    ) -> ModelGroup {
        ModelGroup { id, name, description, created_ms, updated_ms }
    }
}

fn key_id() -> impl Strategy<Value = KeyId> {
    "[0-9a-f]{16}".prop_map(|id| KeyId::new(id).unwrap())
}

prop_compose! {
    fn key()(
        (id, name, tenant) in (key_id(), ".{0,20}", "[a-z]{1,8}"),
        (hash, previous) in (any::<[u8; 32]>(), option::of((any::<[u8; 32]>(), any::<u64>()))),
        role in prop::sample::select(Role::ALL.to_vec()),
        models in vec("[a-z]{1,8}[*]?", 0..4),
        (created_ms, expires_ms) in (any::<u64>(), option::of(1_u64..)),
        quota in quota(),
    ) -> ApiKey {
        ApiKey {
            id,
            name,
            hash: KeyHash(hash),
            previous: previous.map(|(hash, until)| (KeyHash(hash), until)),
            role,
            models: ModelScope::new(models.iter().map(|text| text.parse().unwrap()).collect()),
            tenant: TenantId::new(tenant).unwrap(),
            created_ms,
            expires_ms,
            quota,
        }
    }
}

fn command() -> impl Strategy<Value = RegistryCommand> {
    let asked = (option::of(1_u32..), any::<u32>(), any::<bool>(), workers());
    let deploy = (model(), asked, options());
    let scale = (model(), any::<u64>(), any::<u32>());
    prop_oneof![
        connector().prop_map(RegistryCommand::CreateConnector),
        connector_id().prop_map(RegistryCommand::DeleteConnector),
        (model(), version())
            .prop_map(|(model, version)| RegistryCommand::RegisterModel(model, version)),
        deploy.prop_map(
            |(model, (version, replicas, overcommit, workers), options)| {
                RegistryCommand::Deploy {
                    model,
                    version: version.map(ModelVersion),
                    replicas,
                    overcommit,
                    options,
                    workers,
                }
            }
        ),
        model().prop_map(RegistryCommand::Undeploy),
        model().prop_map(RegistryCommand::DeleteModel),
        vec(placing(), 0..3).prop_map(RegistryCommand::Place),
        (model(), action()).prop_map(|(model, action)| RegistryCommand::Rollout { model, action }),
        scale.prop_map(|(model, deployment, replicas)| RegistryCommand::Scale {
            model,
            deployment: Revision(deployment),
            replicas,
        }),
        key().prop_map(RegistryCommand::CreateKey),
        (key_id(), any::<[u8; 32]>(), any::<u64>()).prop_map(|(id, hash, previous_until_ms)| {
            RegistryCommand::RotateKey {
                id,
                hash: KeyHash(hash),
                previous_until_ms,
            }
        }),
        (key_id(), quota()).prop_map(|(id, quota)| RegistryCommand::LimitKey { id, quota }),
        (secret_name(), sealed())
            .prop_map(|(name, sealed)| RegistryCommand::PutSecret { name, sealed }),
        (secret_name(), sealed(), sealed()).prop_map(|(name, before, after)| {
            RegistryCommand::RewrapSecret {
                name,
                before,
                after,
            }
        }),
        secret_name().prop_map(RegistryCommand::DeleteSecret),
        key_id().prop_map(RegistryCommand::RevokeKey),
        change(),
        names::change(),
        drains::change(),
        tasks::change(),
    ]
}

/// Generates changes of existing entries, and model groups.
fn change() -> impl Strategy<Value = RegistryCommand> {
    let update = (
        model(),
        option::of(".*"),
        option::of(option::of(group_id())),
    );
    prop_oneof![
        connector().prop_map(RegistryCommand::UpdateConnector),
        update.prop_map(|(model, description, group)| RegistryCommand::UpdateModel {
            model,
            description,
            group,
        }),
        (model(), ".*").prop_map(|(model, task)| RegistryCommand::DeleteTask { model, task }),
        group().prop_map(RegistryCommand::CreateGroup),
        group().prop_map(RegistryCommand::UpdateGroup),
        group_id().prop_map(RegistryCommand::DeleteGroup),
        btree_map(".{0,9}", option::of(".*"), 0..4).prop_map(RegistryCommand::ChangeSettings),
    ]
}

/// Encodes and decodes a value.
fn travel<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

proptest! {
    #[test]
    fn commands_survive_the_wire(command in command()) {
        let back = command_from_wire(travel(&command_to_wire(&command))).unwrap();
        prop_assert_eq!(back, command);
    }

    #[test]
    fn the_registry_survives_a_snapshot(state in state()) {
        let back = state_from_wire(travel(&state_to_wire(&state))).unwrap();
        prop_assert_eq!(back, state);
    }

    #[test]
    fn assignments_survive_the_wire(
        model in model(),
        spec in version(),
        connector in option::of(connector()),
    ) {
        let assignment = Assignment { model, spec, connector };
        let back = assignment_from_wire(travel(&assignment_to_wire(&assignment))).unwrap();
        prop_assert_eq!(back, assignment);
    }

    #[test]
    fn answers_survive_the_wire(
        applied in option::of((any::<u64>(), option::of(1_u32..))),
        code in 0..ErrorCode::ALL.len(),
        message in ".*",
    ) {
        let reply = match applied {
            Some((revision, version)) => Ok(RegistryReply {
                revision: Revision(revision),
                version: version.map(ModelVersion),
            }),
            None => Err(PredictError::new(ErrorCode::ALL[code], message)),
        };
        let known = |reply: Result<RegistryReply, PredictError>| {
            reply.map_err(|error| (error.code, error.message))
        };
        let back = reply_from_wire(travel(&reply_to_wire(&reply)));
        prop_assert_eq!(known(back), known(reply));
    }

    #[test]
    fn credentials_are_read_as_they_are_written(credential in option::of(credential())) {
        let text = credential_to_text(credential.as_ref());
        prop_assert_eq!(credential_from_text(&text).unwrap(), credential);
    }

    #[test]
    fn damaged_bytes_are_read_or_refused_as_bad_input(
        command in command(),
        state in state(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let damaged = |mut bytes: Vec<u8>| {
            for (place, value) in &damage {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *value;
                }
            }
            bytes
        };
        let bytes = damaged(command_to_wire(&command).encode_to_vec());
        if let Ok(read) = wire::Command::decode(bytes.as_slice())
            && let Err(error) = command_from_wire(read)
        {
            prop_assert_eq!(error.code, ErrorCode::InvalidInput);
        }
        let bytes = damaged(state_to_wire(&state).encode_to_vec());
        if let Ok(read) = wire::State::decode(bytes.as_slice())
            && let Err(error) = state_from_wire(read)
        {
            prop_assert_eq!(error.code, ErrorCode::InvalidInput);
        }
    }
}
