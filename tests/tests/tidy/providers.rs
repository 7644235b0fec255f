//! What a provider or a backend is stands in its own file or crate, and whoever needs to know asks
//! its fields.

use crate::{assert_none, files, read};

#[test]
fn no_source_names_a_provider_but_its_own_file() {
    let problems = files("crates", ".rs").into_iter().filter_map(|path| {
        let name = path.display().to_string();
        let is_source = name.contains("/src/") && !name.contains("/tests");
        if !is_source || name.starts_with("crates/providers/") || name.starts_with("crates/types/")
        {
            return None;
        }
        let text = read(&path);
        let is_test = text.contains("#[test]") && !text.contains("#[cfg(test)]");
        if is_test {
            return None;
        }
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let found = ["ProviderName::from_static(\"", "volley_providers::named(\""];
        let found = found.into_iter().find(|call| text.contains(call))?;
        Some(format!(
            "{name}: {found}…: ask the provider for what differs, in a field of it"
        ))
    });
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn no_source_decides_by_the_name_of_a_backend() {
    let problems = files("crates", ".rs").into_iter().filter_map(|path| {
        let name = path.display().to_string();
        if !name.contains("/src/") || name.contains("/tests") || name.starts_with("crates/backend")
        {
            return None;
        }
        let text = read(&path);
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let decides = |line: &&str| {
            let compared = ["== BackendName::", "!= BackendName::"];
            let arm = line.trim_start().starts_with("BackendName::") && line.contains("=>");
            arm || compared.iter().any(|operator| line.contains(operator))
        };
        let line = text.lines().find(decides)?.trim();
        Some(format!(
            "{name}: `{line}`: ask the backend's BackendInfo for what differs"
        ))
    });
    assert_none(&problems.collect::<Vec<_>>());
}
