//! Callers with and without a key.

use std::sync::Arc;

use arrow_flight::{Action, Criteria, Empty, FlightData};
use futures::{TryStreamExt, stream};
use tonic::{Code, Request};
use volley_flight::server::FlightServerConfig;
use volley_security::Authenticator;
use volley_security::key::KeyText;
use volley_types::registry::RegistryState;
use volley_types::{ApiKey, ModelScope, Predict, Quota, Role, TenantId};

use super::plain::{messages, path};
use super::support::{Node, request, soon};

fn with_key<T>(message: T, key: Option<&KeyText>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        let value = format!("Bearer {}", key.reveal()).parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

/// A server whose registry holds a key of each role, and one for the model `double` alone.
async fn guarded() -> (Node, KeyText, KeyText, KeyText) {
    let mut registry = RegistryState::default();
    let mut make = |role, models: Vec<&str>| add_key(&mut registry, role, &models);
    let (viewer, predict) = (make(Role::Viewer, vec![]), make(Role::Predict, vec![]));
    let double = make(Role::Predict, vec!["double"]);
    let registry = Arc::new(registry);
    let gate = Authenticator::keys(Arc::new(move || registry.clone()), None).unwrap();
    let node = Node::guarded(FlightServerConfig::default(), 1, gate).await;
    (node, viewer, predict, double)
}

/// A registry with one key, which may call every model.
pub(super) fn registry_with_keys() -> (Arc<RegistryState>, KeyText) {
    let mut registry = RegistryState::default();
    let key = add_key(&mut registry, Role::Predict, &[]);
    (Arc::new(registry), key)
}

fn add_key(registry: &mut RegistryState, role: Role, models: &[&str]) -> KeyText {
    let (id, key) = KeyText::create().unwrap();
    let models = models.iter().map(|model| model.parse().unwrap()).collect();
    let record = ApiKey {
        id: id.clone(),
        name: role_name(role),
        hash: key.hash(),
        previous: None,
        role,
        models: ModelScope::new(models),
        tenant: TenantId::default(),
        created_ms: 0,
        expires_ms: None,
        quota: Quota::default(),
    };
    registry.keys.insert(id, record);
    key
}

fn role_name(role: Role) -> String {
    role.as_str().to_owned()
}

#[tokio::test]
async fn no_method_answers_without_a_key() {
    let (node, ..) = guarded().await;
    let mut client = node.raw().await;
    let wrong = KeyText::create().unwrap().1;
    for key in [None, Some(&wrong)] {
        let input = stream::iter(messages(path(&["double"]), &[1]));
        let codes = [
            client.do_exchange(with_key(input, key)).await.err(),
            client
                .get_flight_info(with_key(path(&["double"]), key))
                .await
                .err(),
            client
                .get_schema(with_key(path(&["double"]), key))
                .await
                .err(),
            client
                .list_flights(with_key(Criteria::default(), key))
                .await
                .err(),
            client
                .do_action(with_key(Action::new("health", ""), key))
                .await
                .err(),
            client.list_actions(with_key(Empty {}, key)).await.err(),
        ];
        for status in codes {
            assert_eq!(status.unwrap().code(), Code::Unauthenticated);
        }
    }
    // Our own client shows no key.
    let refused = node.client.predict(request("double", &[1])).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn a_key_opens_what_its_role_and_models_allow() {
    let (node, viewer, predict, double) = guarded().await;
    let mut client = node.raw().await;
    let mut ask = async |model: &str, key: &KeyText| {
        let input = stream::iter(messages(path(&[model]), &[3]));
        let replies = client.do_exchange(with_key(input, Some(key))).await?;
        let replies: Vec<FlightData> = replies.into_inner().try_collect().await?;
        Ok::<_, tonic::Status>(replies.len())
    };
    assert!(soon("an answer", ask("double", &predict)).await.is_ok());
    assert!(soon("an answer", ask("double", &double)).await.is_ok());
    let refused = soon("a refusal", ask("double", &viewer)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let hidden = soon("a refusal", ask("ready", &double)).await.unwrap_err();
    assert_eq!(hidden.code(), Code::NotFound);

    let listed = client.list_flights(with_key(Criteria::default(), Some(&double)));
    let listed: Vec<_> = listed
        .await
        .unwrap()
        .into_inner()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(listed.len(), 1);
}

#[tokio::test]
async fn no_call_tells_a_hidden_model_from_one_that_is_not_there() {
    let (node, _, _, double) = guarded().await;
    let mut client = node.raw().await;
    let mut refusals = Vec::new();
    for model in ["ready", "nothing"] {
        let input = stream::iter(messages(path(&[model]), &[3]));
        let exchanged = match client.do_exchange(with_key(input, Some(&double))).await {
            Err(status) => Err(status),
            Ok(replies) => replies.into_inner().try_collect::<Vec<FlightData>>().await,
        };
        let described = client.get_flight_info(with_key(path(&[model]), Some(&double)));
        let described = described.await;
        let schema = client.get_schema(with_key(path(&[model]), Some(&double)));
        let schema = schema.await;
        let action = Action::new("model", model.to_owned());
        let acted = client.do_action(with_key(action, Some(&double))).await;
        let statuses = [
            exchanged.unwrap_err(),
            described.unwrap_err(),
            schema.unwrap_err(),
            acted.map(drop).unwrap_err(),
        ];
        refusals.push(statuses.map(|status| {
            assert_eq!(status.code(), Code::NotFound, "{status}");
            // Request ids are among the details, each of the same length.
            let details = status.details().len();
            (status.message().replace(model, "it"), details)
        }));
    }
    assert_eq!(refusals[0], refusals[1]);
}
