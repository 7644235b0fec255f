//! No import cycles between the files of a crate: whoever reads a file shall find what it needs in
//! files that do not need it. `cycles.txt` lists the cycles that there are still; it only shrinks.
//!
//! A file imports another where it names something of it in a `use` or by a path that begins with
//! `crate`, `super` or `self`. A re-export leads to the file that it is of. An import of a file's
//! own parent module does not count, nor of the crate's root, and neither do tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{assert_none, files, read};

const LISTED: &str = "tests/tests/tidy/cycles.txt";

/// A module, as the names that lead to it from the crate's root.
type Module = Vec<String>;
/// The files of a cycle, as their paths below `src`.
type Cycle = BTreeSet<String>;

#[test]
fn files_import_each_other_in_no_cycle() {
    let listed = listed(&read(Path::new(LISTED)));
    let mut problems = Vec::new();
    let mut found = BTreeSet::new();
    for (name, sources) in crates() {
        for cycle in cycles(&sources) {
            let is_listed = listed
                .iter()
                .any(|(of, files)| *of == name && cycle.is_subset(files));
            if !is_listed {
                problems.push(format!(
                    "crates/{name}: {} files import each other in a cycle, which {LISTED} does \
                     not list: {}. Move what they share into a file that imports neither.",
                    cycle.len(),
                    words(&cycle)
                ));
            }
            found.extend(cycle.into_iter().map(|file| (name.clone(), file)));
        }
    }
    for (name, files) in &listed {
        let gone: Cycle = files
            .iter()
            .filter(|file| !found.contains(&(name.clone(), (*file).clone())))
            .cloned()
            .collect();
        if !gone.is_empty() {
            problems.push(format!(
                "crates/{name}: in no cycle any more; take from {LISTED}: {}",
                words(&gone)
            ));
        }
    }
    assert_none(&problems);
}

/// A line for each cycle: the crate, a colon, the files.
fn listed(text: &str) -> Vec<(String, Cycle)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let cycle = |line: &str| {
        let (name, files) = line.split_once(": ").expect("a crate and its files");
        let files = files.split(' ').map(str::to_owned);
        (name.to_owned(), files.collect())
    };
    lines.map(cycle).collect()
}

fn words(cycle: &Cycle) -> String {
    let files: Vec<_> = cycle.iter().map(String::as_str).collect();
    files.join(" ")
}

/// The sources of each crate, by its folder's name.
fn crates() -> BTreeMap<String, BTreeMap<Module, String>> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for path in files("crates", ".rs") {
        if let Some((name, module)) = module_of(&path) {
            let sources = crates.entry(name).or_default();
            sources.insert(module, read(&path));
        }
    }
    crates
}

/// The crate and the module that a file is, where it is one that counts.
fn module_of(path: &Path) -> Option<(String, Module)> {
    let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    let ["crates", name, "src", folders @ .., file] = parts.as_slice() else {
        return None;
    };
    let stem = file.strip_suffix(".rs")?;
    let module = folders.iter().chain([&stem]);
    let mut module: Module = module.map(|part| (*part).to_owned()).collect();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if module == ["lib"] || module == ["main"] {
        module.clear();
    }
    Some(((*name).to_owned(), module))
}

/// What a file says about others.
struct Source {
    /// Paths that it names, with whether it exports what is there.
    paths: Vec<(bool, Vec<String>)>,
    /// Modules that it declares, each a file of its own.
    children: BTreeSet<String>,
}

/// The cycles, each with the files that can be reached from each other.
fn cycles(files: &BTreeMap<Module, String>) -> Vec<Cycle> {
    let imports = imports(files);
    let mut reached: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for start in imports.keys() {
        let mut open = vec![start];
        let known = reached.entry(start).or_default();
        while let Some(module) = open.pop() {
            let next = imports.get(module).into_iter().flatten();
            open.extend(next.filter(|next| known.insert(next)));
        }
    }
    let mut cycles = BTreeSet::new();
    for (module, known) in &reached {
        let back = |other: &&&Module| reached.get(**other).is_some_and(|it| it.contains(*module));
        let cycle: Cycle = known.iter().filter(back).map(|it| it.join("/")).collect();
        if 1 < cycle.len() {
            cycles.insert(cycle);
        }
    }
    cycles.into_iter().collect()
}

/// Which file imports which, those left out that do not count.
fn imports(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let sources: BTreeMap<&Module, Source> = files
        .iter()
        .map(|(module, text)| (module, source(text)))
        .collect();
    let mut exports: BTreeMap<(&Module, String), Vec<String>> = BTreeMap::new();
    for (module, source) in &sources {
        for (exported, path) in &source.paths {
            if *exported && let Some(path) = absolute(module, path, source) {
                let name = path.last().cloned().unwrap_or_default();
                exports.insert((*module, name), path);
            }
        }
    }
    let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, source) in &sources {
        let paths = source.paths.iter();
        let paths = paths.filter_map(|(_, path)| absolute(module, path, source));
        let targets = paths.filter_map(|path| resolve(&path, files, &exports, 0));
        // The root and each parent are prefixes.
        let targets = targets.filter(|target| !module.starts_with(target));
        imports.insert((*module).clone(), targets.collect());
    }
    imports.remove(&Vec::new());
    imports
}

/// A path from the crate's root; `None` where it leads out of the crate.
fn absolute(module: &Module, path: &[String], source: &Source) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let first = path.first()?.as_str();
    let (base, rest) = match first {
        "crate" => (&[][..], &path[1..]),
        "self" => (&module[..], &path[1..]),
        "super" => (
            &module[..module.len().checked_sub(supers)?],
            &path[supers..],
        ),
        _ if source.children.contains(first) => (&module[..], path),
        _ => return None,
    };
    Some(base.iter().chain(rest).cloned().collect())
}

/// The file that a path leads to, through what is exported again.
fn resolve(
    path: &[String],
    files: &BTreeMap<Module, String>,
    exports: &BTreeMap<(&Module, String), Vec<String>>,
    depth: usize,
) -> Option<Module> {
    const MOST: usize = 6;
    let (at, module) = (0..=path.len())
        .rev()
        .find_map(|at| Some((at, files.get_key_value(&path[..at])?.0)))?;
    let exported = path
        .get(at)
        .and_then(|name| exports.get(&(module, name.clone())));
    match exported {
        Some(target) if target != path && depth < MOST => {
            let target: Vec<_> = target.iter().chain(&path[at + 1..]).cloned().collect();
            resolve(&target, files, exports, depth + 1)
        }
        _ => Some(module.clone()),
    }
}

/// Reads what a file says about others.
fn source(text: &str) -> Source {
    let tokens = without_tests(tokens(text));
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut source = Source {
        paths: Vec::new(),
        children: BTreeSet::new(),
    };
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            ["mod", name, ";", ..] => {
                source.children.insert((*name).to_owned());
                at += 3;
            }
            // Not what an `impl Trait + use<…>` captures.
            ["use", next, ..] if *next != "<" => {
                let before = at.checked_sub(1).map(|before| tokens[before]);
                let exported = matches!(before, Some("pub" | ")"));
                let mut paths = Vec::new();
                at = tree(&tokens, at + 1, &mut Vec::new(), &mut paths);
                source
                    .paths
                    .extend(paths.into_iter().map(|path| (exported, path)));
            }
            ["crate" | "super" | "self", "::", ..] => {
                let mut path = vec![tokens[at].to_owned()];
                at += 1;
                while let ["::", name, ..] = &tokens[at..]
                    && is_name(name)
                {
                    path.push((*name).to_owned());
                    at += 2;
                }
                source.paths.push((false, path));
            }
            _ => at += 1,
        }
    }
    source
}

/// Reads the tree of a `use` from `at` on; gives where it ends.
fn tree(
    tokens: &[&str],
    mut at: usize,
    prefix: &mut Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let depth = prefix.len();
    loop {
        match tokens.get(at).copied() {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = tree(tokens, at, prefix, paths);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                at += 1;
                break;
            }
            Some("as") => at += 2,
            Some("," | "}" | ";") | None => {
                paths.push(prefix.clone());
                break;
            }
            Some(name) => {
                if is_name(name) || name == "*" {
                    prefix.push(name.to_owned());
                }
                at += 1;
            }
        }
    }
    prefix.truncate(depth);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and all other signs one by one; comments, texts and lifetimes are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            quoted(rest)
        } else if let Some(length) = raw(rest) {
            length
        } else if first == '\'' {
            quote(rest)
        } else if is_name(rest) {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        } else {
            let length = if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of a text in quotes.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw text, if one begins here.
fn raw(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begun = text.len() - body.len();
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(begun + length)
}

/// The length of a character, or of what begins a lifetime.
fn quote(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    let first = chars.next().map(|(_, c)| c);
    if first == Some('\\') {
        let end = text[3..].find('\'');
        return end.map_or(text.len(), |end| end + 4);
    }
    match chars.next() {
        Some((at, '\'')) => at + 1,
        _ => 1,
    }
}

/// Without modules of tests that stand in the file itself.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept: Vec<String> = Vec::with_capacity(tokens.len());
    let mut depth = 0_usize;
    for token in tokens {
        if depth != 0 {
            depth += usize::from(token == "{");
            depth -= usize::from(token == "}");
            continue;
        }
        let begins = token == "{"
            && kept.len() > TEST.len() + 1
            && kept[kept.len() - 2] == "mod"
            && kept[kept.len() - 2 - TEST.len()..kept.len() - 2] == TEST;
        if begins {
            depth = 1;
        } else {
            kept.push(token);
        }
    }
    kept
}

/// The cycles of a crate that is written here.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().filter_map(|(path, text)| {
        let path = PathBuf::from(format!("crates/one/src/{path}.rs"));
        let (_, module) = module_of(&path)?;
        Some((module, (*text).to_owned()))
    });
    cycles(&files.collect()).iter().map(words).collect()
}

#[test]
fn a_cycle_is_found_through_paths_trees_and_exports() {
    let found = cycles_of(&[
        ("lib", "mod a; mod b; mod c; pub use crate::b::B as Other;"),
        (
            "a",
            "use crate::{c::{self, C as D}, z}; /* use crate::d; */",
        ),
        (
            "b",
            "fn f() -> impl X + use<'_> { super::a::A::new(\"{\") }",
        ),
        (
            "c",
            "mod inner; pub use inner::Inner; const C: char = '\"';",
        ),
        ("c/inner", "use super::Own; use crate::b;"),
    ]);
    assert_eq!(found, ["a b c c/inner"]);
}

#[test]
fn parents_the_root_tests_and_texts_are_no_imports() {
    let found = cycles_of(&[
        ("lib", "use crate::a::A; mod a;"),
        ("a", "mod b; use b::B; use crate::Root; // use crate::c::C;"),
        ("a/b", "use super::A; use crate::c;"),
        (
            "c",
            "#[cfg(test)]\nmod tests { use crate::a::b; fn f() {} } const T: &str = r#\"crate::a\"#;",
        ),
        ("d", "#[cfg(test)]\nmod tests;"),
        ("d/tests", "use crate::e;"),
        ("e", "use crate::d;"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}
