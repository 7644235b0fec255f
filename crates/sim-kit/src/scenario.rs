//! Stories: what goes wrong, and what is changed meanwhile. A story is made of its seed alone, so
//! that one that ends badly can be told again, and be cut down to what it takes.

use std::fmt::{self, Debug, Write};
use std::ops::Range;

use crate::seeds;

/// What a story happens to.
///
/// A story begins in it, each of its acts is performed and followed by a pause, all works again,
/// and in the end everything must be well. Whatever gives an error in between ends the story with
/// the law that was broken.
pub trait World: Sized {
    /// What differs between the beginnings of two stories.
    type Setting: Copy + Debug + PartialEq + Send;
    /// One thing that goes wrong, or that an operator does.
    type Act: Copy + Debug + PartialEq + Send;
    /// What came of a story that ended well.
    type Summary: Send;
    /// Hears what happens, on demand.
    type Trace;

    /// How many acts a story has.
    const ACTS: Range<usize>;
    /// The longest pauses after an act, in milliseconds: mostly one act comes upon the other, at
    /// times after everything has come to rest.
    const PAUSES_MS: [u64; 3];
    /// When the first act happens, as far as the text of a story says it.
    const BEGINS_MS: u64;

    /// Draws the beginning of a story.
    fn setting(random: &mut fastrand::Rng) -> Self::Setting;

    /// Draws an act.
    fn act(random: &mut fastrand::Rng) -> Self::Act;

    /// The beginning, for people; stands behind the seed.
    fn describe(setting: &Self::Setting) -> String;

    /// A trace that keeps nothing.
    fn no_trace() -> Self::Trace;

    /// Runs `work` on the clock of the world of this seed.
    fn on_its_clock<T>(seed: u64, work: impl Future<Output = T>) -> T;

    /// The world before anything is in it.
    fn new(story: &Scenario<Self>, trace: &Self::Trace) -> Self;

    /// Everything that is there before the first act.
    fn begin(&mut self, story: &Scenario<Self>) -> impl Future<Output = Result<(), String>>;

    /// Does what an act says.
    fn perform(&mut self, act: Self::Act) -> impl Future<Output = Result<(), String>>;

    /// Goes on for so many milliseconds, and checks the laws.
    fn run(&mut self, ms: u64) -> impl Future<Output = Result<(), String>>;

    /// Everything works again.
    fn heal(&mut self) -> impl Future<Output = Result<(), String>>;

    /// Runs until everything is well, which it must be soon.
    fn settle(
        &mut self,
        story: &Scenario<Self>,
    ) -> impl Future<Output = Result<Self::Summary, String>>;

    /// Ends all that runs, however the story went.
    fn end(&mut self);
}

/// The beginning, and acts, each with the time after it in milliseconds.
pub struct Scenario<W: World> {
    /// Decides everything that chance does.
    pub seed: u64,
    /// How it begins.
    pub setting: W::Setting,
    /// What happens.
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

/// A story that broke a law, cut down to what it takes.
#[derive(Debug)]
pub struct FailedScenario<W: World> {
    /// The story.
    pub story: Scenario<W>,
    /// The law.
    pub why: String,
}

impl<W: World> fmt::Display for FailedScenario<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\n{}", self.why, self.story.text())
    }
}

impl<W: World> Scenario<W> {
    /// The story of that seed.
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

    /// Tells it.
    ///
    /// # Errors
    /// The first law that was broken.
    pub fn run(&self) -> Result<W::Summary, String> {
        self.run_with_trace(&W::no_trace())
    }

    /// Tells it, and has `trace` hear what happens.
    ///
    /// # Errors
    /// The first law that was broken.
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

    /// How long its acts take, in milliseconds.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.acts.iter().map(|(_, after)| after).sum()
    }

    /// The shortest story that ends badly too, as far as leaving out one act after the other
    /// finds it, and how it ends.
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

    /// The story, for people.
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

/// Tells the stories of these seeds on all processors. Gives what came of each.
///
/// # Errors
/// One that ended badly, cut down.
pub fn run_all<W: World>(seeds: Range<u64>) -> Result<Vec<W::Summary>, FailedScenario<W>> {
    seeds::on_all_processors(seeds, |seed| {
        let story = Scenario::<W>::new(seed);
        story.run().map_err(|why| story.shrunk(why))
    })
}
