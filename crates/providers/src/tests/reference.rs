//! Generates the reference pages about the providers in the list.

#[path = "../../../../tests/reference/page.rs"]
mod page;

use std::collections::BTreeMap;

use volley_provider_kit::parameters::range;

use super::*;

#[test]
fn the_reference_of_connectors_has_a_row_for_each_provider() {
    let mut table = vec![
        "| `provider` | endpoint that `url` names | key | detected by its URL |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    table.extend(PROVIDERS.iter().map(|provider| {
        let Page { endpoint, key, url } = provider.page;
        let aliases = provider.aliases.iter().map(|name| format!(", or `{name}`"));
        let aliases: String = aliases.collect();
        format!(
            "| `{}`{aliases} | {endpoint} | {key} | {url} |",
            provider.name
        )
    }));
    let parts = BTreeMap::from([("providers".to_owned(), table.join("\n"))]);
    page::assert_current("connectors", parts);
}

#[test]
fn the_reference_of_parameters_has_a_row_for_each_provider() {
    let mut table = vec![
        "| `provider` | parameters | ranges | stop sequences |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    let written = PROVIDERS
        .iter()
        .filter(|provider| !provider.is_configured());
    table.extend(written.map(|provider| {
        let takes = provider.parameters;
        let renamed = takes.names.iter().map(|(name, path)| match name == path {
            true => format!("`{name}`"),
            false => format!("`{name}` → `{path}`"),
        });
        let own = takes.own.iter().map(|name| format!("`{name}`"));
        let mut parameters: Vec<_> = renamed.chain(own).collect();
        parameters.sort_unstable();
        let ranges = takes.ranges.iter();
        let ranges = ranges.map(|(name, least, most)| format!("`{name}` {}", range(*least, *most)));
        let stops = match takes.stops {
            0 => "none".to_owned(),
            usize::MAX => "any number".to_owned(),
            most => format!("at most {most}"),
        };
        format!(
            "| `{}` | {} | {} | {stops} |",
            provider.name,
            parameters.join(", "),
            ranges.collect::<Vec<_>>().join(", ")
        )
    }));
    let parts = BTreeMap::from([("parameters".to_owned(), table.join("\n"))]);
    page::assert_current("connector-parameters", parts);
}
