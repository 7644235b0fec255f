use volley_types::{ApiKey, ModelScope, Quota, TenantId};

use crate::key::KeyText;

use super::*;

fn state(role: Role, expires_ms: Option<u64>) -> (RegistryState, KeyText) {
    let (id, key) = KeyText::create().unwrap();
    let record = ApiKey {
        id: id.clone(),
        name: "a service".to_owned(),
        hash: key.hash(),
        previous: None,
        role,
        models: ModelScope::default(),
        tenant: TenantId::new("team-a").unwrap(),
        created_ms: 0,
        expires_ms,
        quota: Quota::default(),
    };
    let mut state = RegistryState::default();
    state.keys.insert(id, record);
    (state, key)
}

fn bearer(key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
    headers
}

#[test]
fn a_bearer_has_the_rights_of_its_key_and_a_near_miss_has_none() {
    let (state, key) = state(Role::Predict, None);
    let state = Arc::new(state);
    let gate = Authenticator::keys(Arc::new(move || state.clone()), None).unwrap();
    let principal = gate.identify(&bearer(key.reveal())).unwrap();
    assert_eq!(principal.role(), Some(Role::Predict));
    assert_eq!(principal.tenant().unwrap().as_str(), "team-a");
    assert!(principal.allow(Role::Viewer).is_ok());
    let refused = principal.allow(Role::ModelAdmin).unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);

    let mut near = key.reveal().to_owned();
    let last = near.pop().unwrap();
    near.push(if last == 'A' { 'B' } else { 'A' });
    for headers in [bearer(&near), bearer("vly_x_y"), HeaderMap::new()] {
        let refused = gate.identify(&headers).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated);
        assert!(!refused.message.contains(&near));
    }
}

#[test]
fn the_bootstrap_key_works_beside_the_registry() {
    let text = "b".repeat(MIN_BOOTSTRAP_LEN);
    let read: ReadRegistry = Arc::new(Arc::default);
    let gate = Authenticator::keys(read.clone(), Some(&text)).unwrap();
    let principal = gate.identify(&bearer(&text)).unwrap();
    assert_eq!(principal.role(), Some(Role::ClusterAdmin));
    assert!(gate.identify(&bearer(&text[1..])).is_err());
    assert!(Authenticator::keys(read, Some("short")).is_err());
}

#[test]
fn an_expired_key_is_no_key() {
    let (state, key) = state(Role::Viewer, Some(10));
    assert!(decide(&state, None, key.reveal(), 9).is_some());
    assert!(decide(&state, None, key.reveal(), 10).is_none());
}

#[test]
fn nobody_is_let_in_once_a_node_has_left_service() {
    let (state, key) = state(Role::Predict, None);
    let state = Arc::new(state);
    let text = "b".repeat(MIN_BOOTSTRAP_LEN);
    let failed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let in_service: InService = {
        let failed = failed.clone();
        Arc::new(move || !failed.load(Ordering::Relaxed))
    };
    let keys = Authenticator::keys(Arc::new(move || state.clone()), Some(&text)).unwrap();
    let keys = keys.while_in_service(in_service.clone());
    let open = Authenticator::open().while_in_service(in_service);
    let node = NodeIdentity::Coordinator(volley_types::NodeId(1));
    let ask = |gate: &Authenticator| {
        [
            gate.identify(&bearer(key.reveal())),
            gate.identify(&bearer(&text)),
            gate.identify_call(&HeaderMap::new(), Some(&node), None),
        ]
    };
    assert!(ask(&keys).iter().chain(&ask(&open)).all(Result::is_ok));
    failed.store(true, Ordering::Relaxed);
    for refused in ask(&keys).into_iter().chain(ask(&open)) {
        assert_eq!(refused.unwrap_err().code, ErrorCode::Unavailable);
    }
}

#[test]
fn a_removed_coordinators_certificate_opens_nothing() {
    let members: crate::nodes::IsValid =
        Arc::new(|node| matches!(node, NodeIdentity::Coordinator(id) if id.0 == 1));
    let gate = Authenticator::open().with_members(members);
    let call = |id| {
        let node = NodeIdentity::Coordinator(volley_types::NodeId(id));
        gate.identify_call(&HeaderMap::new(), Some(&node), None)
    };
    assert!(call(1).is_ok());
    let refused = call(2).unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    assert!(refused.message.contains("coordinator/2"), "{refused:?}");
}

#[test]
fn ten_rejections_are_logged_in_one_second() {
    // A run that crosses the end of a second is repeated.
    let told = loop {
        let (refusals, second) = (Refusals::default(), now_ms() / 1_000);
        let told = (0..30).filter(|_| refusals.is_told("test")).count();
        if now_ms() / 1_000 == second {
            break told;
        }
    };
    assert_eq!(told as u64, REFUSALS_LOGGED);
}
