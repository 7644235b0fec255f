//! Coordinators that come, go, die and are replaced, under writers; and what is left of a cluster
//! that was lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use volley_client::{Client, Status};
use volley_tests::bucket::Bucket;
use volley_tests::cluster::{Cluster, Node};
use volley_tests::{process, until};

use crate::aliases::wait_for;

/// What the writers saw.
#[derive(Default)]
struct Tally {
    acknowledged: Vec<String>,
    failed: usize,
    slowest: Duration,
}

/// Registers models one after the other through whoever is in `clients`, until told to stop.
struct Writers {
    clients: Arc<Mutex<Vec<Client>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Tally>>,
}

impl Writers {
    fn start(cluster: &Cluster, count: usize) -> Self {
        let clients = Arc::new(Mutex::new(vec![cluster.client(0)]));
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..count).map(|writer| {
            let (clients, stop) = (clients.clone(), stop.clone());
            tokio::spawn(async move {
                let mut tally = Tally::default();
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let client = {
                        let clients = clients.lock().unwrap();
                        clients[(writer + turn) % clients.len()].clone()
                    };
                    let name = format!("w{writer}-{turn}");
                    let began = Instant::now();
                    match client.register_text_model(&name).await {
                        Ok(_) => {
                            tally.acknowledged.push(name);
                            tally.slowest = tally.slowest.max(began.elapsed());
                        }
                        Err(_) => tally.failed += 1,
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tally
            })
        });
        Self {
            tasks: tasks.collect(),
            clients,
            stop,
        }
    }

    /// From now on, writes go to these coordinators.
    fn use_coordinators(&self, cluster: &Cluster, indices: &[usize]) {
        *self.clients.lock().unwrap() =
            indices.iter().map(|index| cluster.client(*index)).collect();
    }

    async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        for task in self.tasks {
            let tally = task.await.unwrap();
            all.acknowledged.extend(tally.acknowledged);
            all.failed += tally.failed;
            all.slowest = all.slowest.max(tally.slowest);
        }
        all
    }
}

fn voters(status: &Status) -> BTreeSet<u64> {
    let voters = status.coordinators.iter().filter(|node| node.voter);
    voters.map(|node| node.id).collect()
}

async fn volley(node: &Node, arguments: &[&str]) -> (String, bool) {
    let url = format!("http://{}", node.http);
    let arguments: Vec<_> = ["--url", url.as_str()]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    process::run(&arguments).await
}

/// Whether a refusal says that it is one of the moment.
fn is_to_be_repeated(text: &str) -> bool {
    let moments = [
        "no leader",
        "not changed in time",
        "accepted the leadership",
    ];
    moments.iter().any(|moment| text.contains(moment))
}

/// Gives a command until it is taken, as an operator does who is told that there is no leader.
async fn insist(node: &Node, arguments: &[&str]) -> String {
    until("the command is taken", || async {
        let (text, ok) = volley(node, arguments).await;
        assert!(ok || is_to_be_repeated(&text), "{text}");
        ok.then_some(text)
    })
    .await
}

async fn wait_for_voters(cluster: &Cluster, at: usize, ids: &[u64]) {
    let wanted: BTreeSet<_> = ids.iter().copied().collect();
    cluster
        .wait(at, &format!("the voters are {ids:?}"), |status| {
            voters(status) == wanted
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_grows_to_five_loses_one_and_lets_its_leader_go_and_no_write_is_lost() {
    let mut cluster = Cluster::start(1, 0).await;
    let writers = Writers::start(&cluster, 3);
    for grown in [3, 5] {
        while cluster.coordinators.len() < grown {
            let index = cluster.add_coordinator();
            cluster.coordinators[index].start();
            let ids: Vec<u64> = (1..=index as u64 + 1).collect();
            wait_for_voters(&cluster, 0, &ids).await;
            wait_for_voters(&cluster, index, &ids).await;
        }
        let all: Vec<_> = (0..grown).collect();
        writers.use_coordinators(&cluster, &all);
    }
    // Under writers, with five on one machine, there may be no leader for a moment.
    until(
        "five members are shown, one of them as the leader",
        || async {
            let (text, ok) = volley(&cluster.coordinators[4], &["cluster", "members"]).await;
            let all = text.matches("voter").count() == 4 && text.contains("leader");
            (ok && all).then_some(())
        },
    )
    .await;

    // One dies, and a new id takes its place.
    let leader = cluster.wait_for_leader().await;
    let dead = (leader + 1) % 5;
    writers.use_coordinators(&cluster, &[leader, (leader + 2) % 5]);
    cluster.coordinators[dead].kill().await;
    let sixth =
        cluster.add_coordinator_with(|_, _| "[cluster]\nawait_invitation = true\n".to_owned());
    cluster.coordinators[sixth].start();
    let (old, address) = (
        (dead + 1).to_string(),
        cluster.coordinators[sixth].internal.clone(),
    );
    until("the newcomer is there", || async {
        let arguments = ["cluster", "replace", &old, "6", &address];
        let (text, ok) = volley(&cluster.coordinators[leader], &arguments).await;
        assert!(ok || is_to_be_repeated(&text), "{text}");
        ok.then_some(())
    })
    .await;
    let ids: Vec<u64> = (1..=6).filter(|id| *id != dead as u64 + 1).collect();
    wait_for_voters(&cluster, sixth, &ids).await;

    // The leader leaves.
    let leader = cluster.wait_for_leader().await;
    let others: Vec<_> = (0..6)
        .filter(|index| ![leader, dead].contains(index))
        .collect();
    writers.use_coordinators(&cluster, &others);
    let id = (leader + 1).to_string();
    let asked = &cluster.coordinators[others[0]];
    insist(asked, &["cluster", "remove", &id]).await;
    cluster.coordinators[leader].stop().await;
    let asked = &cluster.coordinators[others[0]];
    let text = insist(asked, &["cluster", "transfer-leader"]).await;
    assert!(text.contains("is now the leader"), "{text}");

    let tally = writers.stop().await;
    for index in others {
        let ids: Vec<u64> = (1..=6)
            .filter(|id| ![dead, leader].contains(&(*id as usize - 1)))
            .collect();
        wait_for_voters(&cluster, index, &ids).await;
        until("every acknowledged write is there", || async {
            let status = cluster.client(index).status().await.ok()?;
            let there: BTreeSet<_> = status.models.iter().map(|model| &model.id).collect();
            tally
                .acknowledged
                .iter()
                .all(|name| there.contains(name))
                .then_some(())
        })
        .await;
    }
    let (count, failed) = (tally.acknowledged.len(), tally.failed);
    eprintln!(
        "{count} writes acknowledged, 0 lost, {failed} refused, slowest {:?}",
        tally.slowest
    );
    assert!(50 < count, "too few writes to tell: {count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_cluster_comes_back_from_a_backup_or_from_one_survivor() {
    let mut cluster = Cluster::start(3, 0).await;
    let client = cluster.client(0);
    client.register_text_model("kept").await.unwrap();
    let connector = serde_json::json!({
        "name": "c", "provider": "openai", "url": "http://127.0.0.1:9/v1/chat/completions",
        "model": "m", "credential": "env:VOLLEY_TEST_KEY",
    });
    client.create_connector(&connector).await.unwrap();
    // A backup holds what the coordinator that is asked has.
    let written = client.status().await.unwrap().registry_revision;
    wait_for(&cluster, 1, written).await;
    let file = cluster.folder().join("registry.backup");
    let path = file.to_string_lossy().into_owned();
    let node = &cluster.coordinators[1];
    let (text, ok) = volley(node, &["backup", &path]).await;
    assert!(ok && text.contains("1 models, 1 connectors"), "{text}");
    let (text, ok) = volley(node, &["backup", &path]).await;
    assert!(!ok && text.contains("--overwrite"), "{text}");
    let url = format!("file://{path}.again");
    let (text, ok) = volley(node, &["backup", &url]).await;
    assert!(ok, "{text}");
    let (text, ok) = volley(node, &["restore", "--check", &url]).await;
    assert!(ok && text.contains("whole: revision"), "{text}");
    let bytes = std::fs::read(&file).unwrap();
    let canary = b"sk-volley-test";
    assert!(!bytes.windows(canary.len()).any(|window| window == canary));
    client.register_text_model("later").await.unwrap();
    for index in 0..3 {
        cluster
            .wait(index, "both are there", |status| status.models.len() == 2)
            .await;
    }

    // From the backup: what was registered after it is not there.
    let alone = |id: usize, address: &str| format!("[cluster.bootstrap]\n{id} = \"{address}\"\n");
    let restored = cluster.add_coordinator_with(alone);
    let config = cluster.coordinators[restored]
        .config
        .to_string_lossy()
        .into_owned();
    let (text, ok) = process::run(&["restore", &path, "--config", &config]).await;
    assert!(ok && text.contains("restored revision"), "{text}");
    let (text, ok) = process::run(&["restore", &path, "--config", &config]).await;
    assert!(!ok && text.contains("never overwritten"), "{text}");
    cluster.coordinators[restored].start();
    let models = |names: &'static [&'static str]| {
        move |status: &Status| {
            status.node.role == "leader" && status.models.iter().map(|model| &model.id).eq(names)
        }
    };
    cluster
        .wait(restored, "the backup's models", models(&["kept"]))
        .await;
    cluster
        .client(restored)
        .register_text_model("on")
        .await
        .unwrap();

    // From a survivor: everything that it had.
    let data = cluster.folder().join(&cluster.coordinators[2].name);
    let data = data.to_string_lossy().into_owned();
    let recovered = cluster.add_coordinator_with(alone);
    let config = cluster.coordinators[recovered]
        .config
        .to_string_lossy()
        .into_owned();
    let lost = "--the-others-are-lost";
    let (text, ok) = process::run(&["recover", &data, "--config", &config, lost]).await;
    assert!(
        !ok && text.contains("still run"),
        "a running node is not read: {text}"
    );
    for index in 0..3 {
        cluster.coordinators[index].kill().await;
    }
    let (text, ok) = process::run(&["recover", &data, "--config", &config]).await;
    assert!(!ok && text.contains("ENDS THE OLD CLUSTER"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    let (text, ok) = process::run(&["recover", &data, "--config", &config, lost]).await;
    assert!(ok && text.contains("recovered."), "{text}");
    cluster.coordinators[recovered].start();
    cluster
        .wait(
            recovered,
            "the survivor's models",
            models(&["kept", "later"]),
        )
        .await;
    cluster
        .client(recovered)
        .register_text_model("on")
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_in_a_bucket_becomes_a_cluster() {
    let bucket = Bucket::start().await;
    let mut cluster = Cluster::start(1, 0).await;
    let client = cluster.client(0);
    client.register_text_model("kept").await.unwrap();
    let url = format!("http://{}", cluster.coordinators[0].http);
    let target = "s3://backups/volley/registry.backup";
    let volley = async |arguments: &[&str]| {
        let arguments = [&["--url", url.as_str()], arguments].concat();
        process::run_with(&arguments, bucket.environment()).await
    };
    let (text, ok) = volley(&["backup", target]).await;
    assert!(ok && text.contains("1 models"), "{text}");
    client.register_text_model("later").await.unwrap();
    let (text, ok) = volley(&["backup", target]).await;
    assert!(!ok && text.contains("already"), "{text}");
    assert_eq!(bucket.objects.lock().unwrap().len(), 1);
    let (text, ok) = volley(&["restore", "--check", target]).await;
    assert!(ok && text.contains("whole: revision 1"), "{text}");
    let (text, ok) = volley(&["backup", target, "--overwrite"]).await;
    assert!(ok && text.contains("2 models"), "{text}");
    let (text, ok) = volley(&["restore", "--check", "s3://backups/volley/none"]).await;
    assert!(!ok, "{text}");

    let alone = |id: usize, address: &str| format!("[cluster.bootstrap]\n{id} = \"{address}\"\n");
    let restored = cluster.add_coordinator_with(alone);
    let config = cluster.coordinators[restored]
        .config
        .to_string_lossy()
        .into_owned();
    let (text, ok) = volley(&["restore", target, "--config", &config]).await;
    assert!(ok && text.contains("restored revision"), "{text}");
    cluster.coordinators[restored].start();
    cluster
        .wait(restored, "both models", |status| status.models.len() == 2)
        .await;
}
