//! Choice of a replica. Pure: the input is a [`View`] of each replica and random numbers. [`score`]
//! tracks latencies and failures of replicas, [`affinity`] groups requests.

pub mod affinity;
pub mod score;

use volley_types::WorkerId;

/// Load below which a replica in the own zone is preferred, in percent of its capacity.
const SPILL_PERCENT: u64 = 80;
/// Added to every latency, in milliseconds, so that for fast replicas the queue matters more than
/// measurement noise.
const NOISE_MS: f64 = 10.0;

/// One replica at one moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its worker.
    pub worker: &'a WorkerId,
    /// Its worker is late with its heartbeat.
    pub suspect: bool,
    /// It is ejected after failures.
    pub ejected: bool,
    /// The model is in its worker's memory.
    pub resident: bool,
    /// Its worker is in this coordinator's zone.
    pub local: bool,
    /// Running and queued streams.
    pub load: u32,
    /// Maximum number of concurrent streams, at least 1.
    pub capacity: u32,
    /// Recent latency in milliseconds; `None` without calls.
    pub latency_ms: Option<f64>,
    /// Recent share of failed calls, 0 to 1.
    pub failing: f64,
    /// Progress of the slow start; 1 when it is over.
    pub warmth: f64,
}

/// Routing hints of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutingHints {
    /// The hash of its session.
    pub session: Option<u64>,
    /// The model has a state for the session, so that only the session's replica can answer.
    pub held: bool,
    /// The hash of the first blocks of its prompt.
    pub prefix: Option<u64>,
}

/// Reason of a choice; label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No other replica was available.
    Only,
    /// The replica of the session.
    Session,
    /// The replica of the prompt's prefix.
    Prefix,
    /// The better of two replicas in this zone.
    Zone,
    /// The better of two replicas, because this zone is full.
    Spill,
    /// The better of two replicas.
    Balanced,
}

impl Reason {
    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::Zone => "zone",
            Self::Spill => "spill",
            Self::Balanced => "balanced",
        }
    }
}

impl View<'_> {
    /// Cost of one more request: expected latency times queue position, increased during slow start
    /// or failures. `usual_ms` replaces an unknown latency.
    fn cost(&self, usual_ms: f64) -> f64 {
        let latency = self.latency_ms.unwrap_or(usual_ms) + NOISE_MS;
        let queue = f64::from(self.load + 1) / f64::from(self.capacity.max(1));
        latency * queue / (self.warmth * (1.0 - self.failing)).max(0.01)
    }

    fn has_room(&self) -> bool {
        self.load < self.capacity
    }

    fn is_easy(&self) -> bool {
        u64::from(self.load) * 100 < u64::from(self.capacity) * SPILL_PERCENT
    }
}

/// Index in `views` of the replica for a request; `None` if `views` is empty.
///
/// A request of a session with a state goes to the session's replica in any case. Otherwise suspect
/// and ejected replicas are skipped if others exist, and then replicas that must first reload the
/// model, unless all others are full. A request with a session or a prompt prefix goes to its
/// replica unless that is overloaded. All other requests go to the cheaper of two random replicas
/// (Mitzenmacher, 2001), in this zone unless it is overloaded.
pub fn decide(
    views: &[View<'_>],
    hints: &RoutingHints,
    random: &mut fastrand::Rng,
) -> Option<(usize, Reason)> {
    let mut pool: Vec<usize> = (0..views.len()).collect();
    if let (true, Some(key)) = (hints.held, hints.session) {
        let own = affinity::ranked(views, &pool, key).first().copied();
        return own.map(|own| (own, Reason::Session));
    }
    narrow(&mut pool, |index| !views[index].suspect);
    narrow(&mut pool, |index| !views[index].ejected);
    narrow(&mut pool, |index| {
        views[index].resident && views[index].has_room()
    });
    match pool.as_slice() {
        [] => return None,
        [only] => return Some((*only, Reason::Only)),
        _ => {}
    }
    let mut near = pool.clone();
    narrow(&mut near, |index| views[index].local);
    let wishes = [
        (hints.session, Reason::Session),
        (hints.prefix, Reason::Prefix),
    ];
    for (key, reason) in wishes {
        let Some(key) = key else { continue };
        let bound = |index: usize, among: &[usize]| match reason {
            Reason::Session => views[index].has_room(),
            _ => affinity::within_bound(views, index, among),
        };
        for among in [&near, &pool] {
            let mut ranked = affinity::ranked(views, among, key).into_iter();
            if let Some(chosen) = ranked.find(|index| bound(*index, among)) {
                return Some((chosen, reason));
            }
        }
    }
    let zoned = near.len() < pool.len();
    near.retain(|index| views[*index].is_easy());
    Some(match (zoned, near.is_empty()) {
        (true, false) => (cheaper_of_two(views, &near, random), Reason::Zone),
        (true, true) => (cheaper_of_two(views, &pool, random), Reason::Spill),
        (false, _) => (cheaper_of_two(views, &pool, random), Reason::Balanced),
    })
}

/// Keeps the entries that fit, unless none fits.
fn narrow(pool: &mut Vec<usize>, fits: impl Fn(usize) -> bool) {
    if pool.iter().any(|index| fits(*index)) {
        pool.retain(|index| fits(*index));
    }
}

/// `pool` is not empty.
fn cheaper_of_two(views: &[View<'_>], pool: &[usize], random: &mut fastrand::Rng) -> usize {
    if let [only] = pool {
        return *only;
    }
    let known = views.iter().filter_map(|view| view.latency_ms);
    let (sum, count) = known.fold((0.0, 0), |(sum, count), ms| (sum + ms, count + 1));
    let usual_ms = sum / f64::from(count.max(1));
    let first = random.usize(..pool.len());
    // The second of two different ones: skip the first.
    let second = (first + random.usize(1..pool.len())) % pool.len();
    let (first, second) = (pool[first], pool[second]);
    let cheaper = views[second].cost(usual_ms) < views[first].cost(usual_ms);
    if cheaper { second } else { first }
}

#[cfg(test)]
mod tests;
