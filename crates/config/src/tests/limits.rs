//! Generates the page of limits: from the comments of keys, and from constants in the source.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use syn::{BinOp, Expr, Item, Lit};

use super::keys::{COORDINATOR, WORKER, sections};
use super::page::assert_current;
use crate::{Size, TimeSpan};

#[test]
fn the_page_of_limits_is_generated_from_keys_and_constants() {
    let mut parts = BTreeMap::new();
    for (node, source) in [("coordinator", COORDINATOR), ("worker", WORKER)] {
        let mut table =
            "| key | limit | default | when it is reached |\n|---|---|---|---|\n".to_owned();
        for (section, keys) in sections(source) {
            for key in keys {
                let Some(beyond) = key.beyond else { continue };
                let (name, what, default) = (key.name, first_sentence(&key.meaning), key.default);
                let link = format!("[`{section}.{name}`](configuration.md#{section})");
                writeln!(table, "| {link} | {what} | {default} | {beyond} |").unwrap();
            }
        }
        parts.insert(node.to_owned(), table);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let template = std::fs::read_to_string(root.join("tests/reference/limits.txt")).unwrap();
    let sources = sources(&root.join("crates"));
    for name in template
        .split("{{")
        .skip(1)
        .filter_map(|it| it.split_once("}}"))
    {
        let name = name.0;
        let words: Vec<_> = name.split(' ').collect();
        if let ["const", file, constant, unit] = words.as_slice() {
            parts.insert(name.to_owned(), shown(&sources, file, constant, unit));
        }
    }
    assert_current("limits", parts);
}

fn first_sentence(text: &str) -> &str {
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text[..end].trim_end_matches('.')
}

/// The value of a constant.
#[derive(Clone, Copy)]
enum Constant {
    Number(u64),
    Time(Duration),
}

/// Renders a constant. Exactly one source file whose path ends in `file` must define it.
fn shown(sources: &[(PathBuf, String)], file: &str, constant: &str, unit: &str) -> String {
    let suffix = format!("/{file}");
    let found = sources
        .iter()
        .filter(|(path, _)| path.to_string_lossy().ends_with(&suffix))
        .filter(|(_, text)| text.contains(&format!("const {constant}:")))
        .map(|(_, text)| value(&syn::parse_file(text).unwrap().items, constant))
        .collect::<Vec<_>>();
    let [Some(found)] = found.as_slice() else {
        panic!(
            "tests/reference/limits.txt: {constant} is in {} files {file}; name the file that has \
             it now",
            found.len()
        );
    };
    match (*found, unit) {
        (Constant::Number(number), "size") => size(number),
        (Constant::Number(number), "count") => count(number),
        (Constant::Time(time), "time") => TimeSpan(time).to_string(),
        _ => panic!("{file} {constant}: not a {unit}"),
    }
}

/// Formats a size like `64 KiB`.
fn size(bytes: u64) -> String {
    let text = Size(bytes).to_string();
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap();
    let (number, unit) = text.split_at(unit);
    format!("{number} {unit}")
}

/// Formats a number like `10,000`.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn value(items: &[Item], name: &str) -> Option<Constant> {
    let mut constants = items.iter().filter_map(|item| match item {
        Item::Const(item) => Some(item),
        _ => None,
    });
    evaluate(items, &constants.find(|item| item.ident == name)?.expr)
}

fn evaluate(items: &[Item], expression: &Expr) -> Option<Constant> {
    let number = |expression: &Expr| match evaluate(items, expression)? {
        Constant::Number(number) => Some(number),
        Constant::Time(_) => None,
    };
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Some(Constant::Number(number.base10_parse().ok()?)),
            _ => None,
        },
        Expr::Paren(inner) => evaluate(items, &inner.expr),
        Expr::Cast(cast) => evaluate(items, &cast.expr),
        Expr::Path(path) => value(items, &path.path.get_ident()?.to_string()),
        Expr::Binary(both) => {
            let (left, right) = (number(&both.left)?, number(&both.right)?);
            Some(Constant::Number(match both.op {
                BinOp::Shl(_) => left << right,
                BinOp::Mul(_) => left * right,
                BinOp::Add(_) => left + right,
                _ => return None,
            }))
        }
        Expr::Call(call) => {
            let Expr::Path(path) = call.func.as_ref() else {
                return None;
            };
            let amount = number(call.args.first()?)?;
            let function = path.path.segments.last()?.ident.to_string();
            Some(Constant::Time(match function.as_str() {
                "from_secs" => Duration::from_secs(amount),
                "from_millis" => Duration::from_millis(amount),
                _ => return None,
            }))
        }
        _ => None,
    }
}

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}
