use super::*;

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

#[test]
fn roles_are_ordered_and_keep_their_names() {
    assert!(Role::ALL.is_sorted());
    for role in Role::ALL {
        assert_eq!(Role::from_name(role.as_str()), Some(role));
    }
    assert_eq!(Role::from_name("root"), None);
}

#[test]
fn a_scope_selects_what_it_contains() {
    let all: BTreeMap<_, _> = ["a", "b.1", "b.2", "bc", "d", "q", "q-x", "q/a", "q/b", "q0"]
        .map(|text| (name(text), ()))
        .into();
    let scope =
        |texts: &[&str]| ModelScope::new(texts.iter().map(|text| text.parse().unwrap()).collect());
    for texts in [
        &[][..],
        &["a"],
        &["b.*", "d"],
        &["b*"],
        &["nothing", "z*"],
        &["q/*"],
        &["q/a"],
    ] {
        let scope = scope(texts);
        let wanted: Vec<_> = all.keys().filter(|name| scope.contains(name)).collect();
        let selected = scope.select(&all);
        assert_eq!(selected.keys().collect::<Vec<_>>(), wanted, "{texts:?}");
    }
    assert!(ModelScope::read(["a", "*"]).unwrap().is_all());
    assert!(!ModelScope::read(["a"]).unwrap().is_all());
    assert!("*".parse::<ModelPattern>().is_err());
    assert!("a*b".parse::<ModelPattern>().is_err());
    let pattern: ModelPattern = "team-a.*".parse().unwrap();
    assert_eq!(pattern.to_string(), "team-a.*");
}

#[test]
fn a_tenants_own_begins_with_its_name_and_a_dot() {
    let own = |text: &str| ModelScope::of_tenant(&TenantId::new(text).unwrap());
    let team = own("team-a");
    assert!(team.covers("team-a.x") && !team.covers("team-a") && !team.covers("team-ab.x"));
    assert_eq!(team.beginning(), Some("team-a."));
    assert!(own("default").is_all());
    let long = "x".repeat(128);
    assert!(own(&long).covers(&long) && !own(&long).covers("y"));
}

#[test]
fn identities_round_trip_and_nothing_else_is_one() {
    for uri in ["volley://coordinator/7", "volley://worker/gpu-1"] {
        assert_eq!(NodeIdentity::from_uri(uri).unwrap().to_string(), uri);
    }
    for uri in [
        "volley://coordinator/x",
        "volley://worker/",
        "volley://worker/a/b",
        "spiffe://worker/a",
    ] {
        assert_eq!(NodeIdentity::from_uri(uri), None, "{uri}");
    }
}
