//! The choice of a replica. Pure: all that is known comes in as a [`View`] of each replica, and
//! the random numbers are given. [`score`] keeps what is learnt of a replica, [`affinity`] says
//! which requests belong together.

pub mod affinity;
pub mod score;

use volley_types::WorkerId;

/// Below this part of its capacity a replica in the caller's own zone is not too loaded for
/// another request, in percent.
const SPILL_PERCENT: u64 = 80;
/// Added to every latency, in milliseconds: what takes less is told apart by its queue more than
/// by the noise of its clock.
const NOISE_MS: f64 = 10.0;

/// One replica at one moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its worker.
    pub worker: &'a WorkerId,
    /// Its worker is late with its heartbeat.
    pub suspect: bool,
    /// It failed too often of late.
    pub ejected: bool,
    /// The model is in its worker's memory.
    pub resident: bool,
    /// Its worker is in this coordinator's zone.
    pub local: bool,
    /// Streams that run on it or wait there.
    pub load: u32,
    /// How many streams it runs at once; at least 1.
    pub capacity: u32,
    /// Its latency of late; `None` while nobody has called it.
    pub latency_ms: Option<f64>,
    /// The part of its calls that failed of late.
    pub failing: f64,
    /// How far it has warmed up: 1 once its slow start is over.
    pub warmth: f64,
}

/// What a request would like.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutingHints {
    /// The hash of its session.
    pub session: Option<u64>,
    /// The model holds a state for its session, so that no other replica than the session's own
    /// can answer.
    pub held: bool,
    /// The hash of the first blocks of its prompt.
    pub prefix: Option<u64>,
}

/// Why a replica was chosen; a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There was no other.
    Only,
    /// Its session is there.
    Session,
    /// Prompts that begin alike went there.
    Prefix,
    /// The better of two in this zone.
    Zone,
    /// The better of two, because this zone is full.
    Spill,
    /// The better of two.
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
    /// What one more request here costs: expected latency times place in the queue, more while
    /// the replica warms up or fails. `usual_ms` stands for a latency that nobody knows.
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

/// The replica for a request, by its place in `views`; `None` when there is none.
///
/// A request of a session whose state the model holds goes to the session's own replica, however
/// that fares. Else late and ejected replicas are left out while there are others, then those whose model would
/// have to be loaded first, unless all others are full. A request with a session or a prompt
/// prefix goes to that one's replica while it is not too loaded. Everything else: the cheaper of
/// two (Mitzenmacher, 2001), in this zone while one there is not too loaded.
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

/// Keeps what `fits`, unless nothing does.
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
