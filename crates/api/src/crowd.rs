//! More than a server can take: connections past the cap are told so at once and closed, and a
//! connection whose requests are taken back as fast as they come is closed too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Refusals that are being told at a time; further connections are closed without a word.
const TOLD_AT_A_TIME: usize = 256;
/// How long a client may take to hear its refusal. One that is still sending when the socket is
/// closed would lose it.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// What a client may send meanwhile.
const LISTENED_BYTES: usize = 64 << 10;
/// Requests of one connection that may be taken back before they are answered, within
/// [`WINDOW`], unless a good part is answered. Clients that hedge or give up take back some, and a
/// proxy has many clients; an attack does nothing else.
const TAKEN_BACK: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);
/// So many times as many as are answered are an attack.
const EXCESS: u32 = 4;

const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 154\r\n\r\n\
    {\"error\":{\"type\":\"overloaded\",\"code\":\"overloaded\",\"reason\":\"this coordinator has \
    as many connections as it may have; try another, or again\"},\"status\":503}";

/// Turns away those for whom there is no place. Cloning gives another handle.
#[derive(Clone, Debug)]
pub(crate) struct Doorman(Arc<Semaphore>);

impl Doorman {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(TOLD_AT_A_TIME)))
    }

    /// Says no in plain HTTP, if that is what is spoken here, and closes. Never waits.
    pub(crate) fn turn_away(
        &self,
        socket: TcpStream,
        plain: bool,
        tasks: &TaskTracker,
        end: CancellationToken,
    ) {
        tracing::debug!("a connection past the cap was refused");
        let Ok(permit) = self.0.clone().try_acquire_owned() else {
            return;
        };
        if plain {
            tasks.spawn(async move {
                let told = tokio::time::timeout(HEARD_WITHIN, tell(socket));
                // Who does not listen is let go as well.
                let _ = end.run_until_cancelled(told).await;
                drop(permit);
            });
        }
    }
}

async fn tell(mut socket: TcpStream) -> std::io::Result<()> {
    socket.write_all(REFUSAL.as_bytes()).await?;
    socket.shutdown().await?;
    let mut rest = (&mut socket).take(LISTENED_BYTES as u64);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Counts the requests of one connection that are taken back before they are answered.
#[derive(Debug)]
pub(crate) struct Patience {
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

/// A request that has no answer yet.
#[derive(Debug)]
pub(crate) struct Unanswered(Option<Arc<Patience>>);

impl Patience {
    pub(crate) fn new(end: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::new(Counts {
                since: Instant::now(),
                taken_back: 0,
                answered: 0,
            }),
            end,
        })
    }

    /// A request came in. Dropping what is given back means that it was taken back.
    pub(crate) fn asked(self: &Arc<Self>) -> Unanswered {
        Unanswered(Some(self.clone()))
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
            tracing::warn!("a connection was closed: its requests were taken back as they came");
            self.end.cancel();
        }
    }

    fn answered(&self) {
        let mut counts = self.counts.lock();
        counts.answered = counts.answered.saturating_add(1);
    }
}

impl Unanswered {
    pub(crate) fn answered(mut self) {
        if let Some(patience) = self.0.take() {
            patience.answered();
        }
    }
}

impl Drop for Unanswered {
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
    fn the_refusal_is_as_long_as_it_says() {
        let (head, body) = REFUSAL.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{length}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }

    #[test]
    fn only_who_takes_back_much_in_a_short_time_is_cut() {
        let end = CancellationToken::new();
        let patience = Patience::new(end.clone());
        let start = Instant::now();
        let step = WINDOW / (TAKEN_BACK / 2);
        for count in 0..TAKEN_BACK * 3 {
            patience.taken_back(start + step * count);
        }
        assert!(!end.is_cancelled(), "some, again and again");
        let proxy = Patience::new(end.clone());
        for _ in 0..10_000 {
            proxy.asked().answered();
            drop(proxy.asked());
        }
        assert!(!end.is_cancelled(), "as many as are answered");
        let attack = Patience::new(end.clone());
        for _ in 0..TAKEN_BACK {
            drop(attack.asked());
        }
        assert!(end.is_cancelled());
    }
}
