//! The words of the glossary: names of types, functions and files, and names of metrics.

use std::collections::BTreeMap;

use crate::{assert_none, files, read};

/// Words that `docs/contributing/style-and-glossary.md` replaces.
const RETIRED: &[&str] = &[
    "canvass",
    "commission",
    "doorman",
    "door",
    "forsaken",
    "gatekeeper",
    "goodbye",
    "guest",
    "hall",
    "homeless",
    "house",
    "laws",
    "lineage",
    "lingering",
    "lingers",
    "mover",
    "overseer",
    "overseen",
    "platter",
    "situation",
    "skin",
    "standing",
    "survivor",
    "teller",
    "telling",
    "tries",
    "visitor",
    "wish",
];

/// What happened to a thing does not say what the thing is.
const PARTICIPLES: &[&str] = &[
    "Aimed",
    "Asked",
    "Drained",
    "Embedded",
    "Fetched",
    "Forbidden",
    "Found",
    "Frozen",
    "Given",
    "Gone",
    "Heard",
    "Held",
    "Kept",
    "Known",
    "Left",
    "Listed",
    "Lost",
    "Made",
    "Overseen",
    "Placed",
    "Received",
    "Said",
    "Sealed",
    "Seen",
    "Sent",
    "Simulated",
    "Taken",
    "Told",
];

/// How often one name may be defined, private definitions aside.
const MAX_DEFINITIONS: usize = 2;

/// A definition in a source file.
struct Definition {
    name: String,
    is_type: bool,
    is_private: bool,
}

fn definitions(text: &str) -> Vec<Definition> {
    let found = text.lines().filter_map(|line| {
        let code = line.trim_start();
        let public = code
            .strip_prefix("pub")
            .map(|rest| match rest.strip_prefix('(') {
                Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
                None => rest,
            });
        let mut words = public.unwrap_or(code).split_whitespace();
        let is_modifier = |word: &&str| matches!(*word, "const" | "async");
        let keyword = words.by_ref().find(|word| !is_modifier(word))?;
        let is_type = matches!(keyword, "struct" | "enum" | "trait" | "type");
        if !is_type && keyword != "fn" {
            return None;
        }
        // A macro's definition has a variable for its name.
        let name = words.next().filter(|name| !name.starts_with('$'))?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
        Some(Definition {
            name: name[..end.unwrap_or(name.len())].to_owned(),
            is_type,
            is_private: public.is_none(),
        })
    });
    found.collect()
}

/// The words of a name in `snake_case` or `CamelCase`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter == '-' || letter.is_uppercase() {
            words.push(String::new());
        }
        if letter.is_alphanumeric() {
            let word = words.last_mut().unwrap();
            word.extend(letter.to_lowercase());
        }
    }
    words
}

fn retired(name: &str) -> Option<&'static str> {
    let words = words(name);
    let mut all = RETIRED.iter().copied();
    all.find(|retired| words.iter().any(|word| word == retired))
}

#[test]
fn no_name_has_a_retired_word_or_is_a_participle() {
    let mut problems = Vec::new();
    let mut public: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files("crates", ".rs") {
        let file = path.display().to_string();
        if !file.contains("/src/") || file.contains("/generated/") {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if let Some(word) = retired(&stem) {
            problems.push(format!("{file}: '{word}' in the name of a file"));
        }
        for definition in definitions(&read(&path)) {
            let name = &definition.name;
            // serde's trait has the word.
            let word =
                retired(name).filter(|word| *word != "visitor" || !name.ends_with("Visitor"));
            if let Some(word) = word {
                problems.push(format!("{file}: '{word}' in `{name}`"));
            }
            if definition.is_type && PARTICIPLES.contains(&name.as_str()) {
                problems.push(format!("{file}: the type `{name}` is a participle"));
            }
            if definition.is_type && !definition.is_private {
                public.entry(name.clone()).or_default().push(file.clone());
            }
        }
    }
    for (name, places) in public {
        if MAX_DEFINITIONS < places.len() {
            problems.push(format!(
                "the type `{name}` is defined in {}",
                places.join(", ")
            ));
        }
    }
    assert_none(&problems);
}

#[test]
fn metrics_use_base_units() {
    let page = read("docs/reference/metrics.md".as_ref());
    let names = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = names.filter(|name| name.starts_with("volley_"));
    let endings = ["_ms", "_millis", "_percent", "_kib", "_mib", "_minutes"];
    let problems: Vec<_> = names
        .filter(|name| endings.iter().any(|ending| name.ends_with(ending)))
        .map(|name| format!("{name}: seconds, bytes and ratios are the units of metrics"))
        .collect();
    assert_none(&problems);
}

#[test]
fn every_retired_word_is_found_in_a_name() {
    assert_eq!(retired("StreamOverseer"), Some("overseer"));
    assert_eq!(retired("wait_at_door"), Some("door"));
    assert_eq!(retired("Doors"), None);
    let text = "    pub(crate) async fn told(x: u8) {}\npub struct Held<T>(T);\nenum Kept {";
    let found: Vec<_> = definitions(text);
    let names: Vec<_> = found
        .iter()
        .map(|it| (it.name.as_str(), it.is_type))
        .collect();
    assert_eq!(names, [("told", false), ("Held", true), ("Kept", true)]);
}
