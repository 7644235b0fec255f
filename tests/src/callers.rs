//! Callers that never pause: how much work a cluster does while something is done to it, and
//! whether anybody noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use volley_client::Client;

use crate::cluster::{Cluster, client, tell_with};
use crate::until;

/// What callers saw.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests that were answered as they should be.
    pub answered: usize,
    /// What went wrong with the others.
    pub failures: Vec<String>,
}

/// Callers at work, until they are told to stop.
#[derive(Debug)]
pub struct Callers {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: JoinSet<Tally>,
}

impl Callers {
    /// `count` callers of each of `models` (backend `fake`, 4 chunks of "ok"), each through a
    /// client of all coordinators: the next is called when one cannot be reached or says that it
    /// is not ready, as a load balancer does.
    #[must_use]
    pub fn start(cluster: &Cluster, models: &[&str], count: usize) -> Self {
        let mut callers = Self {
            stop: Arc::default(),
            answered: Arc::default(),
            tasks: JoinSet::new(),
        };
        let addresses: Vec<_> = cluster
            .coordinators
            .iter()
            .map(|node| node.http.clone())
            .collect();
        for model in models {
            for caller in 0..count {
                let mut own = addresses.clone();
                let first = caller % own.len();
                own.rotate_left(first);
                let (stop, answered) = (callers.stop.clone(), callers.answered.clone());
                let model = (*model).to_owned();
                callers.tasks.spawn(call(own, model, stop, answered));
            }
        }
        callers
    }

    /// Waits until `more` requests have been answered from now on.
    pub async fn go_on(&self, more: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        until("callers are answered", || async {
            (goal <= self.answered.load(Ordering::Relaxed)).then_some(())
        })
        .await;
    }

    /// Stops them, and tells what they saw.
    ///
    /// # Panics
    /// When a caller did.
    pub async fn stop(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        while let Some(tally) = self.tasks.join_next().await {
            let tally = tally.expect("a caller");
            all.answered += tally.answered;
            all.failures.extend(tally.failures);
        }
        all
    }
}

/// The first of them that says it is ready.
async fn ready(clients: &[Client]) -> Option<&Client> {
    for client in clients {
        if matches!(client.ready().await, Ok(true)) {
            return Some(client);
        }
    }
    None
}

async fn call(
    addresses: Vec<String>,
    model: String,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> Tally {
    let one = |first: usize| {
        let mut own: Vec<_> = addresses.iter().map(String::as_str).collect();
        own.rotate_left(first);
        client(&own)
    };
    let clients: Vec<_> = (0..addresses.len()).map(one).collect();
    let mut tally = Tally::default();
    let body: Value = json!({ "prompt": "x", "text": "ok", "chunks": 4, "delay_ms": 5 });
    while !stop.load(Ordering::Relaxed) {
        let Some(client) = ready(&clients).await else {
            tally.failures.push("no coordinator is ready".to_owned());
            continue;
        };
        match tell_with(client, &model, &body).await {
            Ok(told) if told == "okokokok" => {
                tally.answered += 1;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(told) => tally.failures.push(format!("{model} told {told:?}")),
            Err(error) => tally.failures.push(format!("{model}: {error:?}")),
        }
    }
    tally
}
