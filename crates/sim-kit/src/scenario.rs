//! Scenarios: faults and changes. The seed alone determines a scenario, so a failed one can be
//! repeated and reduced.

use std::fmt::{self, Debug, Write};
use std::ops::Range;

use crate::seeds;

/// The system under test.
///
/// A run starts the world, performs each act followed by a pause, ends all faults, and waits until
/// the world has settled. An error in any step ends the run with the violated invariant.
pub trait World: Sized {
    /// Initial state of a scenario.
    type Setting: Copy + Debug + PartialEq + Send;
    /// A fault, or an action of an operator.
    type Act: Copy + Debug + PartialEq + Send;
    /// Result of a successful run.
    type Summary: Send;
    /// Receives the events of a run.
    type Trace;

    /// Number of acts in a scenario.
    const ACTS: Range<usize>;
    /// Maximum pauses after an act, in milliseconds. Mostly an act follows the previous one at
    /// once; sometimes everything has settled.
    const PAUSES_MS: [u64; 3];
    /// Time of the first act in milliseconds, for the text of a scenario.
    const BEGINS_MS: u64;

    /// Draws an initial state.
    fn setting(random: &mut fastrand::Rng) -> Self::Setting;

    /// Draws an act.
    fn act(random: &mut fastrand::Rng) -> Self::Act;

    /// Describes the initial state, to follow the seed in the text of a scenario.
    fn describe(setting: &Self::Setting) -> String;

    /// Returns a trace that keeps nothing.
    fn no_trace() -> Self::Trace;

    /// Runs `work` on the clock of this world.
    fn on_its_clock<T>(seed: u64, work: impl Future<Output = T>) -> T;

    /// Creates an empty world.
    fn new(story: &Scenario<Self>, trace: &Self::Trace) -> Self;

    /// Starts the initial state of the world.
    fn begin(&mut self, story: &Scenario<Self>) -> impl Future<Output = Result<(), String>>;

    /// Performs an act.
    fn perform(&mut self, act: Self::Act) -> impl Future<Output = Result<(), String>>;

    /// Runs for `ms` milliseconds, and checks the invariants.
    fn run(&mut self, ms: u64) -> impl Future<Output = Result<(), String>>;

    /// Ends all faults.
    fn heal(&mut self) -> impl Future<Output = Result<(), String>>;

    /// Runs until the world has settled, within a time limit.
    fn settle(
        &mut self,
        story: &Scenario<Self>,
    ) -> impl Future<Output = Result<Self::Summary, String>>;

    /// Ends everything that runs, after a failure too.
    fn end(&mut self);
}

/// A seed, an initial state, and acts.
pub struct Scenario<W: World> {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The initial state.
    pub setting: W::Setting,
    /// Acts, each with the pause after it in milliseconds.
    pub acts: Vec<(W::Act, u64)>,
}

impl<W: World> Clone for Scenario<W> {
    fn clone(&self) -> Self {
        Self {
            acts: self.acts.clone(),
            ..*self
        }
    }
}

impl<W: World> PartialEq for Scenario<W> {
    fn eq(&self, other: &Self) -> bool {
        (self.seed, &self.setting, &self.acts) == (other.seed, &other.setting, &other.acts)
    }
}

impl<W: World> Debug for Scenario<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text())
    }
}

/// A scenario that violated an invariant, reduced to the acts that it needs.
#[derive(Debug)]
pub struct FailedScenario<W: World> {
    /// The reduced scenario.
    pub story: Scenario<W>,
    /// The violated invariant.
    pub why: String,
}

impl<W: World> fmt::Display for FailedScenario<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\n{}", self.why, self.story.text())
    }
}

impl<W: World> Scenario<W> {
    /// Returns the scenario of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let setting = W::setting(&mut random);
        let count = random.usize(W::ACTS);
        let acts = (0..count).map(|_| {
            let act = W::act(&mut random);
            let after = W::PAUSES_MS[random.usize(..W::PAUSES_MS.len())];
            (act, random.u64(..after))
        });
        Self {
            seed,
            setting,
            acts: acts.collect(),
        }
    }

    /// Runs the scenario.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn run(&self) -> Result<W::Summary, String> {
        self.run_with_trace(&W::no_trace())
    }

    /// Runs the scenario, and records its events in `trace`.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn run_with_trace(&self, trace: &W::Trace) -> Result<W::Summary, String> {
        W::on_its_clock(self.seed, async {
            let mut world = W::new(self, trace);
            let told = self.happen_to(&mut world).await;
            world.end();
            told
        })
    }

    async fn happen_to(&self, world: &mut W) -> Result<W::Summary, String> {
        world.begin(self).await?;
        for (act, after) in &self.acts {
            world.perform(*act).await?;
            world.run(*after).await?;
        }
        world.heal().await?;
        world.settle(self).await
    }

    /// Returns the sum of all pauses in milliseconds.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.acts.iter().map(|(_, after)| after).sum()
    }

    /// Removes acts one by one as long as the scenario still fails. Returns the reduced scenario
    /// and its violation.
    #[must_use]
    pub fn shrunk(&self, why: String) -> FailedScenario<W> {
        let (mut story, mut why) = (self.clone(), why);
        let mut at = 0;
        while at < story.acts.len() {
            let mut shorter = story.clone();
            shorter.acts.remove(at);
            match shorter.run() {
                Err(still) => (story, why) = (shorter, still),
                Ok(_) => at += 1,
            }
        }
        FailedScenario { story, why }
    }

    /// Describes the scenario, one act per line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("seed {}{}\n", self.seed, W::describe(&self.setting));
        let mut at = W::BEGINS_MS;
        for (act, after) in &self.acts {
            let _ = writeln!(text, "{at:>7} ms  {act:?}");
            at += after;
        }
        let _ = writeln!(text, "{at:>7} ms  all works again");
        text
    }
}

/// Runs the scenarios of these seeds on all processors. Returns the result of each.
///
/// # Errors
/// One failed scenario, reduced.
pub fn run_all<W: World>(seeds: Range<u64>) -> Result<Vec<W::Summary>, FailedScenario<W>> {
    seeds::on_all_processors(seeds, |seed| {
        let story = Scenario::<W>::new(seed);
        story.run().map_err(|why| story.shrunk(why))
    })
}
