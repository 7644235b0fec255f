//! Interface between a node's gateway and its dialects.

use crate::error::ErrorFormat;
use crate::operation::Operation;
use crate::routes::Routes;

/// A dialect: its routes, their documentation, and its error format. It does not depend on other
/// dialects.
pub trait Dialect: Send + Sync {
    /// Its error format; `None` for the format of Volley's own routes.
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        None
    }

    /// Documentation of its routes: an entry for each route and method.
    fn operations(&self) -> &'static [Operation];

    /// Its routes, with complete paths.
    fn routes(&self) -> Routes<()>;
}
