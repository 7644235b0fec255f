//! The rows that a step reads, and those that a branch takes.

use std::sync::Arc;

use minijinja::Value;
use volley_types::PredictError;
use volley_types::registry::{Branch, StepKind};

use super::{PipelineRun, StepOutputs};
use crate::pipeline::table::DomainRows;
use crate::pipeline::{expression, local_steps, of_step};

impl PipelineRun {
    /// The input rows of a step.
    pub(super) fn over(&self, place: usize, given: &StepOutputs) -> Arc<DomainRows> {
        let step = self.step_of(place);
        let rows_of = |name: &str| {
            let table = given.get(&self.run.spec.step(name)?)?;
            Some(table.rows.clone())
        };
        if let Some(name) = &step.over {
            return rows_of(name).unwrap_or_else(|| self.root.rows.clone());
        }
        if let StepKind::Merge(steps) | StepKind::Branch(Branch::Otherwise(steps)) = &step.kind {
            let first = steps.first().and_then(|name| rows_of(name));
            let above = first.as_ref().and_then(|rows| rows.above());
            return above.map_or_else(|| self.root.rows.clone(), |(above, _)| above.clone());
        }
        let columns = step.columns().into_iter();
        let mut rows = columns.filter_map(|column| rows_of(&column.step));
        rows.find(|rows| rows.domain == self.run.shape.over[place])
            .unwrap_or_else(|| self.root.rows.clone())
    }

    /// The rows that each streamed step answers. For merged branches, the first branch with a row
    /// answers it.
    pub(super) fn kept(&self, over: &[Arc<DomainRows>]) -> Result<Vec<Vec<u32>>, PredictError> {
        let output = self.step_of(self.run.shape.output);
        if !matches!(output.kind, StepKind::Merge(_)) {
            let all = |rows: &Arc<DomainRows>| (0..).take(rows.len).collect();
            return Ok(over.iter().map(all).collect());
        }
        let branches: Vec<_> = over.iter().map(AsRef::as_ref).collect();
        let owners = local_steps::owners(&self.root.rows, &branches);
        let owners = owners.map_err(|error| of_step(output, error))?;
        let mut kept = vec![Vec::new(); over.len()];
        for (branch, row) in owners {
            kept[branch].extend(u32::try_from(row).ok());
        }
        Ok(kept)
    }

    /// The rows that a branch takes.
    pub(super) fn taken(
        &self,
        branch: &Branch,
        rows: &DomainRows,
        given: &StepOutputs,
    ) -> Result<Vec<u32>, PredictError> {
        match branch {
            Branch::When { expression, inputs } => {
                let known = self.known(inputs, rows, given)?;
                let holds = |value: Value| Ok(value.is_true());
                let holds = expression::evaluate(expression, &known, rows.len, holds)?;
                let places = (0..).zip(holds).filter(|(_, holds)| *holds);
                Ok(places.map(|(place, _)| place).collect())
            }
            Branch::Otherwise(steps) => {
                let branches = self.tables(steps, given)?;
                Ok(local_steps::rest(rows, &branches))
            }
        }
    }
}
