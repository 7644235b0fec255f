//! Allowed positions of model calls in a query.

use datafusion::common::config::ConfigOptions;
use datafusion::common::plan_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

/// Rejects plans with an asynchronous function where DataFusion does not support one. Without this
/// rule, such plans fail during execution with a misleading error.
#[derive(Debug)]
pub(crate) struct AsyncUdfPlacementRule;

impl AnalyzerRule for AsyncUdfPlacementRule {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.apply_with_subqueries(|node| {
            if waits(node) {
                return Ok(TreeNodeRecursion::Continue);
            }
            node.apply_expressions(|expression| {
                if calls_a_model(expression)? {
                    return plan_err!(
                        "a model call is allowed in SELECT, in WHERE and in an aggregate; to sort \
                         or join by one, name it in a SELECT and use that name"
                    );
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "volley_places_of_calls"
    }
}

/// Whether the expressions of this node may be asynchronous.
fn waits(node: &LogicalPlan) -> bool {
    matches!(
        node,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::Aggregate(_)
    )
}

fn calls_a_model(expression: &Expr) -> Result<bool> {
    expression.exists(|part| {
        Ok(matches!(part, Expr::ScalarFunction(call) if call.func.as_async().is_some()))
    })
}
