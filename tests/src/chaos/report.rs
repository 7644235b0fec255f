//! What a run showed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::history::{Outcome, Write};
use super::load::{Late, StreamOutcome};
use super::nemesis::{Fault, Struck};
use super::streams::Ending;

/// Acknowledged writes in a second, below which a run says nothing.
pub const FLOOR_PER_S: f64 = 50.0;

/// A fault that was fired: when it began, when it was undone, when all was well again.
#[derive(Clone, Debug)]
pub struct Fired {
    /// What, and whom.
    pub struck: Struck,
    /// Since the run began.
    pub began: Duration,
    /// Since the run began.
    pub undone: Duration,
    /// Since the run began.
    pub well: Duration,
}

/// All that is known after a run.
#[derive(Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// How long there was load.
    pub lasted: Duration,
    /// The faults, in order.
    pub fired: Vec<Fired>,
    /// Every write.
    pub writes: Vec<Write>,
    /// Every stream.
    pub streams: Vec<StreamOutcome>,
    /// What was violated.
    pub violations: Vec<String>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every promise held.
    Held,
    /// One was broken.
    Broken,
    /// It says nothing: too little load, or a fault that never fired.
    Invalid,
}

impl Run {
    /// What became of it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if !self.violations.is_empty() {
            return Verdict::Broken;
        }
        match self.why_invalid() {
            Some(_) => Verdict::Invalid,
            None => Verdict::Held,
        }
    }

    fn why_invalid(&self) -> Option<String> {
        let rate = self.acked_per_s();
        if rate < FLOOR_PER_S {
            return Some(format!(
                "{rate:.0} writes/s are below the floor of {FLOOR_PER_S:.0}"
            ));
        }
        let never = Fault::ALL
            .into_iter()
            .find(|fault| !self.fired.iter().any(|fired| fired.struck.fault == *fault))?;
        Some(format!("'{}' never fired", never.name()))
    }

    fn acked_per_s(&self) -> f64 {
        self.acked().count() as f64 / self.lasted.as_secs_f64().max(0.001)
    }

    fn acked(&self) -> impl Iterator<Item = &Write> {
        let acked = |write: &&Write| matches!(write.outcome, Outcome::Acked(_));
        self.writes.iter().filter(acked)
    }

    /// The report, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let fits = self.write_summary(&mut text).is_ok() && self.write_faults(&mut text).is_ok();
        debug_assert!(fits, "a text takes everything");
        for violation in self.violations.iter().take(20) {
            let _ = writeln!(text, "VIOLATED: {violation}");
        }
        let verdict = match self.verdict() {
            Verdict::Held => "every promise held".to_owned(),
            Verdict::Broken => format!("{} violations", self.violations.len()),
            Verdict::Invalid => format!("invalid: {}", self.why_invalid().unwrap_or_default()),
        };
        let _ = writeln!(text, "verdict: {verdict}");
        text
    }

    fn write_summary(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "seed {}, {:.0} s of load, {} faults of {} kinds",
            self.seed,
            self.lasted.as_secs_f64(),
            self.fired.len(),
            Fault::ALL.len()
        )?;
        let count = |outcome: fn(&Outcome) -> bool| {
            let writes = self.writes.iter().filter(|write| outcome(&write.outcome));
            writes.count()
        };
        writeln!(
            text,
            "writes: {} acknowledged ({:.0}/s), {} refused, {} unknown",
            self.acked().count(),
            self.acked_per_s(),
            count(|outcome| *outcome == Outcome::Refused),
            count(|outcome| *outcome == Outcome::Unknown),
        )?;
        let mut endings: BTreeMap<String, usize> = BTreeMap::new();
        for told in &self.streams {
            *endings.entry(kind(&told.ending)).or_default() += 1;
        }
        let endings: Vec<_> = endings
            .into_iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        writeln!(text, "streams: {}", endings.join(", "))
    }

    fn write_faults(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\n{:<22} {:>5} {:>14} {:>12} {:>9} {:>9} {:>14}",
            "fault", "fired", "no writes, s", "well again,s", "streams", "not begun", "silence, ms"
        )?;
        for fault in Fault::ALL {
            let fired: Vec<_> = self
                .fired
                .iter()
                .filter(|fired| fired.struck.fault == fault)
                .collect();
            if fired.is_empty() {
                continue;
            }
            let most = |of: &dyn Fn(&Fired) -> Duration| {
                let all = fired.iter().map(|fired| of(fired).as_secs_f64());
                all.fold(0.0, f64::max)
            };
            let streams: Vec<_> = fired
                .iter()
                .flat_map(|fired| self.streams_of(fired))
                .collect();
            let not_begun = streams
                .iter()
                .filter(|told| matches!(told.ending, Ending::NotBegun(_)));
            let silence = streams.iter().filter_map(|told| match &told.ending {
                Ending::Failed(_, silence) => Some(silence.as_millis()),
                _ => None,
            });
            writeln!(
                text,
                "{:<22} {:>5} {:>14.1} {:>12.1} {:>9} {:>9} {:>14}",
                fault.name(),
                fired.len(),
                most(&|fired| self.gap(fired)),
                most(&|fired| fired.well.saturating_sub(fired.undone)),
                streams.len(),
                not_begun.count(),
                silence
                    .max()
                    .map_or("-".to_owned(), |silence| silence.to_string()),
            )?;
        }
        writeln!(text)
    }

    /// The longest time without an acknowledged write while a fault lasted.
    fn gap(&self, fired: &Fired) -> Duration {
        let mut ends: Vec<_> = self
            .acked()
            .map(|write| write.ended)
            .filter(|ended| fired.began <= *ended && *ended <= fired.well)
            .collect();
        ends.extend([fired.began, fired.well]);
        ends.sort();
        let gaps = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.max().unwrap_or_default()
    }

    fn streams_of<'a>(&'a self, fired: &'a Fired) -> impl Iterator<Item = &'a StreamOutcome> {
        self.streams
            .iter()
            .filter(move |told| fired.began <= told.ended && told.asked <= fired.well)
    }
}

/// What must not be where nothing had struck: a connection that was cut without a fault of its
/// coordinator, an error of a stream without one of a worker, an own write that was not there at
/// once.
#[must_use]
pub fn unexplained(streams: &[StreamOutcome], late: &[Late], fired: &[Fired]) -> Vec<String> {
    let struck_in = |from: Duration, to: Duration, by: &dyn Fn(&Struck) -> bool| {
        let during = |fired: &&Fired| fired.began <= to && from <= fired.well;
        fired.iter().filter(during).any(|fired| by(&fired.struck))
    };
    let struck =
        |told: &StreamOutcome, by: &dyn Fn(&Struck) -> bool| struck_in(told.asked, told.ended, by);
    let broken = streams.iter().filter(|told| match &told.ending {
        Ending::Cut => {
            let name = coordinator(told.coordinator);
            !struck(told, &|it| it.nodes.contains(&name))
        }
        Ending::Failed(..) => {
            let of_worker = |name: &String| name.starts_with("worker-");
            !struck(told, &|it| it.nodes.iter().any(of_worker))
        }
        _ => false,
    });
    let words = broken.map(|told| {
        format!(
            "a stream through coordinator {} was {} at {:.1} s, and no fault explains it",
            told.coordinator + 1,
            kind(&told.ending),
            told.ended.as_secs_f64()
        )
    });
    let stale = late.iter().filter(|late| {
        let name = coordinator(late.coordinator);
        !struck_in(late.at, late.at, &|it| it.nodes.contains(&name))
    });
    let stale = stale.map(|late| {
        format!(
            "stale: what coordinator {} had acknowledged was not there at {:.1} s, and no fault \
             explains it",
            late.coordinator + 1,
            late.at.as_secs_f64()
        )
    });
    words.chain(stale).collect()
}

/// The name of the coordinator at an index.
fn coordinator(index: usize) -> String {
    format!("coordinator-{}", index + 1)
}

fn kind(ending: &Ending) -> String {
    match ending {
        Ending::Whole => "whole".to_owned(),
        Ending::NotBegun(code) => format!("not begun ({code})"),
        Ending::Failed(code, _) => format!("ended in an error ({code})"),
        Ending::Cut => "cut with their coordinator".to_owned(),
        Ending::Violated(_) => "VIOLATED".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(acked: usize, faults: &[Fault], violations: &[&str]) -> Run {
        let write = |n: usize| Write {
            model: "m".to_owned(),
            payload: format!("w{n}"),
            sent: Duration::ZERO,
            ended: Duration::from_millis(n as u64),
            outcome: Outcome::Acked(1),
        };
        let fired = |fault: &Fault| Fired {
            struck: Struck {
                fault: *fault,
                nodes: vec!["worker-1".to_owned()],
            },
            began: Duration::from_millis(100),
            undone: Duration::from_millis(300),
            well: Duration::from_millis(900),
        };
        Run {
            seed: 1,
            lasted: Duration::from_secs(10),
            fired: faults.iter().map(fired).collect(),
            writes: (0..acked).map(write).collect(),
            streams: Vec::new(),
            violations: violations.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_run_with_too_little_load_or_without_a_fault_says_nothing() {
        assert_eq!(run(600, &Fault::ALL, &[]).verdict(), Verdict::Held);
        assert_eq!(run(400, &Fault::ALL, &[]).verdict(), Verdict::Invalid);
        let without = run(600, &Fault::ALL[1..], &[]);
        assert_eq!(without.verdict(), Verdict::Invalid);
        assert!(without.text().contains("'leader killed' never fired"));
        let broken = run(600, &Fault::ALL[1..], &["lost: w1"]);
        assert_eq!(broken.verdict(), Verdict::Broken);
        assert!(broken.text().contains("VIOLATED: lost: w1"));
    }

    #[test]
    fn a_stream_breaks_off_with_what_it_ran_through_or_is_a_violation() {
        let fired = &run(0, &[Fault::KillWorker], &[]).fired;
        let told = |coordinator, asked, ending| StreamOutcome {
            asked: Duration::from_millis(asked),
            ended: Duration::from_millis(asked + 10),
            coordinator,
            ending,
        };
        let failed = || Ending::Failed("unavailable".to_owned(), Duration::ZERO);
        // It lasts from 100 to 900 ms, and strikes a worker.
        for (stream, found) in [
            (told(0, 500, failed()), 0),
            (told(0, 950, failed()), 1),
            (told(0, 10, failed()), 1),
            (told(0, 500, Ending::Cut), 1),
            (told(0, 950, Ending::Whole), 0),
        ] {
            let words = unexplained(std::slice::from_ref(&stream), &[], fired);
            assert_eq!(words.len(), found, "{stream:?}: {words:?}");
        }
        let mut fired = fired.clone();
        fired[0].struck.nodes = vec!["coordinator-2".to_owned()];
        let cut = [told(1, 500, Ending::Cut), told(0, 500, Ending::Cut)];
        assert_eq!(unexplained(&cut, &[], &fired).len(), 1);
        let late = [(0, 500), (1, 500), (1, 950)].map(|(coordinator, at)| Late {
            coordinator,
            at: Duration::from_millis(at),
        });
        let words = unexplained(&[], &late, &fired);
        assert_eq!(words.len(), 2, "{words:?}");
    }

    #[test]
    fn the_longest_time_without_writes_is_found() {
        let run = run(500, &[Fault::KillLeader], &[]);
        // Writes end at 0 to 499 ms, and all is well at 900.
        assert_eq!(run.gap(&run.fired[0]), Duration::from_millis(401));
    }
}
