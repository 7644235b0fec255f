//! Authentication, authorization and audit.
//!
//! Reading order: [`key`] (creation and check of keys), [`credential`] (credentials in requests),
//! [`Authenticator`] (from a request to a [`Principal`]), [`guard`] (a cluster restricted to a
//! principal's rights), `quota` (limits of keys), [`token`] (callers of an identity provider),
//! [`audit`], [`secrets`]; [`tls`] and [`nodes`] (connections), [`live`] (renewal).

pub mod audit;
pub mod certificate;
pub mod credential;
mod gate;
pub mod guard;
pub mod key;
pub mod live;
pub mod nodes;
mod principal;
mod quota;
pub mod secrets;
mod throttle;
pub mod tls;
pub mod token;

pub use crate::gate::{Authenticator, InService, ReadRegistry};
pub use crate::principal::Principal;
pub use crate::quota::shared as usage;
pub use crate::throttle::{ThrottleConfig, network};

/// The time now, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
