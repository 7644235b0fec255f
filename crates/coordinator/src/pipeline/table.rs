//! Columns with the domain of their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array};
use arrow_select::take::take;
use volley_types::PredictError;
use volley_types::registry::ROOT;

/// The rows of one domain in one wave, each of which belongs to a row above.
#[derive(Debug)]
pub(super) struct DomainRows {
    pub(super) domain: usize,
    pub(super) len: usize,
    above: Option<(Arc<Self>, Vec<u32>)>,
}

impl DomainRows {
    /// The request's.
    pub(super) fn root(len: usize) -> Arc<Self> {
        Arc::new(Self {
            domain: ROOT,
            len,
            above: None,
        })
    }

    /// Creates rows of `domain` below the rows `places` of `above`.
    pub(super) fn below(domain: usize, above: &Arc<Self>, places: Vec<u32>) -> Arc<Self> {
        Arc::new(Self {
            domain,
            len: places.len(),
            above: Some((above.clone(), places)),
        })
    }

    /// The parent rows, and the parent index of each row.
    pub(super) fn above(&self) -> Option<(&Arc<Self>, &[u32])> {
        let (above, places) = self.above.as_ref()?;
        Some((above, places))
    }

    /// Index of each row's ancestor in `domain`; `None` if `domain` is this one.
    fn places_in(&self, domain: usize) -> Option<Vec<u32>> {
        if self.domain == domain {
            return None;
        }
        let (above, places) = self.above()?;
        Some(match above.places_in(domain) {
            None => places.to_vec(),
            Some(upper) => places.iter().map(|place| upper[*place as usize]).collect(),
        })
    }

    /// Index of each row's request row.
    pub(super) fn roots(&self) -> Vec<u32> {
        let all = || (0..).take(self.len).collect();
        self.places_in(ROOT).unwrap_or_else(all)
    }
}

/// Output of a step.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) rows: Arc<DomainRows>,
    pub(super) columns: BTreeMap<String, ArrayRef>,
}

impl Table {
    pub(super) fn of(
        rows: Arc<DomainRows>,
        columns: impl Into<BTreeMap<String, ArrayRef>>,
    ) -> Self {
        Self {
            rows,
            columns: columns.into(),
        }
    }

    /// Repeats a column for `rows` of a domain below.
    pub(super) fn spread(&self, name: &str, rows: &DomainRows) -> Result<ArrayRef, PredictError> {
        let column = self.columns.get(name);
        let column = column.ok_or_else(|| lost(name))?;
        match rows.places_in(self.rows.domain) {
            None => Ok(column.clone()),
            Some(places) => pick(column, places),
        }
    }
}

/// Selects rows of a column.
pub(super) fn pick(column: &ArrayRef, places: Vec<u32>) -> Result<ArrayRef, PredictError> {
    take(column, &UInt32Array::from(places), None)
        .map_err(|error| PredictError::internal("rows could not be chosen", error))
}

/// A step's output without a column or a table that the pipeline's types promise.
pub(super) fn lost(what: impl std::fmt::Display) -> PredictError {
    let cause = format!("'{what}' is missing");
    PredictError::internal("a step of the pipeline returned an incomplete table", cause)
}
