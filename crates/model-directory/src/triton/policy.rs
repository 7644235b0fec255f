//! `dynamic_batching`: the queue policies of requests (Triton's `ModelQueuePolicy`). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fields::{messages, number, plain, word};
use super::text::{Message, Value};

/// Maximum time that an idle model waits for more rows, regardless of its files.
pub const LONGEST_WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of priority levels.
const MAX_LEVELS: u64 = 1_024;

/// The fields of a `dynamic_batching` that are read.
const KNOWN: [&str; 7] = [
    "preferred_batch_size",
    "max_queue_delay_microseconds",
    "preserve_ordering",
    "priority_levels",
    "default_priority_level",
    "default_queue_policy",
    "priority_queue_policy",
];

/// The fields of a `dynamic_batching` that have no effect.
pub(super) fn without_effect(batching: &Message) -> impl Iterator<Item = String> + use<'_> {
    let fields = batching.0.iter().map(|(field, _)| field);
    let others = fields.filter(|field| !KNOWN.contains(&field.as_str()));
    others.map(|field| format!("dynamic_batching.{field}"))
}

/// The queue policy of one priority level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Whether a request is delayed after its timeout (`DELAY`) instead of rejected.
    pub delays: bool,
    /// Default timeout in the queue; `None` means no timeout.
    pub timeout: Option<Duration>,
    /// Whether a request may set its own timeout.
    pub may_override: bool,
    /// Maximum number of waiting requests; 0 means no limit.
    pub most: usize,
}

/// The queue policies of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicies {
    /// Number of priority levels, of which 1 is the most urgent; 0 if there are none.
    pub levels: u64,
    /// The level of requests without `priority`.
    pub level: u64,
    default: QueuePolicy,
    of_levels: BTreeMap<u64, QueuePolicy>,
}

impl QueuePolicies {
    /// Reads the policies of a `dynamic_batching`.
    pub(super) fn read(batching: &Message) -> Result<Self, String> {
        let levels = number(batching, "priority_levels")?.unwrap_or(0);
        let level = number(batching, "default_priority_level")?.unwrap_or(0);
        if MAX_LEVELS < levels {
            return Err(format!("'priority_levels' is over {MAX_LEVELS}"));
        }
        if levels != 0 && !(1..=levels).contains(&level) {
            return Err("'default_priority_level' is not one of the 'priority_levels'".to_owned());
        }
        let default = messages(batching, "default_queue_policy")?.pop();
        let mut of_levels = BTreeMap::new();
        for entry in messages(batching, "priority_queue_policy")? {
            let key = entry.last("key").map(|key| plain(key, "key")).transpose()?;
            let key: u64 = key.ok_or("an entry of 'priority_queue_policy' has no key")?;
            if !(1..=levels).contains(&key) {
                return Err(format!(
                    "'priority_queue_policy' has the level {key}, which is not one of the \
                     'priority_levels'"
                ));
            }
            let policy = messages(entry, "value")?.pop();
            of_levels.insert(
                key,
                policy.map_or(Ok(QueuePolicy::default()), QueuePolicy::read)?,
            );
        }
        Ok(Self {
            levels,
            level,
            default: default.map_or(Ok(QueuePolicy::default()), QueuePolicy::read)?,
            of_levels,
        })
    }

    /// Parses the text of a `dynamic_batching`.
    ///
    /// # Errors
    /// A description with the malformed field.
    pub fn of_text(text: &str) -> Result<Self, String> {
        Self::read(&super::text::parse(text)?)
    }

    /// The policy of a level.
    pub fn of(&self, level: u64) -> QueuePolicy {
        self.of_levels.get(&level).copied().unwrap_or(self.default)
    }

    /// Maximum number of waiting requests at all levels together; `None` if a level has no limit.
    pub fn most(&self) -> Option<usize> {
        let levels = self.levels.max(1);
        let mut most = (1..=levels).map(|level| self.of(level).most);
        most.try_fold(0_usize, |all, most| {
            (most != 0).then(|| all.saturating_add(most))
        })
    }

    /// A summary for people; empty for the default policies.
    pub fn told(&self) -> String {
        let mut told = Vec::new();
        if self.levels != 0 {
            told.push(format!("{} levels of priority", self.levels));
        }
        if let Some(most) = self.most() {
            told.push(format!("{most} requests wait at most"));
        }
        if let Some(timeout) = self.default.timeout {
            let then = if self.default.delays {
                "go last"
            } else {
                "are refused"
            };
            told.push(format!("those that wait {} µs {then}", timeout.as_micros()));
        }
        told.join(", ")
    }
}

impl QueuePolicy {
    fn read(message: &Message) -> Result<Self, String> {
        let delays = match word(message, "timeout_action")?.as_deref() {
            None | Some("REJECT") => false,
            Some("DELAY") => true,
            Some(other) => {
                return Err(format!(
                    "'timeout_action' is {other}; it must be REJECT or DELAY"
                ));
            }
        };
        let timeout: u64 = number(message, "default_timeout_microseconds")?.unwrap_or(0);
        let may_override = message.last("allow_timeout_override");
        Ok(Self {
            delays,
            timeout: (timeout != 0).then(|| Duration::from_micros(timeout)),
            may_override: may_override == Some(&Value::Word("true".to_owned())),
            most: number(message, "max_queue_size")?.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn read(text: &str) -> Result<QueuePolicies, String> {
        QueuePolicies::read(&text::parse(text).unwrap())
    }

    #[test]
    fn levels_have_their_own_policies_or_the_default() {
        let policies = read(
            "priority_levels: 2 default_priority_level: 2
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 500
                                    allow_timeout_override: true max_queue_size: 3 }
             priority_queue_policy [ { key: 1 value: { max_queue_size: 9 } } ]",
        )
        .unwrap();
        assert_eq!((policies.levels, policies.level), (2, 2));
        let second = QueuePolicy {
            delays: true,
            timeout: Some(Duration::from_micros(500)),
            may_override: true,
            most: 3,
        };
        assert_eq!(policies.of(2), second);
        assert_eq!(policies.of(1).most, 9);
        assert_eq!(policies.most(), Some(12));
        assert_eq!(read("").unwrap().most(), None);
        for (text, told) in [
            ("priority_levels: 2", "default_priority_level"),
            (
                "priority_levels: 2 default_priority_level: 3",
                "default_priority_level",
            ),
            ("default_queue_policy { timeout_action: WAIT }", "WAIT"),
            ("priority_queue_policy { key: 1 }", "level 1"),
        ] {
            assert!(read(text).unwrap_err().contains(told), "{text}");
        }
    }
}
