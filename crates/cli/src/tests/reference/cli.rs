//! Generates the reference page of commands.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Args, Command, CommandFactory};

use super::page::assert_current;
use crate::args::{Arguments, Sql};

#[test]
fn the_page_of_commands_is_generated_from_the_arguments() {
    let mut root = Arguments::command();
    if root.find_subcommand("sql").is_none() {
        root = root.subcommand(Sql::augment_args(Command::new("sql")));
    }
    root.build();
    let mut commands = String::new();
    describe(&root, &mut commands);
    let global = table(root.get_arguments().filter(|it| it.is_global_set()));
    let parts = [("global", global), ("commands", commands)];
    let parts = parts.map(|(name, text)| (name.to_owned(), text));
    assert_current("cli", BTreeMap::from(parts));
}

/// Appends each subcommand of `parent` with its arguments.
fn describe(parent: &Command, page: &mut String) {
    for command in parent.get_subcommands() {
        if command.is_hide_set() || command.get_name() == "help" {
            continue;
        }
        if command.has_subcommands() {
            describe(command, page);
            continue;
        }
        let name = command.get_bin_name().unwrap();
        let about = command.get_about().map(ToString::to_string);
        let about = about.unwrap_or_else(|| panic!("{name} has no text"));
        let usage = command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap().trim();
        let usage = usage.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        let dot = if about.ends_with('.') { "" } else { "." };
        write!(
            page,
            "\n### {name}\n\n{about}{dot}\n\n```text\n{usage}\n```\n"
        )
        .unwrap();
        let own = |it: &&Arg| !it.is_global_set() && !it.is_hide_set();
        let own = command.get_arguments().filter(own);
        let own = own.filter(|it| it.get_id() != "help");
        let table = table(own);
        if !table.is_empty() {
            write!(page, "\n{table}").unwrap();
        }
    }
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let rows = arguments.map(row).collect::<String>();
    match rows.is_empty() {
        true => rows,
        false => {
            format!("| argument | default | environment | meaning |\n|---|---|---|---|\n{rows}")
        }
    }
}

fn row(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string);
    let help = help.unwrap_or_else(|| panic!("{} has no text", argument.get_id()));
    let (meaning, stated) = match help.rsplit_once(" [default: ") {
        Some((meaning, stated)) => (meaning, stated.trim_end_matches('.').trim_end_matches(']')),
        None => (help.as_str(), ""),
    };
    let default: Vec<_> = argument.get_default_values().iter().collect();
    let default: Vec<_> = default.iter().map(|it| it.to_string_lossy()).collect();
    let takes_value = argument.get_action().takes_values();
    let default = match default.is_empty() || !takes_value || default == [""] {
        true if argument.is_required_set() => "required".to_owned(),
        true => stated.to_owned(),
        false => format!("`{}`", default.join(",")),
    };
    let environment = argument
        .get_env()
        .map(|it| format!("`{}`", it.to_string_lossy()));
    let values = argument.get_possible_values();
    let values = values.iter().map(|it| match it.get_help() {
        Some(help) => format!("`{}` ({help})", it.get_name()),
        None => format!("`{}`", it.get_name()),
    });
    let values: Vec<_> = values.collect();
    let values = match values.is_empty() || !takes_value {
        true => String::new(),
        false => format!(" One of {}.", values.join(", ")),
    };
    let shown = argument.to_string().replace('|', "\\|");
    let dot = if meaning.ends_with(['.', '!']) {
        ""
    } else {
        "."
    };
    let meaning = meaning.replace('|', "\\|");
    format!(
        "| `{shown}` | {default} | {} | {meaning}{dot}{values} |\n",
        environment.unwrap_or_default()
    )
}
