//! Checks the configuration examples in the documentation.

use std::path::{Path, PathBuf};

use volley_config::FileKind;

use crate::config;

#[test]
fn the_examples_of_the_documentation_have_known_keys() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    collect(&root.join("docs"), &mut pages);
    let mut seen = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for example in examples(&text) {
            // Files of models and pipelines have other keys.
            if !example.contains("[[") && !example.contains("\n[") && !example.starts_with('[') {
                continue;
            }
            let example = match example.contains("version = 1\n") {
                true => example,
                false => format!("version = 1\n{example}"),
            };
            let problem = |checked: anyhow::Result<()>| {
                let problem = checked.err()?.to_string();
                (!problem.contains("missing field")).then_some(problem)
            };
            let coordinator = problem(config::coordinator::check(&example));
            let worker = problem(config::worker::check(&example));
            assert!(
                coordinator.is_none() || worker.is_none(),
                "{}:\n{example}\n{coordinator:?}\n{worker:?}",
                page.display()
            );
            seen += 1;
        }
    }
    assert!(15 < seen, "{seen}");
}

#[test]
fn the_documentation_names_keys_as_they_are_now() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    collect(&root.join("docs"), &mut pages);
    // This page lists the old names.
    pages.retain(|page| !page.ends_with("docs/reference/configuration.md"));
    let mut problems = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for kind in [FileKind::Coordinator, FileKind::Worker] {
            let renames = volley_config::renames(kind).iter();
            let old =
                renames.filter(|it| it.old != it.new && text.contains(&format!("`{}`", it.old)));
            problems.extend(old.map(|it| format!("{}: {} is {}", page.display(), it.old, it.new)));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.push(path);
        }
    }
}

fn examples(page: &str) -> Vec<String> {
    let mut examples = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "```toml" {
            continue;
        }
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        examples.push(
            block
                .map(|line| format!("{}\n", line.trim_start()))
                .collect(),
        );
    }
    examples
}
