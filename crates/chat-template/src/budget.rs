//! Budget of one rendering: memory, nesting and cancellation.
//!
//! A template is an untrusted program of a model, and a few of its lines can double a text sixty
//! times. Each operation is charged for its result before it creates the result, and charges are
//! never returned. The sum therefore bounds both memory and work.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Budget of a rendering, in bytes: a fixed part, and a multiple of the input.
const BYTES: u64 = 32 << 20;
const TIMES: u64 = 32;
/// Maximum budget, in bytes.
const MOST_BYTES: u64 = 256 << 20;
/// Charge for a value besides its text, in bytes.
const NODE: u64 = 32;
/// Maximum nesting of lists and maps.
const MAX_DEPTH: usize = 140;

/// The reason why a rendering was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The budget is exhausted.
    Memory,
    /// A value is nested too deeply.
    Depth,
    /// The request was cancelled.
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

/// Cancellation of a request whose prompts are rendered on another thread. Clones share their
/// state.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Returns a guard that cancels the request when it is dropped.
    pub fn on_drop(&self) -> EndOnDrop {
        EndOnDrop(self.clone())
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Guard that cancels a request when it is dropped.
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
    /// The budget of the rendering on this thread.
    static BUDGET: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// Removes the budget when dropped.
struct Scope;

impl Drop for Scope {
    fn drop(&mut self) {
        BUDGET.with(|budget| budget.borrow_mut().take());
    }
}

/// Calls `render` with a budget for an input of `given` bytes, until the request is cancelled.
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

/// Charges `bytes` to the budget.
///
/// # Errors
/// If the budget is exhausted, or the request was cancelled.
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

/// Like [`charge`], for a length.
///
/// # Errors
/// Those of [`charge`].
pub(super) fn charge_length(bytes: usize) -> Result<(), Error> {
    charge(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Charges for storing `value`. Texts inside of it are shared.
///
/// # Errors
/// Those of [`charge`], and for a value that is nested too deeply.
pub(super) fn charge_held(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => {
            charge_length(value.as_bytes().map_or(0, <[u8]>::len))
        }
        _ => walk(value, 0, &mut |_| charge(NODE)),
    }
}

/// Charges for writing `value` as text.
///
/// # Errors
/// Those of [`charge_held`].
pub(super) fn charge_written(value: &Value) -> Result<(), Error> {
    walk(value, 0, &mut |value| {
        let text = value
            .as_bytes()
            .map_or(NODE, |text| u64::try_from(text.len()).unwrap_or(u64::MAX));
        charge(text)
    })
}

/// Charges for visiting each direct part of `value` once.
///
/// # Errors
/// Those of [`charge`].
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

/// Whether `value` is or contains a namespace. A namespace that contained itself would be endless.
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
