//! The keys that the structs of the configuration files declare, with their comments.

use std::collections::BTreeMap;

use syn::{Expr, Field, GenericArgument, Item, ItemStruct, Lit, Meta, PathArguments, Type};

pub(crate) const COORDINATOR: &str = include_str!("../../crates/config/src/coordinator.rs");
pub(crate) const WORKER: &str = include_str!("../../crates/config/src/worker.rs");
const SHARED: [&str; 3] = [
    include_str!("../../crates/config/src/security.rs"),
    include_str!("../../crates/config/src/otlp.rs"),
    include_str!("../../crates/config/src/artifacts.rs"),
];
/// One row of a table.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) default: String,
    pub(crate) meaning: String,
    /// What happens where the key is a limit, and the limit is reached.
    pub(crate) beyond: Option<String>,
}

/// The keys of each section, by `section` or, for arrays of tables, `section.key`.
pub(crate) type Sections = BTreeMap<String, Vec<Key>>;

/// The sections of a file, whose source this is. The keys outside of sections are in `file`.
pub(crate) fn sections(source: &str) -> Sections {
    let root = if source == WORKER {
        "WorkerFile"
    } else {
        "CoordinatorFile"
    };
    let structs = structs(source);
    let mut found = Sections::new();
    let file = structure(&structs, root);
    let mut outside = Vec::new();
    for field in &file.fields {
        let name = field.ident.as_ref().unwrap().to_string();
        let (kind, wrapper) = inner(&field.ty);
        if find(&structs, &kind).is_none() {
            let (meaning, _, beyond) = documented(field);
            outside.push(Key {
                beyond,
                name,
                kind: shown(&kind, wrapper),
                default: "required".to_owned(),
                meaning,
            });
            continue;
        }
        let mut keys = Vec::new();
        collect(&structs, &kind, &name, "", &mut keys, &mut found);
        found.insert(name, keys);
    }
    found.insert("file".to_owned(), outside);
    found
}

/// Puts the keys of the struct `kind` into `keys`: those of tables below it with their table in
/// front, those of arrays of tables into a section of their own.
fn collect(
    structs: &[ItemStruct],
    kind: &str,
    section: &str,
    table: &str,
    keys: &mut Vec<Key>,
    found: &mut Sections,
) {
    let item = structure(structs, kind);
    let all_optional = serde_says(&item.attrs, "default");
    for field in &item.fields {
        let name = field.ident.as_ref().unwrap().to_string();
        let (inner, wrapper) = inner(&field.ty);
        let is_table = find(structs, &inner).is_some();
        if is_table && wrapper != Wrapper::List {
            collect(structs, &inner, section, &format!("{name}."), keys, found);
            continue;
        }
        if is_table {
            let mut own = Vec::new();
            let below = format!("{section}.{name}");
            collect(structs, &inner, &below, "", &mut own, found);
            found.insert(below, own);
        }
        let (meaning, default, beyond) = documented(field);
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
            beyond,
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
        "FormatVersion" | "u16" | "u32" | "u64" | "usize" | "i32" => "integer",
        "Count" => "positive integer",
        "TimeSpan" => "duration",
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

/// A field's meaning, the default that its comment gives after `Default:`, and what happens at the
/// limit, after `Beyond:`.
fn documented(field: &Field) -> (String, Option<String>, Option<String>) {
    let mut parts = [String::new(), String::new(), String::new()];
    let mut part = 0;
    for attribute in &field.attrs {
        let Meta::NameValue(it) = &attribute.meta else {
            continue;
        };
        let Expr::Lit(text) = &it.value else { continue };
        let Lit::Str(text) = &text.lit else { continue };
        let text = text.value();
        let mut text = text.trim();
        for (at, start) in [(1, "Default: "), (2, "Beyond: ")] {
            if let Some(rest) = text.strip_prefix(start) {
                (part, text) = (at, rest);
            }
        }
        parts[part] = format!("{} {text}", parts[part]).trim().to_owned();
    }
    let [meaning, default, beyond] = parts;
    assert!(!meaning.is_empty(), "describe {:?}", field.ident);
    let some = |text: String| (!text.is_empty()).then_some(text);
    (meaning, some(default), some(beyond))
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

fn structure<'s>(structs: &'s [ItemStruct], name: &str) -> &'s ItemStruct {
    find(structs, name).unwrap_or_else(|| panic!("no struct {name}"))
}

fn find<'s>(structs: &'s [ItemStruct], name: &str) -> Option<&'s ItemStruct> {
    structs.iter().find(|item| item.ident == name)
}

/// The structs of `source`, and those of the sections that both nodes have.
fn structs(source: &str) -> Vec<ItemStruct> {
    let texts = std::iter::once(source).chain(SHARED);
    let items = texts.flat_map(|text| syn::parse_file(text).unwrap().items);
    let structs = items.filter_map(|item| match item {
        Item::Struct(item) => Some(item),
        _ => None,
    });
    structs.collect()
}
