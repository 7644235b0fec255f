//! The memory limit shared by all request bodies of a server. A body that does not fit is rejected
//! immediately: bodies never wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{ErrorCode, PredictError};

/// `retry_after` of the error when the memory is in use.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The memory for all request bodies of a server. Clones share it.
#[derive(Clone, Debug)]
pub struct Intake(Arc<MemoryPool>);

#[derive(Debug)]
struct MemoryPool {
    limit: usize,
    used: AtomicUsize,
}

impl Default for Intake {
    /// A pool without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Intake {
    /// Creates a pool of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(MemoryPool {
            limit,
            used: AtomicUsize::new(0),
        }))
    }

    /// An empty share for one request.
    #[must_use]
    pub fn share(&self) -> Share {
        Share {
            room: self.0.clone(),
            bytes: 0,
        }
    }
}

/// The memory of one request; released when dropped.
#[derive(Debug)]
pub struct Share {
    room: Arc<MemoryPool>,
    bytes: usize,
}

impl Share {
    /// Takes `bytes` more from the pool.
    ///
    /// # Errors
    /// `TooLarge` when the share would exceed the limit of the pool. `Overloaded` when other
    /// requests use the memory now.
    pub fn grow(&mut self, bytes: usize) -> Result<(), PredictError> {
        let limit = self.room.limit;
        if limit < self.bytes.saturating_add(bytes) {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "the request's body needs more memory than the limit of {limit} bytes for all \
                     bodies together; send it in parts, or send its tensors in binary"
                ),
            ));
        }
        let room = |used: usize| {
            let used = used.checked_add(bytes)?;
            (used <= limit).then_some(used)
        };
        let took = self
            .room
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        match took {
            Ok(_) => {
                self.bytes += bytes;
                Ok(())
            }
            Err(_) => Err(PredictError::new(
                ErrorCode::Overloaded,
                "request bodies use all memory of 'requests.max_body_memory'; send the request \
                 again",
            )
            .with_retry_after(RETRY_AFTER)),
        }
    }

    /// Moves `bytes` into a new share. If this share has less, the new share takes the rest from
    /// the pool.
    ///
    /// # Errors
    /// As for [`Share::grow`]; the part that was moved is then released.
    pub fn split(&mut self, bytes: usize) -> Result<Self, PredictError> {
        let own = self.bytes.min(bytes);
        self.bytes -= own;
        let mut split = Self {
            room: self.room.clone(),
            bytes: own,
        };
        split.grow(bytes - own)?;
        Ok(split)
    }

    /// The size of the share in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let back = self.bytes.saturating_sub(bytes);
        self.bytes -= back;
        self.room.used.fetch_sub(back, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back_and_what_is_not_there_is_refused() {
        let intake = Intake::new(100);
        let (mut one, mut other) = (intake.share(), intake.share());
        one.grow(60).unwrap();
        let full = other.grow(50).unwrap_err();
        assert_eq!(full.code, ErrorCode::Overloaded);
        assert!(full.retry_after.is_some());
        assert_eq!(other.grow(101).unwrap_err().code, ErrorCode::TooLarge);
        one.shrink_to(50);
        other.grow(50).unwrap();
        assert!(intake.share().grow(1).is_err());
        drop(one);
        intake.share().grow(50).unwrap();
    }

    #[test]
    fn a_part_of_a_share_is_given_back_by_itself() {
        let intake = Intake::new(100);
        let mut whole = intake.share();
        whole.grow(40).unwrap();
        let part = whole.split(30).unwrap();
        assert_eq!((whole.bytes(), part.bytes()), (10, 30));
        let more = whole.split(70).unwrap();
        assert_eq!((whole.bytes(), more.bytes()), (0, 70));
        assert!(whole.split(1).is_err());
        drop(part);
        assert_eq!(whole.split(30).unwrap().bytes(), 30);
        drop((whole, more));
        intake.share().grow(100).unwrap();
    }
}
