//! What is in `deploy/`: alerts have guides, the dashboard can be read, and both name metrics
//! that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use volley_tests::metrics::{expressions, names};

use crate::{assert_none, read};

const RULES: &str = "deploy/prometheus/volley.rules.yaml";
const DASHBOARD: &str = "deploy/grafana/volley.json";
/// The pages with a section for each alert.
const GUIDES: [&str; 3] = [
    "docs/how-to/operate/cluster-alerts.md",
    "docs/how-to/operate/worker-alerts.md",
    "docs/how-to/operate/request-alerts.md",
];

/// The values of a key in a YAML file whose lines are plain.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    lines
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
        .collect()
}

#[test]
fn every_alert_has_a_section_and_every_section_an_alert() {
    let rules = read(Path::new(RULES));
    let alerts = values(&rules, "alert");
    let links = values(&rules, "runbook_url");
    assert_eq!(alerts.len(), links.len(), "one link for each alert");
    let guides = GUIDES.map(|page| (page, read(Path::new(page))));
    let sections = guides.iter().flat_map(|(page, text)| {
        let sections = text.split("\n## ").skip(1);
        sections.map(move |section| {
            let heading = section.lines().next().unwrap_or_default();
            let anchor = heading.to_lowercase().replace(' ', "-");
            (format!("{page}#{anchor}"), section)
        })
    });
    let sections: BTreeMap<_, _> = sections.collect();
    let mut problems = Vec::new();
    for (alert, link) in alerts.iter().zip(&links) {
        match sections.get(*link) {
            Some(section) if section.contains(&format!("`{alert}`")) => {}
            Some(_) => problems.push(format!("{link} does not name {alert}")),
            None => problems.push(format!("{alert}: {link} leads nowhere")),
        }
    }
    let unlinked = sections.keys().filter(|it| !links.contains(&it.as_str()));
    problems.extend(unlinked.map(|it| format!("no alert links {it}")));
    assert_none(&problems);
}

#[test]
fn every_alert_fires_in_the_tests_of_the_rules() {
    let rules = read(Path::new(RULES));
    let tests = read(Path::new("deploy/prometheus/volley.tests.yaml"));
    // One that must not fire is written on one line.
    let fired: BTreeSet<_> = values(&tests, "alertname").into_iter().collect();
    let alerts = values(&rules, "alert").into_iter();
    let problems = alerts.filter(|alert| !fired.contains(alert));
    let problems: Vec<_> = problems
        .map(|alert| format!("{alert} fires in no test"))
        .collect();
    assert_none(&problems);
}

#[test]
fn alerts_and_dashboard_name_metrics_that_are_documented() {
    let documented = names(&read(Path::new("docs/reference/metrics.md")));
    let mut problems = Vec::new();
    for file in [RULES, DASHBOARD] {
        let text = read(Path::new(file));
        let used = if file == DASHBOARD {
            names(&expressions(&serde_json::from_str(&text).expect("JSON")).join("\n"))
        } else {
            names(&text)
        };
        assert!(10 < used.len(), "{file} uses {used:?}");
        let unknown = used.difference(&documented);
        problems.extend(
            unknown.map(|name| format!("{file}: {name} is not in docs/reference/metrics.md")),
        );
    }
    assert_none(&problems);
}

#[test]
fn the_dashboard_has_panels_that_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&read(Path::new(DASHBOARD))).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let of = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(of("x") + of("w") <= 24, "{}", panel["title"]);
        for x in of("x")..of("x") + of("w") {
            for y in of("y")..of("y") + of("h") {
                assert!(taken.insert((x, y)), "{} overlaps", panel["title"]);
            }
        }
    }
}
