//! The keys of the configuration files, their defaults and what they mean, out of the structs
//! that read them.

use std::collections::BTreeMap;
use std::fmt::Write;

use syn::{Expr, Field, GenericArgument, Item, ItemStruct, Lit, Meta, PathArguments, Type};

use super::page::assert_current;
use crate::config;

const COORDINATOR: &str = include_str!("../../config/coordinator/file.rs");
const WORKER: &str = include_str!("../../config/worker/file.rs");
const SHARED: [&str; 4] = [
    include_str!("../../config/security.rs"),
    include_str!("../../config/security/issuers.rs"),
    include_str!("../../config/otlp.rs"),
    include_str!("../../config/worker/artifacts.rs"),
];
const MINIMAL_COORDINATOR: &str = "
node.id = 1
node.data_dir = 'data'
listen.public = '127.0.0.1:1'
listen.internal = '127.0.0.1:2'
cluster.wait = true
otlp.endpoint = 'http://127.0.0.1:3'
";
const MINIMAL_WORKER: &str = "
node.id = 'w'
listen.flight = '127.0.0.1:1'
listen.http = '127.0.0.1:2'
cluster.coordinators = ['127.0.0.1:3']
otlp.endpoint = 'http://127.0.0.1:4'
";

/// One row of a table.
struct Key {
    name: String,
    kind: String,
    default: String,
    meaning: String,
}

/// The keys of each section, by `section` or, for arrays of tables, `section.key`.
type Sections = BTreeMap<String, Vec<Key>>;

#[test]
fn the_page_of_configuration_is_generated_from_the_keys() {
    let mut parts = BTreeMap::new();
    for (node, source) in [("coordinator", COORDINATOR), ("worker", WORKER)] {
        for (section, keys) in sections(source) {
            let mut table = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
            for it in keys {
                let (name, kind, default, meaning) = (it.name, it.kind, it.default, it.meaning);
                writeln!(table, "| `{name}` | {kind} | {default} | {meaning} |").unwrap();
            }
            parts.insert(format!("{node} {section}"), table);
        }
    }
    assert_current("configuration", parts);
}

#[test]
fn a_key_with_its_documented_default_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    let coordinator = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::coordinator::read(&path).map(|plan| format!("{plan:?}"))
    };
    let worker = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).map(|plan| format!("{plan:?}"))
    };
    let seen = defaults_hold(COORDINATOR, MINIMAL_COORDINATOR, coordinator)
        + defaults_hold(WORKER, MINIMAL_WORKER, worker);
    assert!(60 < seen, "{seen}");
}

/// How many defaults were tried.
fn defaults_hold(
    source: &str,
    minimal: &str,
    plan: impl Fn(&str) -> anyhow::Result<String>,
) -> usize {
    let usual = plan(minimal).unwrap();
    let mut seen = 0;
    for (section, keys) in sections(source) {
        for key in keys.iter().filter(|_| !section.contains('.')) {
            let value = key
                .default
                .strip_prefix('`')
                .and_then(|it| it.strip_suffix('`'));
            let Some(value) = value.filter(|it| !it.contains('`')) else {
                continue;
            };
            let name = format!("{section}.{}", key.name);
            if minimal.contains(&format!("\n{name} = ")) {
                continue;
            }
            let text = format!("{minimal}{name} = {value}\n");
            let given = plan(&text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(usual == given, "{name}: {value} is not the default");
            seen += 1;
        }
    }
    seen
}

fn sections(source: &str) -> Sections {
    let mut found = Sections::new();
    let file = structure(source, "File");
    for field in &file.fields {
        let name = field.ident.as_ref().unwrap().to_string();
        let (kind, _) = inner(&field.ty);
        let mut keys = Vec::new();
        collect(source, &kind, &name, "", &mut keys, &mut found);
        found.insert(name, keys);
    }
    found
}

/// Puts the keys of the struct `kind` into `keys`: those of tables below it with their table in
/// front, those of arrays of tables into a section of their own.
fn collect(
    source: &str,
    kind: &str,
    section: &str,
    table: &str,
    keys: &mut Vec<Key>,
    found: &mut Sections,
) {
    let item = structure(source, kind);
    let all_optional = serde_says(&item.attrs, "default");
    for field in &item.fields {
        let name = field.ident.as_ref().unwrap().to_string();
        let (inner, wrapper) = inner(&field.ty);
        let is_table = find(source, &inner).is_some();
        if is_table && wrapper != Wrapper::List {
            collect(source, &inner, section, &format!("{name}."), keys, found);
            continue;
        }
        if is_table {
            let mut own = Vec::new();
            let below = format!("{section}.{name}");
            collect(source, &inner, &below, "", &mut own, found);
            found.insert(below, own);
        }
        let (meaning, default) = documented(field);
        let optional =
            all_optional || wrapper == Wrapper::Option || serde_says(&field.attrs, "default");
        let default = match default {
            Some(default) => default,
            None if optional && inner == "bool" => "`false`".to_owned(),
            None if optional => "none".to_owned(),
            None if table.is_empty() => "required".to_owned(),
            None => "required in its table".to_owned(),
        };
        keys.push(Key {
            name: format!("{table}{name}"),
            kind: shown(&inner, wrapper),
            default,
            meaning,
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapper {
    None,
    Option,
    List,
    Table,
}

/// The innermost type's name, and what is around it.
fn inner(kind: &Type) -> (String, Wrapper) {
    let Type::Path(path) = kind else {
        panic!("a key's type is a path");
    };
    let last = path.path.segments.last().unwrap();
    let wrapper = match last.ident.to_string().as_str() {
        "Option" => Wrapper::Option,
        "Vec" => Wrapper::List,
        "BTreeMap" => Wrapper::Table,
        _ => return (last.ident.to_string(), Wrapper::None),
    };
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        panic!("a wrapper has arguments");
    };
    let Some(GenericArgument::Type(held)) = arguments.args.last() else {
        panic!("a wrapper holds a type");
    };
    match inner(held) {
        (name, Wrapper::None) => (name, wrapper),
        nested => nested,
    }
}

fn shown(kind: &str, wrapper: Wrapper) -> String {
    let one = match kind {
        "bool" => "boolean",
        "f64" => "number",
        "u16" | "u32" | "u64" | "usize" | "i32" => "integer",
        "Count" => "positive integer",
        "Span" => "duration",
        "Size" => "size",
        "String" => "string",
        "PathBuf" => "path",
        _ => "table",
    };
    match wrapper {
        Wrapper::List => format!("list of {one}s"),
        Wrapper::Table => format!("table of {one}s"),
        Wrapper::None | Wrapper::Option => one.to_owned(),
    }
}

/// A field's meaning, and the default that the last line of its comment gives.
fn documented(field: &Field) -> (String, Option<String>) {
    let mut meaning = String::new();
    let mut default = None;
    for attribute in &field.attrs {
        let Meta::NameValue(it) = &attribute.meta else {
            continue;
        };
        let Expr::Lit(text) = &it.value else { continue };
        let Lit::Str(text) = &text.lit else { continue };
        let text = text.value();
        match text.trim().strip_prefix("Default: ") {
            Some(text) => default = Some(text.to_owned()),
            None => meaning = format!("{meaning} {}", text.trim()),
        }
    }
    let meaning = meaning.trim().to_owned();
    assert!(!meaning.is_empty(), "describe {:?}", field.ident);
    (meaning, default)
}

/// Whether `#[serde(…)]` names `word`.
fn serde_says(attributes: &[syn::Attribute], word: &str) -> bool {
    let mut found = false;
    for attribute in attributes.iter().filter(|it| it.path().is_ident("serde")) {
        let parsed = attribute.parse_nested_meta(|it| {
            found |= it.path.is_ident(word);
            if it.input.peek(syn::Token![=]) {
                it.value()?.parse::<Expr>()?;
            }
            Ok(())
        });
        parsed.unwrap();
    }
    found
}

fn structure(source: &str, name: &str) -> ItemStruct {
    find(source, name).unwrap_or_else(|| panic!("no struct {name}"))
}

/// The struct `name` of `source`, or of a section that both nodes have.
fn find(source: &str, name: &str) -> Option<ItemStruct> {
    let own = std::iter::once(source).chain(SHARED);
    own.flat_map(|text| syn::parse_file(text).unwrap().items)
        .find_map(|item| match item {
            Item::Struct(item) if item.ident == name => Some(item),
            _ => None,
        })
}
