use async_trait::async_trait;
use volley_types::{
    ChunkStream, ErrorCode, Incarnation, ModelRef, PredictError, PredictRequest, Signature,
};

use super::*;

struct Client;

#[async_trait]
impl Predict for Client {
    async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
        Err(PredictError::new(ErrorCode::Unavailable, "no network here"))
    }
    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Err(PredictError::new(ErrorCode::Unavailable, "no network here"))
    }
    async fn models(&self) -> Vec<ModelName> {
        Vec::new()
    }
}

fn connect(_: &str) -> Arc<dyn Predict> {
    Arc::new(Client)
}

fn model() -> ModelName {
    ModelName::new("m").unwrap()
}

fn worker() -> WorkerId {
    WorkerId::new("w").unwrap()
}

fn report(incarnation: u64, state: ReplicaState) -> WorkerReport {
    WorkerReport {
        id: worker(),
        incarnation: Incarnation(incarnation),
        address: "127.0.0.1:1".to_owned(),
        labels: BTreeMap::default(),
        replicas: vec![ReplicaReport {
            model: model(),
            version: ModelVersion(1),
            state,
            active: 0,
            queued: 0,
            capacity: 4,
            queue_wait_ms: 0,
            idle_since_ms: 0,
            fetch: None,
            signature: Some(Signature::generation()),
            evicted: false,
            memory_bytes: 0,
        }],
        draining: false,
        active: 0,
        queued: 0,
        memory_bytes: 0,
        memory_budget_bytes: 0,
        gpus: Vec::new(),
        uptime_ms: 0,
    }
}

struct Story {
    live: LiveWorkers,
    start: Instant,
    ticked_ms: u64,
}

impl Story {
    fn new() -> Self {
        Self {
            live: LiveWorkers::new(LivenessConfig::default()),
            start: Instant::now(),
            ticked_ms: 0,
        }
    }

    /// Lets the clock tick up to `ms`. Whether anything changed.
    fn tick(&mut self, ms: u64) -> bool {
        let mut changed = false;
        while self.ticked_ms < ms {
            self.ticked_ms = (self.ticked_ms + 250).min(ms);
            changed |= self.live.tick(self.at(self.ticked_ms));
        }
        changed
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn hear(&mut self, ms: u64, stream: u64, report: WorkerReport) -> bool {
        let now = self.at(ms);
        self.live.heard(report, stream, now, connect)
    }

    fn liveness(&self) -> Option<Liveness> {
        self.live.iter().next().map(|(_, worker)| worker.liveness)
    }

    fn candidates(&self) -> usize {
        self.live.candidates(&model(), ModelVersion(1)).len()
    }
}

#[test]
fn silence_makes_a_worker_suspect_then_dead_then_forgotten_and_a_word_revives_it() {
    let mut story = Story::new();
    assert!(
        story.hear(0, 1, report(1, ReplicaState::Ready)),
        "a new worker is news"
    );
    assert_eq!(
        (story.liveness(), story.candidates()),
        (Some(Liveness::Alive), 1)
    );

    assert!(story.tick(1_600));
    assert_eq!(
        (story.liveness(), story.candidates()),
        (Some(Liveness::Suspect), 1)
    );
    assert!(story.live.candidates(&model(), ModelVersion(1))[0].suspect);

    assert!(
        story.hear(1_700, 1, report(1, ReplicaState::Ready)),
        "a late heartbeat counts"
    );
    assert_eq!(story.liveness(), Some(Liveness::Alive));

    assert!(story.tick(4_800));
    assert_eq!(
        (story.liveness(), story.candidates()),
        (Some(Liveness::Dead), 0)
    );

    story.tick(102_000);
    assert_eq!(story.liveness(), None);
}

#[test]
fn a_closed_stream_kills_at_once_but_only_the_stream_that_speaks() {
    let mut story = Story::new();
    story.hear(0, 1, report(1, ReplicaState::Ready));
    story.hear(10, 2, report(2, ReplicaState::Ready));
    assert!(
        story.live.lost(&worker(), 1).is_none(),
        "the earlier life's stream ends late"
    );
    assert_eq!(story.liveness(), Some(Liveness::Alive));
    assert!(
        !story.hear(20, 1, report(1, ReplicaState::Loading)),
        "nor may it speak any more"
    );
    assert_eq!(story.candidates(), 1);
    assert_eq!(story.live.lost(&worker(), 2), Some(Liveness::Alive));
    assert_eq!(
        (story.liveness(), story.candidates()),
        (Some(Liveness::Dead), 0)
    );
    story.hear(30, 3, report(3, ReplicaState::Ready));
    assert_eq!(story.candidates(), 1);
}

#[test]
fn only_ready_replicas_of_the_version_are_candidates_and_only_changes_are_news() {
    let mut story = Story::new();
    story.hear(0, 1, report(1, ReplicaState::Loading));
    assert_eq!(story.candidates(), 0);
    assert!(!story.hear(500, 1, report(1, ReplicaState::Loading)));
    assert!(story.hear(600, 1, report(1, ReplicaState::Ready)));
    assert_eq!(story.candidates(), 1);
    assert!(story.live.candidates(&model(), ModelVersion(2)).is_empty());
    assert_eq!(story.live.ready_replicas()[&model()], 1);
    let mut draining = report(1, ReplicaState::Ready);
    draining.draining = true;
    assert!(story.hear(700, 1, draining));
    assert_eq!(
        (story.liveness(), story.candidates()),
        (Some(Liveness::Draining), 0)
    );
}

#[test]
fn a_refusal_counts_until_a_report_says_anything_else_and_for_a_second_at_most() {
    let mut story = Story::new();
    story.tick(0);
    story.hear(0, 1, report(1, ReplicaState::Ready));
    let refuse = |story: &mut Story, ms| {
        let candidates = story.live.candidates(&model(), ModelVersion(1));
        let now = story.at(ms);
        story.live.refused(&model(), &candidates[0], now)
    };
    assert!(refuse(&mut story, 100));
    assert!(!story.hear(500, 1, report(1, ReplicaState::Ready)), "late");
    assert_eq!(story.candidates(), 0);
    assert!(story.live.ready_versions(&model()).is_empty());
    let told = story.live.last_signature(&model(), ModelVersion(1));
    assert!(told.is_some(), "what it gives is known still");
    assert!(!story.tick(1_000));
    assert_eq!(story.candidates(), 0);
    assert!(story.tick(1_250), "it may be tried again");
    assert_eq!(story.candidates(), 1);

    // It was loaded anew since.
    assert!(refuse(&mut story, 1_300));
    story.hear(1_400, 1, report(1, ReplicaState::Loading));
    story.hear(1_500, 1, report(1, ReplicaState::Ready));
    assert_eq!(story.candidates(), 1);
}

#[test]
fn a_replica_is_found_beside_one_of_its_version_that_is_on_its_way_out() {
    let mut story = Story::new();
    let mut both = report(1, ReplicaState::Draining);
    let [going] = &both.replicas[..] else {
        panic!("one replica")
    };
    let mut going = going.clone();
    going.state = ReplicaState::Ready;
    both.replicas.push(going);
    story.hear(0, 1, both);
    assert_eq!(story.live.ready_versions(&model())[&ModelVersion(1)], 1);
    let signature = story.live.signature(&model(), ModelVersion(1));
    assert!(signature.is_some(), "what is ready can be asked");
    assert_eq!(story.candidates(), 1);
}

#[test]
fn a_stream_counts_on_its_replica_until_it_is_dropped() {
    let mut story = Story::new();
    story.hear(0, 1, report(1, ReplicaState::Ready));
    let candidate = story.live.candidates(&model(), ModelVersion(1)).remove(0);
    let stream = candidate.begin(story.at(100));
    story.hear(500, 1, report(1, ReplicaState::Ready));
    let again = story.live.candidates(&model(), ModelVersion(1)).remove(0);
    let load = |ms| again.view(story.at(ms), Duration::ZERO).load;
    assert_eq!(load(500), 1);
    drop(stream);
    assert_eq!(load(500), 0);
}

#[test]
fn a_dead_worker_keeps_its_replicas_for_the_grace_and_placement_looks_when_it_is_over() {
    let mut story = Story::new();
    story.hear(0, 1, report(1, ReplicaState::Ready));
    story.tick(3_100);
    let keeps = |story: &Story, ms| {
        let (_, worker) = story.live.iter().next().unwrap();
        story.live.keeps_replicas(worker, story.at(ms))
    };
    assert!(!story.tick(9_900));
    assert!(keeps(&story, 9_900));
    assert!(story.tick(10_100), "placement is looked at again");
    assert!(!keeps(&story, 10_100));
}

#[test]
fn while_a_coordinator_stands_still_nobody_s_silence_grows() {
    let mut story = Story::new();
    story.live.tick(story.at(0));
    assert!(story.live.is_settling(story.at(0)));
    story.hear(0, 1, report(1, ReplicaState::Ready));
    for ms in (250..=500).step_by(250) {
        story.live.tick(story.at(ms));
    }
    // Frozen for a minute: what the worker said meanwhile has not been read yet.
    assert!(!story.live.tick(story.at(60_500)));
    assert_eq!(story.liveness(), Some(Liveness::Alive));
    assert!(story.live.is_settling(story.at(60_600)));
    story.live.tick(story.at(61_000));
    assert!(story.live.tick(story.at(61_750)), "silent since");
    assert_eq!(story.liveness(), Some(Liveness::Suspect));
    for ms in (62_000..=70_500).step_by(250) {
        story.live.tick(story.at(ms));
    }
    let (_, worker) = story.live.iter().next().unwrap();
    // It may not know of workers that have come since; of this one it knows.
    assert!(story.live.is_settling(story.at(70_400)));
    assert!(!story.live.is_settling(story.at(70_500)));
    assert!(story.live.keeps_replicas(worker, story.at(69_900)));
    // Frozen again, after its death: whoever looks before the next tick does not jump to
    // conclusions either.
    assert!(!story.live.keeps_replicas(worker, story.at(70_100)));
    story.hear(70_600, 1, report(1, ReplicaState::Ready));
    assert!(story.live.lost(&self::worker(), 1).is_some());
    let (_, worker) = story.live.iter().next().unwrap();
    assert!(story.live.keeps_replicas(worker, story.at(500_000)));
}

#[test]
fn who_was_dead_before_a_coordinator_stood_still_may_have_come_back_in_the_meantime() {
    let mut story = Story::new();
    story.hear(0, 1, report(1, ReplicaState::Ready));
    let mut tick_all = |from: u64, to: u64| {
        for ms in (from..=to).step_by(250) {
            story.live.tick(story.at(ms));
        }
        let (_, worker) = story.live.iter().next().unwrap();
        story.live.keeps_replicas(worker, story.at(to))
    };
    assert!(!tick_all(0, 15_000), "it is long gone");
    assert!(tick_all(27_000, 36_500), "as far as anybody knows here");
    assert!(!tick_all(36_750, 37_250));
    // Another one may have come, of whom nothing was ever heard here.
    assert!(!story.live.is_settling(story.at(37_250)));
    story.live.tick(story.at(49_000));
    assert!(story.live.is_settling(story.at(49_000)));
}
