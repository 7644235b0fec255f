//! Throttling of wrong credentials by client address.
//!
//! An address with too many failures is rejected with any key, so that the response reveals nothing
//! about the key. Credentials that were valid from that address before are still accepted, so that
//! one client behind a shared address cannot lock out the others.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_types::{ErrorCode, PredictError};

/// Number of shards of the table, each with its own lock.
const SHARDS: usize = 16;
/// Maximum number of addresses in a shard; the least recently used ones are removed.
const ADDRESSES: usize = 4_096;
/// Maximum number of valid credentials remembered for an address.
const KNOWN: usize = 16;
/// Number of addresses that are compared to choose the one to remove.
const LOOKED_AT: usize = 8;

/// Allowed failures of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// Failures allowed at once.
    pub burst: usize,
    /// Failures refilled per minute.
    pub per_minute: usize,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self {
            burst: 200,
            per_minute: 60,
        }
    }
}

/// The part of an address that identifies a client: all of an IPv4 address, and the first 64 bits
/// of an IPv6 address, because one client usually controls all addresses below them.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

/// Failures by address. Bounded.
#[derive(Debug)]
pub(crate) struct Throttle {
    config: ThrottleConfig,
    hasher: RandomState,
    shards: [Mutex<HashMap<IpAddr, AddressRecord>>; SHARDS],
}

/// State of an address.
#[derive(Debug)]
struct AddressRecord {
    /// Remaining failures.
    left: f64,
    at: Instant,
    /// Hashes of valid credentials; the oldest is overwritten.
    known: [u64; KNOWN],
    next: usize,
}

impl AddressRecord {
    fn new(config: ThrottleConfig, now: Instant) -> Self {
        Self {
            left: config.burst as f64,
            at: now,
            known: [0; KNOWN],
            next: 0,
        }
    }

    /// Refills the allowed failures for the time since the last request.
    fn refill(&mut self, config: ThrottleConfig, now: Instant) {
        let gone = now.saturating_duration_since(self.at).as_secs_f64();
        let back = gone * config.per_minute as f64 / 60.0;
        self.left = (self.left + back).min(config.burst as f64);
        self.at = now;
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new(ThrottleConfig::default())
    }
}

impl Throttle {
    pub(crate) fn new(config: ThrottleConfig) -> Self {
        Self {
            config,
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// Checks whether `credential` may be tried from `address`.
    ///
    /// # Errors
    /// `Overloaded` with a retry delay.
    pub(crate) fn check(
        &self,
        address: IpAddr,
        credential: &str,
        now: Instant,
    ) -> Result<(), PredictError> {
        let hash = self.hash(credential);
        let refused = self.with(address, now, |caller| {
            (caller.left < 1.0 && !caller.known.contains(&hash)).then_some(caller.left)
        });
        let Some(left) = refused else {
            return Ok(());
        };
        let wait = (1.0 - left) * 60.0 / self.config.per_minute.max(1) as f64;
        Err(PredictError::new(
            ErrorCode::Overloaded,
            "too many requests with wrong credentials came from this address; try again later",
        )
        .with_retry_after(Duration::from_secs_f64(wait)))
    }

    /// Records a wrong credential.
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) {
        self.with(address, now, |caller| {
            caller.left = (caller.left - 1.0).max(0.0);
        });
    }

    /// Records a valid credential.
    pub(crate) fn succeeded(&self, address: IpAddr, credential: &str, now: Instant) {
        let hash = self.hash(credential);
        self.with(address, now, |caller| {
            if !caller.known.contains(&hash) {
                caller.known[caller.next] = hash;
                caller.next = (caller.next + 1) % KNOWN;
            }
        });
    }

    fn hash(&self, credential: &str) -> u64 {
        // 0 marks an empty entry.
        self.hasher.hash_one(credential).max(1)
    }

    fn with<T>(
        &self,
        address: IpAddr,
        now: Instant,
        act: impl FnOnce(&mut AddressRecord) -> T,
    ) -> T {
        let address = network(address);
        let shard = self.hasher.hash_one(address) as usize % SHARDS;
        let mut shard = self.shards[shard].lock();
        if ADDRESSES <= shard.len() && !shard.contains_key(&address) {
            // Approximate LRU: comparing all entries would hold the lock for too long.
            let some = shard.iter().take(LOOKED_AT);
            let oldest = some.min_by_key(|(_, caller)| caller.at);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                shard.remove(&oldest);
            }
        }
        let caller = shard
            .entry(address)
            .or_insert_with(|| AddressRecord::new(self.config, now));
        caller.refill(self.config, now);
        act(caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: ThrottleConfig = ThrottleConfig {
        burst: 3,
        per_minute: 6,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_of_many_failures_is_refused_until_time_has_passed() {
        let (throttle, now) = (Throttle::new(FEW), Instant::now());
        let here = address("192.0.2.1");
        throttle.succeeded(here, "good", now);
        for _ in 0..3 {
            throttle.check(here, "wrong", now).unwrap();
            throttle.failed(here, now);
        }
        let refused = throttle.check(here, "wrong", now).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(10)));
        assert!(throttle.check(here, "another", now).is_err(), "good or not");
        assert!(throttle.check(here, "good", now).is_ok(), "known before");
        assert!(throttle.check(address("192.0.2.2"), "wrong", now).is_ok());
        let later = now + Duration::from_secs(10);
        assert!(throttle.check(here, "wrong", later).is_ok());
        throttle.failed(here, later);
        assert!(throttle.check(here, "wrong", later).is_err());
    }

    #[test]
    fn an_ipv6_caller_is_its_network_and_an_ipv4_one_itself() {
        let (throttle, now) = (Throttle::new(FEW), Instant::now());
        for host in 0..3_u16 {
            let one = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, host);
            throttle.failed(one.into(), now);
        }
        let other = address("2001:db8:0:1:ffff::9");
        assert!(throttle.check(other, "wrong", now).is_err());
        assert!(throttle.check(address("2001:db8:0:2::1"), "x", now).is_ok());
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn the_table_is_bounded() {
        let (throttle, now) = (Throttle::new(FEW), Instant::now());
        for index in 0..(2 * SHARDS * ADDRESSES) as u32 {
            throttle.failed(IpAddr::V4(index.into()), now);
        }
        let held: usize = throttle.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(held <= SHARDS * ADDRESSES, "{held}");
    }
}
