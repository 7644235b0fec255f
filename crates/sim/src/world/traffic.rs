//! Requests with the real choice of a replica and the real ejection.

use std::time::Duration;

use volley_coordinator::route::{RoutingHints, decide};

use super::Simulation;
use super::events::{Event, TICK_MS};

/// Duration of a successful call.
const ANSWER: Duration = Duration::from_millis(20);
const SLOW_START: Duration = Duration::from_secs(10);

impl Simulation {
    /// Lets each coordinator route a request to one of the models.
    pub(super) fn call(&mut self) {
        self.after(TICK_MS, Event::Calls);
        for coordinator in 0..self.coordinators.len() {
            if self.acts(coordinator)
                && let Err(what) = self.route_one(coordinator)
            {
                self.laws.break_at(self.agenda.now_ms(), &what);
            }
        }
    }

    fn route_one(&mut self, at: usize) -> Result<(), String> {
        let models = self.seats[at].applied.models.values();
        let deployed = models.filter_map(|entry| Some((entry, entry.deployment.as_ref()?)));
        let Some((entry, deployment)) = self.random.choice(deployed.collect::<Vec<_>>()) else {
            return Ok(());
        };
        let now = self.clock(at);
        let live = &self.coordinators[at].live;
        let candidates = live.candidates(&entry.name, deployment.version);
        if candidates.is_empty() {
            return Ok(());
        }
        let views: Vec<_> = candidates
            .iter()
            .map(|candidate| candidate.view(now, SLOW_START))
            .collect();
        let Some((chosen, _)) = decide(&views, &RoutingHints::default(), &mut self.random) else {
            return Err(format!("nobody is asked for '{}'", entry.name));
        };
        let best = views.iter().any(|view| !view.suspect && !view.ejected);
        if best && (views[chosen].suspect || views[chosen].ejected) {
            return Err(format!(
                "'{}' is asked of {}, who is late or ejected, although others are not",
                entry.name, views[chosen].worker
            ));
        }
        drop(views);
        let worker = self.numbers[&candidates[chosen].worker];
        let mut call = candidates[chosen].begin(now);
        let works = self.workers[worker].up && !self.workers[worker].frozen;
        if works && !self.failing.contains(&worker) {
            call.succeeded(now + ANSWER);
            return Ok(());
        }
        let ejects = call.failed(now, &candidates);
        let ejected = candidates
            .iter()
            .filter(|candidate| candidate.view(now, SLOW_START).ejected)
            .count();
        if ejects && candidates.len() < ejected * 2 {
            return Err(format!(
                "{ejected} of {} replicas of '{}' are ejected",
                candidates.len(),
                entry.name
            ));
        }
        Ok(())
    }
}
