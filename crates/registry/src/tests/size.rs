use volley_types::registry::{AliasSpec, AliasTarget};

use super::*;

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
        RegistryCommand::UpdateModel {
            model: name("m"),
            description: Some("described".to_owned()),
            group: None,
        },
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
