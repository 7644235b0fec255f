//! Connection limits: connections above the limit are rejected immediately, and a connection that
//! resets too many requests is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use volley_security::network;

/// Maximum number of rejections in progress; further connections are closed without a response.
const TOLD_AT_A_TIME: usize = 256;
/// Time for a client to read its rejection. A client that is still sending when the socket is
/// closed would not receive it.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Bytes that are read from the client during this time.
const LISTENED_BYTES: usize = 64 << 10;
/// Number of requests that one connection may reset before their response within [`WINDOW`], unless
/// enough others are answered. Clients with hedging or timeouts reset some requests, and a proxy
/// has many clients; an attack resets nearly all.
const TAKEN_BACK: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);
/// Ratio of reset to answered requests that counts as an attack.
const EXCESS: u32 = 4;

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// The limit of the server.
    Server,
    /// The limit of the caller's address.
    Address,
}

impl LimitReached {
    fn refusal(self) -> String {
        let (status, reason, what) = match self {
            Self::Server => (
                503,
                "Service Unavailable",
                "this coordinator is at its limit of connections; try again, or use another \
                 coordinator",
            ),
            Self::Address => (
                429,
                "Too Many Requests",
                "this address is at its limit of connections; reuse open connections, or try again",
            ),
        };
        let body = format!(
            "{{\"error\":{{\"type\":\"overloaded\",\"code\":\"overloaded\",\
             \"reason\":\"{what}\"}},\"status\":{status}}}"
        );
        format!(
            "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n\
             x-content-type-options: nosniff\r\nretry-after: 1\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Limits of open connections, in total and per address.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    all: Arc<Semaphore>,
    by_address: ByAddress,
    per_address: usize,
}

#[derive(Clone, Debug, Default)]
struct ByAddress(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Permit of one connection; released when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    _one: OwnedSemaphorePermit,
    address: IpAddr,
    by_address: ByAddress,
}

impl ConnectionLimiter {
    /// Limits: `all` connections in total, `per_address` from one address.
    pub fn new(all: usize, per_address: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            by_address: ByAddress::default(),
            per_address,
        }
    }

    /// Acquires a permit for a connection from `address`.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn take(&self, address: IpAddr) -> Result<ConnectionPermit, LimitReached> {
        let address = network(address);
        let one = self.all.clone().try_acquire_owned();
        let one = one.map_err(|_| LimitReached::Server)?;
        let mut counts = self.by_address.0.lock();
        let count = counts.get(&address).copied().unwrap_or_default();
        if self.per_address <= count {
            return Err(LimitReached::Address);
        }
        counts.insert(address, count + 1);
        drop(counts);
        Ok(ConnectionPermit {
            _one: one,
            address,
            by_address: self.by_address.clone(),
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.by_address.0.lock();
        match counts.get_mut(&self.address) {
            Some(count) if 1 < *count => *count -= 1,
            _ => {
                counts.remove(&self.address);
            }
        }
    }
}

/// Rejects connections above the limits. Clones share their state.
#[derive(Clone, Debug)]
pub struct ConnectionRejector(Arc<Semaphore>);

impl Default for ConnectionRejector {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionRejector {
    /// Creates a rejecter without rejections in progress.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(TOLD_AT_A_TIME)))
    }

    /// Sends a rejection if the listener is `plain` HTTP, and closes the connection. Never waits.
    pub fn reject(
        &self,
        socket: TcpStream,
        full: LimitReached,
        plain: bool,
        tasks: &TaskTracker,
        end: CancellationToken,
    ) {
        tracing::debug!(full = ?full, "connection rejected: limit reached");
        let Ok(permit) = self.0.clone().try_acquire_owned() else {
            return;
        };
        if plain {
            tasks.spawn(async move {
                let told =
                    tokio::time::timeout(HEARD_WITHIN, write_refusal(socket, full.refusal()));
                // The connection is also closed if the client does not read.
                let _ = end.run_until_cancelled(told).await;
                drop(permit);
            });
        }
    }
}

async fn write_refusal(mut socket: TcpStream, refusal: String) -> std::io::Result<()> {
    socket.write_all(refusal.as_bytes()).await?;
    socket.shutdown().await?;
    let mut rest = (&mut socket).take(LISTENED_BYTES as u64);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Counts the requests of one connection that are reset before their response.
#[derive(Debug)]
pub struct RapidResetGuard {
    counts: Mutex<Counts>,
    /// Ends the connection.
    end: CancellationToken,
}

#[derive(Debug)]
struct Counts {
    since: Instant,
    taken_back: u32,
    answered: u32,
}

/// A request without a response.
#[derive(Debug)]
pub struct PendingRequest(Option<Arc<RapidResetGuard>>);

impl RapidResetGuard {
    /// Creates the counters of a connection, which `end` closes.
    pub fn new(end: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::new(Counts {
                since: Instant::now(),
                taken_back: 0,
                answered: 0,
            }),
            end,
        })
    }

    /// Records a new request. Dropping the returned value counts it as reset.
    pub fn asked(self: &Arc<Self>) -> PendingRequest {
        PendingRequest(Some(self.clone()))
    }

    fn taken_back(&self, now: Instant) {
        let mut counts = self.counts.lock();
        if WINDOW <= now.saturating_duration_since(counts.since) {
            *counts = Counts {
                since: now,
                taken_back: 0,
                answered: 0,
            };
        }
        counts.taken_back += 1;
        let allowed = TAKEN_BACK.max(counts.answered.saturating_mul(EXCESS));
        if allowed <= counts.taken_back && !self.end.is_cancelled() {
            tracing::warn!("connection closed: it reset too many requests");
            self.end.cancel();
        }
    }

    fn answered(&self) {
        let mut counts = self.counts.lock();
        counts.answered = counts.answered.saturating_add(1);
    }
}

impl PendingRequest {
    /// Records the response of the request.
    pub fn answered(mut self) {
        if let Some(patience) = self.0.take() {
            patience.answered();
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(patience) = self.0.take() {
            patience.taken_back(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_as_long_as_it_says() {
        for full in [LimitReached::Server, LimitReached::Address] {
            let refusal = full.refusal();
            let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
            let length = format!("content-length: {}", body.len());
            assert!(head.contains(&length), "{length}");
            let told: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(head.contains(&told["status"].to_string()), "{refusal}");
        }
    }

    #[test]
    fn an_address_has_its_part_of_the_places_and_no_more() {
        let places = ConnectionLimiter::new(4, 2);
        let take = |address: &str| places.take(address.parse().unwrap());
        let (one, _two) = (take("192.0.2.1").unwrap(), take("192.0.2.1").unwrap());
        assert_eq!(take("192.0.2.1").unwrap_err(), LimitReached::Address);
        assert_eq!(take("::ffff:192.0.2.1").unwrap_err(), LimitReached::Address);
        let _six = take("2001:db8::1").unwrap();
        let seven = take("2001:db8::ffff:2").unwrap();
        assert_eq!(take("2001:db8::3").unwrap_err(), LimitReached::Server);
        drop(seven);
        assert!(take("2001:db8:0:0:9::").is_ok());
        drop(one);
        assert!(take("192.0.2.1").is_ok());
        assert_eq!(places.by_address.0.lock().len(), 2, "who left is forgotten");
    }

    #[test]
    fn only_who_takes_back_much_in_a_short_time_is_cut() {
        let end = CancellationToken::new();
        let patience = RapidResetGuard::new(end.clone());
        let start = Instant::now();
        let step = WINDOW / (TAKEN_BACK / 2);
        for count in 0..TAKEN_BACK * 3 {
            patience.taken_back(start + step * count);
        }
        assert!(!end.is_cancelled(), "some, again and again");
        let proxy = RapidResetGuard::new(end.clone());
        for _ in 0..10_000 {
            proxy.asked().answered();
            drop(proxy.asked());
        }
        assert!(!end.is_cancelled(), "as many as are answered");
        let attack = RapidResetGuard::new(end.clone());
        for _ in 0..TAKEN_BACK {
            drop(attack.asked());
        }
        assert!(end.is_cancelled());
    }
}
