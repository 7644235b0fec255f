//! What one rendering may write, hold and go on for.
//!
//! A template is a program that comes with a model, and a few lines of it can double a text sixty
//! times. Every operation that makes something new is charged for what it makes before it is made,
//! and nothing is ever given back: so the sum bounds memory, and with it work.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// What a rendering may make, in bytes: so much, and so many times what it is given.
const BYTES: u64 = 32 << 20;
const TIMES: u64 = 32;
/// Never more than this.
const MOST_BYTES: u64 = 256 << 20;
/// What a value counts for, beside its text.
const NODE: u64 = 32;
/// How deep lists and maps may stand in each other.
const MAX_DEPTH: usize = 140;

/// Why a rendering was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It would have made too much.
    Memory,
    /// What it made would be nested too deeply.
    Depth,
    /// Nobody waits for it any more.
    Ended,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "its output exceeds the limit for these messages",
            Self::Depth => "it nests values too deeply",
            Self::Ended => "the request has ended",
        })
    }
}

impl std::error::Error for Stop {}

/// Whether a request has ended, whose prompts are made on another thread.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// What ends the request when it is dropped.
    pub fn on_drop(&self) -> EndOnDrop {
        EndOnDrop(self.clone())
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ends a request.
#[derive(Debug)]
pub struct EndOnDrop(CancelFlag);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

struct Budget {
    left: u64,
    ended: CancelFlag,
}

thread_local! {
    /// Of the rendering that this thread is at.
    static BUDGET: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// Takes the budget away again.
struct Scope;

impl Drop for Scope {
    fn drop(&mut self) {
        BUDGET.with(|budget| budget.borrow_mut().take());
    }
}

/// Renders within a budget for something given of so many bytes, until the request has ended.
pub(crate) fn within<T>(given: usize, ended: &CancelFlag, render: impl FnOnce() -> T) -> T {
    let given = u64::try_from(given).unwrap_or(u64::MAX);
    let left = BYTES.saturating_add(given.saturating_mul(TIMES));
    BUDGET.with(|budget| {
        *budget.borrow_mut() = Some(Budget {
            left: left.min(MOST_BYTES),
            ended: ended.clone(),
        });
    });
    let _scope = Scope;
    render()
}

fn stop(stop: Stop) -> Error {
    Error::new(ErrorKind::InvalidOperation, "stopped").with_source(stop)
}

/// Takes so many bytes.
///
/// # Errors
/// When there are not so many left, or the request has ended.
pub(super) fn charge(bytes: u64) -> Result<(), Error> {
    BUDGET.with(|budget| {
        let mut budget = budget.borrow_mut();
        let Some(budget) = budget.as_mut() else {
            return Err(stop(Stop::Ended));
        };
        if budget.ended.is() {
            return Err(stop(Stop::Ended));
        }
        let left = budget.left.checked_sub(bytes);
        budget.left = left.ok_or_else(|| stop(Stop::Memory))?;
        Ok(())
    })
}

/// As [`charge`], for bytes of memory.
///
/// # Errors
/// As there.
pub(super) fn charge_length(bytes: usize) -> Result<(), Error> {
    charge(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Takes what it costs to hold `value`: texts inside of it are shared.
///
/// # Errors
/// As [`charge`], and where it is nested too deeply.
pub(super) fn charge_held(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => {
            charge_length(value.as_bytes().map_or(0, <[u8]>::len))
        }
        _ => walk(value, 0, &mut |_| charge(NODE)),
    }
}

/// Takes what it costs to write `value` as text.
///
/// # Errors
/// As [`charge_held`].
pub(super) fn charge_written(value: &Value) -> Result<(), Error> {
    walk(value, 0, &mut |value| {
        let text = value
            .as_bytes()
            .map_or(NODE, |text| u64::try_from(text.len()).unwrap_or(u64::MAX));
        charge(text)
    })
}

/// Takes what it costs to look at each part of `value` once, not at what these are made of.
///
/// # Errors
/// As [`charge`].
pub(super) fn charge_parts(value: &Value) -> Result<(), Error> {
    match value.as_bytes() {
        Some(text) => charge_length(text.len()),
        None => charge_length(value.len().unwrap_or(0).saturating_mul(NODE as usize)),
    }
}

fn walk(
    value: &Value,
    depth: usize,
    visit: &mut dyn FnMut(&Value) -> Result<(), Error>,
) -> Result<(), Error> {
    visit(value)?;
    if MAX_DEPTH < depth {
        return Err(stop(Stop::Depth));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for part in value.try_iter()? {
                walk(&part, depth + 1, visit)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                let part = value.get_item(&key)?;
                walk(&key, depth + 1, visit)?;
                walk(&part, depth + 1, visit)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a namespace is `value`, or in it: one that held itself would have no end.
pub(super) fn holds_namespace(value: &Value) -> bool {
    let is = value
        .as_object()
        .is_some_and(|object| object.type_name().contains("Namespace"));
    if is {
        return true;
    }
    match value.kind() {
        ValueKind::Seq => value
            .try_iter()
            .is_ok_and(|mut parts| parts.any(|part| holds_namespace(&part))),
        ValueKind::Map => value.try_iter().is_ok_and(|mut keys| {
            keys.any(|key| {
                value
                    .get_item(&key)
                    .is_ok_and(|part| holds_namespace(&part))
            })
        }),
        _ => false,
    }
}
