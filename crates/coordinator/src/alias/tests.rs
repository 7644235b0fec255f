use volley_types::Revision;
use volley_types::registry::{AliasMirror, AliasTarget};

use super::*;

fn alias(name: &str, target: &str, mirror: Option<&str>) -> (ModelName, AliasEntry) {
    let spec = AliasSpec {
        name: name.parse().unwrap(),
        targets: vec![AliasTarget {
            model: target.parse().unwrap(),
            weight: 1,
        }],
        mirror: mirror.map(|model| AliasMirror {
            model: model.parse().unwrap(),
            permille: 1_000,
        }),
        sticky_header: None,
        description: String::new(),
    };
    let revision = Revision(1);
    (spec.name.clone(), AliasEntry { spec, revision })
}

fn follow(registry: &RegistryState, name: &str) -> Result<ResolvedAlias, PredictError> {
    resolve(
        registry,
        &name.parse().unwrap(),
        StickinessKeys { id: 1, target: 1 },
    )
}

#[test]
fn a_name_is_followed_to_its_model_and_circles_end() {
    let registry = RegistryState {
        aliases: [
            alias("front", "chat", Some("m1")),
            alias("chat", "model:3", Some("m2")),
            alias("round", "about", None),
            alias("about", "round", None),
        ]
        .into(),
        ..RegistryState::default()
    };
    let aimed = follow(&registry, "front").unwrap();
    assert_eq!(aimed.model.to_string(), "model:3");
    assert_eq!(aimed.copies, ["m1".parse().unwrap(), "m2".parse().unwrap()]);
    let plain = follow(&registry, "model:2").unwrap();
    assert_eq!(
        (plain.model.to_string().as_str(), plain.copies.len()),
        ("model:2", 0)
    );
    for (name, code) in [
        ("front:1", ErrorCode::NotFound),
        ("round", ErrorCode::Conflict),
    ] {
        assert_eq!(follow(&registry, name).unwrap_err().code, code);
    }
}
