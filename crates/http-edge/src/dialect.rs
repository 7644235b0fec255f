//! The seam between a node's gateway and the dialects that it speaks.

use crate::error::ErrorFormat;
use crate::operation::Operation;
use crate::routes::Routes;

/// A dialect: its routes, what they do, and how its clients read errors. It has what it needs of
/// the node, and depends on no other dialect.
pub trait Dialect: Send + Sync {
    /// The form of its errors; `None` where it is that of Volley's own routes.
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        None
    }

    /// What its routes do, take and give: an entry for each route and method.
    fn operations(&self) -> &'static [Operation];

    /// Its routes, by their whole paths.
    fn routes(&self) -> Routes<()>;
}
