//! Order of the steps, and the rows of each step.
//!
//! The rows of the request are the root domain. A step that explodes lists or keeps only some rows
//! creates a child domain of its input domain. Each row of the child belongs to one row of the
//! parent. A step may use columns of its own domain and of all its ancestors, whose rows are
//! repeated.

use super::{Branch, ColumnRef, PARAMETERS, PipelineSpec, PipelineStep, REQUEST, StepKind};
use crate::error::PredictError;

/// Index of the root domain, the rows of the request.
pub const ROOT: usize = 0;

/// Relation of a domain to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainKind {
    /// The rows of the request.
    Root,
    /// A subset of the parent's rows.
    Subset,
    /// Any number of rows for each row of the parent.
    Exploded,
}

/// A set of rows that columns share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Index of the parent domain; the root's own index for the root.
    pub parent: usize,
    /// Relation to the parent.
    pub kind: DomainKind,
}

/// Static analysis of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Indices of steps in topological order.
    pub order: Vec<usize>,
    /// All domains; the root is the first.
    pub domains: Vec<Domain>,
    /// Input domain of each step, by index.
    pub over: Vec<usize>,
    /// Output domain of each step, by index.
    pub gives: Vec<usize>,
    /// Index of the answering step.
    pub output: usize,
}

impl Shape {
    /// Whether `upper` is `lower` or one of its ancestors.
    #[must_use]
    pub fn is_above(&self, upper: usize, lower: usize) -> bool {
        let mut at = lower;
        while at != upper {
            if at == ROOT {
                return false;
            }
            at = self.domains[at].parent;
        }
        true
    }

    fn below(&mut self, parent: usize, kind: DomainKind) -> usize {
        self.domains.push(Domain { parent, kind });
        self.domains.len() - 1
    }
}

fn wrong(step: &PipelineStep, what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("step '{}' {what}", step.name))
}

impl PipelineSpec {
    /// The order and the rows of all steps.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown step name, a cycle, an unused step, or rows of unrelated
    /// domains.
    pub fn shape(&self) -> Result<Shape, PredictError> {
        let output = self.step(&self.output).ok_or_else(|| {
            PredictError::invalid(format!(
                "the answering step '{}' does not exist",
                self.output
            ))
        })?;
        let order = self.order(output)?;
        if let Some(unused) = (0..self.steps.len()).find(|place| !order.contains(place)) {
            let unused = &self.steps[unused];
            return Err(wrong(
                unused,
                "is not used by another step, and does not answer",
            ));
        }
        let mut shape = Shape {
            domains: vec![Domain {
                parent: ROOT,
                kind: DomainKind::Root,
            }],
            over: vec![ROOT; self.steps.len()],
            gives: vec![ROOT; self.steps.len()],
            order: order.clone(),
            output,
        };
        for place in order {
            let step = &self.steps[place];
            shape.over[place] = self.over(step, &shape)?;
            shape.gives[place] = self.gives(step, shape.over[place], &mut shape)?;
        }
        if shape.gives[output] != ROOT {
            return Err(wrong(
                &self.steps[output],
                "answers, and does not have one row for each row of the request; gather them in a \
                 template, or merge the branches",
            ));
        }
        Ok(shape)
    }

    /// All steps that `output` needs, with `output` last.
    fn order(&self, output: usize) -> Result<Vec<usize>, PredictError> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.steps.len()];
        let mut order = Vec::new();
        // The stack has each step twice: when it is entered and when it is left.
        let mut stack = vec![(output, false)];
        while let Some((place, left)) = stack.pop() {
            let step = &self.steps[place];
            if left {
                marks[place] = Mark::Done;
                order.push(place);
                continue;
            }
            match marks[place] {
                Mark::Done => continue,
                Mark::Open => return Err(wrong(step, "depends on itself")),
                Mark::New => marks[place] = Mark::Open,
            }
            stack.push((place, true));
            for name in step.needs() {
                let needed = self.step(name);
                let needed = needed.ok_or_else(|| {
                    wrong(step, format_args!("names '{name}', which is not a step"))
                })?;
                match marks[needed] {
                    Mark::Open => return Err(wrong(step, "depends on itself")),
                    Mark::New => stack.push((needed, false)),
                    Mark::Done => {}
                }
            }
        }
        Ok(order)
    }

    /// Input domain of a step: the domain of `over`, by default the lowest domain of its columns.
    fn over(&self, step: &PipelineStep, shape: &Shape) -> Result<usize, PredictError> {
        let domain_of = |name: &str| self.step(name).map_or(ROOT, |place| shape.gives[place]);
        let of_column = |column: &ColumnRef| match column.step.as_str() {
            REQUEST | PARAMETERS => ROOT,
            name => domain_of(name),
        };
        let columns: Vec<_> = step.columns().into_iter().map(of_column).collect();
        let over = match &step.over {
            Some(name) => domain_of(name),
            None => columns.iter().copied().fold(ROOT, |lowest, domain| {
                match shape.is_above(lowest, domain) {
                    true => domain,
                    false => lowest,
                }
            }),
        };
        match columns.iter().all(|column| shape.is_above(*column, over)) {
            true => Ok(over),
            false => Err(wrong(
                step,
                "takes columns whose rows do not belong together; merge the branches first, or \
                 name the rows in 'over'",
            )),
        }
    }

    fn gives(
        &self,
        step: &PipelineStep,
        over: usize,
        shape: &mut Shape,
    ) -> Result<usize, PredictError> {
        match &step.kind {
            StepKind::Template { gather: true, .. } => Ok(ROOT),
            StepKind::Explode { .. } => Ok(shape.below(over, DomainKind::Exploded)),
            StepKind::TopK { .. } | StepKind::Branch(Branch::When { .. }) => {
                Ok(shape.below(over, DomainKind::Subset))
            }
            StepKind::Branch(Branch::Otherwise(steps)) => {
                let parent = self.common(step, steps, shape)?;
                Ok(shape.below(parent, DomainKind::Subset))
            }
            StepKind::Merge(steps) => self.common(step, steps, shape),
            StepKind::Model { .. }
            | StepKind::Template { .. }
            | StepKind::Select(_)
            | StepKind::Similarity { .. }
            | StepKind::Compute { .. } => Ok(over),
        }
    }

    /// Common domain of these steps' rows.
    fn common(
        &self,
        step: &PipelineStep,
        of: &[String],
        shape: &Shape,
    ) -> Result<usize, PredictError> {
        let mut parents = of.iter().filter_map(|name| {
            let domain = shape.domains[shape.gives[self.step(name)?]];
            Some((domain.kind == DomainKind::Subset).then_some(domain.parent))
        });
        let first = parents.next().flatten();
        let same = first.is_some() && parents.all(|parent| parent == first);
        first
            .filter(|_| same)
            .ok_or_else(|| wrong(step, "merges steps that are not branches of the same rows"))
    }
}
