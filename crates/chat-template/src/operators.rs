//! Operators, filters and functions of templates, which charge the budget.

use std::sync::OnceLock;

use minijinja::machinery::Instruction;
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{
    Environment, Error, ErrorKind, Expression, State, Value, context, filters, functions,
};

use super::budget::{
    charge, charge_held, charge_length, charge_parts, charge_written, holds_namespace,
};

/// Names that templates cannot contain.
pub(super) const CHECK: &str = "\u{1}check";
pub(super) const HELD: &str = "\u{1}held";
const OPERATORS: [(&str, &str); 10] = [
    ("\u{1}~", "a ~ b"),
    ("\u{1}+", "a + b"),
    ("\u{1}*", "a * b"),
    ("\u{1}==", "a == b"),
    ("\u{1}!=", "a != b"),
    ("\u{1}<", "a < b"),
    ("\u{1}<=", "a <= b"),
    ("\u{1}>", "a > b"),
    ("\u{1}>=", "a >= b"),
    ("\u{1}in", "a in b"),
];
/// Maximum indentation, and maximum width in a format.
const MAX_WIDTH: i64 = 1_000;

/// The function that replaces a binary operator.
pub(crate) fn operator(instruction: &Instruction<'_>) -> Option<&'static str> {
    let at = match instruction {
        Instruction::StringConcat => 0,
        Instruction::Add => 1,
        Instruction::Mul => 2,
        Instruction::Eq => 3,
        Instruction::Ne => 4,
        Instruction::Lt => 5,
        Instruction::Lte => 6,
        Instruction::Gt => 7,
        Instruction::Gte => 8,
        Instruction::In => 9,
        _ => return None,
    };
    Some(OPERATORS[at].0)
}

/// Registers the operators, filters and functions.
pub(super) fn equip(environment: &mut Environment<'static>) {
    for (at, (name, _)) in OPERATORS.iter().enumerate() {
        environment.add_function(*name, move |a: Value, b: Value| binary(at, &a, &b));
    }
    environment.add_function(CHECK, |value: Value| charge_held(&value).map(|()| value));
    environment.add_function(HELD, |value: Value| {
        charge_held(&value)?;
        match holds_namespace(&value) {
            true => Err(Error::new(
                ErrorKind::InvalidOperation,
                "a namespace cannot hold another",
            )),
            false => Ok(value),
        }
    });
    environment.add_function("\u{1}namespace", functions::namespace);
    environment.add_function(
        "namespace",
        |state: &mut State, given: Rest<ValueOrKwargs>| {
            let given = values(given);
            if given.iter().any(holds_namespace) {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "a namespace cannot hold another",
                ));
            }
            call(state, "\u{1}namespace", &given)
        },
    );
    environment.add_function("\u{1}dict", functions::dict);
    environment.add_function("dict", |state: &mut State, given: Rest<ValueOrKwargs>| {
        let made = call(state, "\u{1}dict", &values(given))?;
        charge_held(&made).map(|()| made)
    });
    environment.remove_global("debug");
    environment.set_formatter(|out, state, value| {
        charge_written(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    equip_filters(environment);
}

fn values(given: Rest<ValueOrKwargs>) -> Vec<Value> {
    given.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

fn call(state: &mut State, name: &str, given: &[Value]) -> Result<Value, Error> {
    let function = state.lookup(name);
    let function = function.ok_or_else(|| Error::from(ErrorKind::UnknownFunction))?;
    function.call(state, given)
}

/// The charge of a filter before it runs. Its result is charged afterwards.
#[derive(Clone, Copy)]
enum Cost {
    /// Nothing: the filter reads one value.
    One,
    /// Each part of the input.
    Parts,
    /// The input as text.
    Text,
    Replace,
    Join,
    Indent,
    Format,
    /// The second argument determines the size of the result.
    Count,
}

macro_rules! filters {
    ($environment:ident, $($name:literal $function:ident $cost:ident),* $(,)?) => {$(
        $environment.add_filter(concat!("\u{1}", $name), filters::$function);
        $environment.add_filter($name, |state: &mut State, given: Rest<ValueOrKwargs>| {
            filtered(state, concat!("\u{1}", $name), Cost::$cost, &values(given))
        });
    )*};
}

fn equip_filters(environment: &mut Environment<'static>) {
    filters!(
        environment,
        "safe" safe Text, "escape" escape Text, "e" escape Text, "lower" lower Text,
        "upper" upper Text, "title" title Text, "capitalize" capitalize Text,
        "replace" replace Replace, "length" length One, "count" length One,
        "dictsort" dictsort Parts, "items" items Parts, "reverse" reverse Parts,
        "trim" trim Text, "join" join Join, "split" split Text, "lines" lines Text,
        "default" default One, "d" default One, "round" round One, "abs" abs One, "int" int One,
        "float" float One, "attr" attr One, "first" first One, "last" last Parts,
        "min" min Parts, "max" max Parts, "sort" sort Parts, "list" list Parts,
        "string" string Text, "bool" bool One, "batch" batch Count, "slice" slice Count,
        "sum" sum Text, "indent" indent Indent, "select" select Parts, "reject" reject Parts,
        "selectattr" selectattr Parts, "rejectattr" rejectattr Parts, "map" map Parts,
        "groupby" groupby Parts, "unique" unique Parts, "chain" chain Parts, "zip" zip Parts,
        "pprint" pprint Text, "format" format Format, "tojson" tojson Text,
    );
}

fn filtered(state: &mut State, name: &str, cost: Cost, given: &[Value]) -> Result<Value, Error> {
    let value = given.first().cloned().unwrap_or_default();
    let text = |at: usize| given.get(at).and_then(Value::as_str).unwrap_or_default();
    match cost {
        Cost::One => return state.apply_filter(name, given),
        Cost::Parts => charge_parts(&value)?,
        Cost::Text => charge_written(&value)?,
        Cost::Replace => {
            charge_written(&value)?;
            let (from, to) = (text(1), text(2));
            let times = value
                .as_str()
                .map_or(0, |value| value.matches(from).count());
            charge_length(times.saturating_mul(to.len()))?;
        }
        Cost::Join => {
            charge_written(&value)?;
            let parts = value.len().unwrap_or(0);
            charge_length(parts.saturating_mul(text(1).len()))?;
        }
        Cost::Indent => {
            charge_written(&value)?;
            let lines = text(0).lines().count();
            charge_length(lines.saturating_mul(widest(&given[1.min(given.len())..])?))?;
        }
        Cost::Format => {
            for value in given {
                charge_written(value)?;
            }
            narrow(text(0))?;
        }
        Cost::Count => {
            charge_parts(&value)?;
            charge_length(widest(&given[1.min(given.len())..])?.saturating_mul(32))?;
        }
    }
    for number in given.iter().skip(1) {
        widest(std::slice::from_ref(number))?;
    }
    let made = state.apply_filter(name, given)?;
    charge_held(&made).map(|()| made)
}

/// The largest number among positional and named arguments.
fn widest(given: &[Value]) -> Result<usize, Error> {
    let mut widest = 0;
    for value in given {
        if value.is_kwargs() {
            let named = value.try_iter()?.map(|name| value.get_item(&name));
            let named: Vec<Value> = named.collect::<Result<_, _>>()?;
            widest = widest.max(self::widest(&named)?);
        } else if let Some(number) = value.as_i64() {
            if MAX_WIDTH < number {
                return Err(too_wide());
            }
            widest = widest.max(usize::try_from(number).unwrap_or(0));
        }
    }
    Ok(widest)
}

fn too_wide() -> Error {
    let told = format!("a filter argument exceeds {MAX_WIDTH}");
    Error::new(ErrorKind::InvalidOperation, told)
}

/// Rejects formats with wide columns.
fn narrow(format: &str) -> Result<(), Error> {
    let mut numbers = format.split(|c: char| !c.is_ascii_digit());
    match numbers.any(|number| 3 < number.len()) || format.contains('*') {
        true => Err(too_wide()),
        false => Ok(()),
    }
}

/// Charges for a binary operator and evaluates it.
fn binary(at: usize, a: &Value, b: &Value) -> Result<Value, Error> {
    let texts = a.as_str().zip(b.as_str());
    match (at, texts) {
        (0, _) => {
            charge_written(a)?;
            charge_written(b)?;
        }
        (1, Some((a, b))) => charge_length(a.len() + b.len())?,
        (3, Some((a, b))) => {
            charge_length(a.len().min(b.len()) / 8)?;
            return Ok(Value::from(a == b));
        }
        (4, Some((a, b))) => {
            charge_length(a.len().min(b.len()) / 8)?;
            return Ok(Value::from(a != b));
        }
        (2, _) => charge_repeated(a, b)?,
        (9, _) => {
            charge_written(a)?;
            charge_parts(b)?;
        }
        (5..=8, Some((a, b))) => charge_length(a.len().min(b.len()) / 8)?,
        _ => {
            charge_held(a)?;
            charge_held(b)?;
        }
    }
    let expression = expressions().get(at).and_then(Option::as_ref);
    let expression = expression.ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?;
    expression.eval(context! { a, b })
}

fn charge_repeated(a: &Value, b: &Value) -> Result<(), Error> {
    let (value, times) = match (a.kind(), b.kind()) {
        (ValueKind::Number, ValueKind::Number) => return charge(0),
        (ValueKind::Number, _) => (b, a),
        _ => (a, b),
    };
    let length = match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(32),
    };
    charge_length(length.saturating_mul(times.as_usize().unwrap_or(0)))
}

/// The engine's operators as expressions.
fn expressions() -> &'static [Option<Expression<'static, 'static>>] {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    static EXPRESSIONS: OnceLock<Vec<Option<Expression<'static, 'static>>>> = OnceLock::new();
    EXPRESSIONS.get_or_init(|| {
        let environment = ENVIRONMENT.get_or_init(Environment::new);
        let compiled = OPERATORS.iter();
        let compiled = compiled.map(|(_, text)| environment.compile_expression(text).ok());
        compiled.collect()
    })
}
