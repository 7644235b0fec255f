//! Order of queued requests. Tenants take turns (start-time fair queueing, Goyal et al. 1996, with
//! requests of equal length), regardless of the number and priority of their requests. A turn
//! belongs to a tenant and goes to its most urgent request, so a tenant that marks all requests as
//! urgent only delays its own. Low-priority requests wait for all others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use volley_types::{Priority, TenantId};

/// Queued requests, with a `T` for each.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// Interactive requests, and after all of them low-priority requests.
    bands: [Band<T>; 2],
    next_number: u64,
}

/// Position of a request.
#[derive(Clone, Debug)]
pub(super) struct QueuePosition {
    tenant: TenantId,
    rank: Rank,
}

/// Order among the requests of one tenant; the smallest is first.
type Rank = (Reverse<Priority>, u64);

/// Virtual time of a turn; equal times are ordered by creation.
type Turn = (u64, u64);

#[derive(Debug)]
struct Band<T> {
    /// One turn for each queued request, with its tenant.
    turns: BTreeMap<Turn, TenantId>,
    lines: HashMap<TenantId, Line<T>>,
    /// Virtual time of the last turn.
    now: u64,
}

/// Queued requests of one tenant, with an equal number of turns.
#[derive(Debug)]
struct Line<T> {
    requests: BTreeMap<Rank, T>,
    turns: VecDeque<Turn>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            bands: [Band::default(), Band::default()],
            next_number: 0,
        }
    }
}

impl<T> Queue<T> {
    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.bands.iter().map(|band| band.turns.len()).sum()
    }

    /// Reserves a position for a new request.
    pub(super) fn place(&mut self, tenant: &TenantId, priority: Priority) -> QueuePosition {
        let number = self.next_number;
        self.next_number += 1;
        QueuePosition {
            tenant: tenant.clone(),
            rank: (Reverse(priority), number),
        }
    }

    /// Queues `request` at a position.
    pub(super) fn push(&mut self, place: &QueuePosition, request: T) {
        let Reverse(priority) = place.rank.0;
        self.bands[band(priority)].push(place, request);
    }

    /// Removes the request at a position.
    pub(super) fn remove(&mut self, place: &QueuePosition) -> Option<T> {
        let Reverse(priority) = place.rank.0;
        self.bands[band(priority)].remove(&place.tenant, place.rank)
    }

    /// Removes the request whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.bands.iter_mut().find_map(Band::pop)
    }

    /// Number of requests before a new one.
    pub(super) fn before(&self, tenant: &TenantId, priority: Priority) -> usize {
        let index = band(priority);
        let ahead: usize = self.bands[..index].iter().map(|it| it.turns.len()).sum();
        ahead + self.bands[index].before(tenant, priority)
    }

    /// Removes the request that must yield to a new one: a low-priority request, otherwise a less
    /// urgent one of the same tenant, otherwise the last one of a tenant with more queued requests.
    pub(super) fn make_room(&mut self, tenant: &TenantId, priority: Priority) -> Option<T> {
        let index = band(priority);
        let mut behind = self.bands[index + 1..].iter_mut().rev();
        let request = behind.find_map(Band::give_up_last);
        request.or_else(|| self.bands[index].make_room(tenant, priority))
    }
}

fn band(priority: Priority) -> usize {
    match priority {
        Priority::High | Priority::Normal => 0,
        Priority::Low => 1,
    }
}

impl<T> Default for Band<T> {
    fn default() -> Self {
        Self {
            turns: BTreeMap::new(),
            lines: HashMap::new(),
            now: 0,
        }
    }
}

impl<T> Band<T> {
    fn push(&mut self, place: &QueuePosition, request: T) {
        let turn = (self.time_of_next(&place.tenant), place.rank.1);
        self.turns.insert(turn, place.tenant.clone());
        let line = self.lines.entry(place.tenant.clone()).or_default();
        line.turns.push_back(turn);
        line.requests.insert(place.rank, request);
    }

    /// Virtual time of a tenant's next turn: after its last turn, and not before that of a new
    /// tenant.
    fn time_of_next(&self, tenant: &TenantId) -> u64 {
        let last = self.lines.get(tenant).and_then(|line| line.turns.back());
        last.map_or(self.now, |(time, _)| self.now.max(time + 1))
    }

    fn pop(&mut self) -> Option<T> {
        let ((time, _), tenant) = self.turns.pop_first()?;
        self.now = self.now.max(time);
        let line = self.lines.get_mut(&tenant)?;
        line.turns.pop_front();
        let (_, request) = line.requests.pop_first()?;
        self.forget_empty(&tenant);
        Some(request)
    }

    /// Removes a request; the tenant's other requests keep its earlier turns.
    fn remove(&mut self, tenant: &TenantId, rank: Rank) -> Option<T> {
        let line = self.lines.get_mut(tenant)?;
        let request = line.requests.remove(&rank)?;
        if let Some(turn) = line.turns.pop_back() {
            self.turns.remove(&turn);
        }
        self.forget_empty(tenant);
        Some(request)
    }

    fn forget_empty(&mut self, tenant: &TenantId) {
        if self
            .lines
            .get(tenant)
            .is_some_and(|line| line.requests.is_empty())
        {
            self.lines.remove(tenant);
        }
    }

    fn before(&self, tenant: &TenantId, priority: Priority) -> usize {
        let line = self.lines.get(tenant);
        let taken = line.and_then(|line| {
            let goes_first = ..=(Reverse(priority), u64::MAX);
            line.turns.get(line.requests.range(goes_first).count())
        });
        let turn = taken.copied();
        let turn = turn.unwrap_or_else(|| (self.time_of_next(tenant), u64::MAX));
        self.turns.range(..turn).count()
    }

    fn make_room(&mut self, tenant: &TenantId, priority: Priority) -> Option<T> {
        let own = self.lines.get(tenant);
        let least = own.and_then(|line| line.requests.last_key_value());
        if least.is_some_and(|((Reverse(least), _), _)| *least < priority) {
            return self.give_up(tenant);
        }
        let own = own.map_or(0, |line| line.requests.len());
        let lines = self.lines.iter();
        let lines = lines.map(|(whose, line)| (line.requests.len(), line.turns.back(), whose));
        let (count, _, heaviest) = lines.max()?;
        match own + 1 < count {
            true => self.give_up(&heaviest.clone()),
            false => None,
        }
    }

    fn give_up_last(&mut self) -> Option<T> {
        let (_, tenant) = self.turns.last_key_value()?;
        self.give_up(&tenant.clone())
    }

    /// Removes a tenant's least urgent request, the last one among equals.
    fn give_up(&mut self, tenant: &TenantId) -> Option<T> {
        let (rank, _) = self.lines.get(tenant)?.requests.last_key_value()?;
        self.remove(tenant, *rank)
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            requests: BTreeMap::new(),
            turns: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).expect("a name")
    }

    /// Lets requests wait, each named by its tenant and priority, and takes them all.
    fn order(requests: &[(&'static str, Priority)]) -> Vec<(&'static str, Priority)> {
        let mut queue = Queue::default();
        for request in requests {
            let place = queue.place(&tenant(request.0), request.1);
            queue.push(&place, *request);
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn whoever_calls_everything_urgent_pushes_back_nobody_but_himself() {
        use Priority::{High, Low, Normal};
        let (loud, quiet) = ("loud", "quiet");
        let came = [
            (loud, Normal),
            (loud, High),
            (loud, High),
            (quiet, Normal),
            (quiet, Normal),
        ];
        let went = [
            (loud, High),
            (quiet, Normal),
            (loud, High),
            (quiet, Normal),
            (loud, Normal),
        ];
        assert_eq!(order(&came), went);
        // What may wait does so for all tenants.
        let came = [(loud, Low), (quiet, Normal), (loud, Normal), (quiet, Low)];
        let went = [(quiet, Normal), (loud, Normal), (loud, Low), (quiet, Low)];
        assert_eq!(order(&came), went);
    }

    #[test]
    fn an_urgent_request_takes_the_place_of_its_own_tenants_and_of_nobody_elses() {
        let mut queue = Queue::default();
        let (loud, quiet) = (tenant("loud"), tenant("quiet"));
        for (whose, name) in [(&quiet, "a"), (&quiet, "b"), (&loud, "c")] {
            let place = queue.place(whose, Priority::Normal);
            queue.push(&place, name);
        }
        assert_eq!(queue.make_room(&loud, Priority::High), Some("c"));
        let place = queue.place(&loud, Priority::High);
        queue.push(&place, "d");
        assert_eq!(queue.make_room(&loud, Priority::High), None);
        assert_eq!(queue.make_room(&loud, Priority::Low), None);
        assert_eq!(queue.before(&loud, Priority::High), 3);
        assert_eq!(queue.before(&quiet, Priority::High), 0);
        assert_eq!(queue.before(&quiet, Priority::Low), 3);
    }
}
