//! Coordinators whose directories were wiped, put back from an older copy, or started twice: none
//! takes part again under its id, and nothing that was acknowledged is lost.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use serde_json::json;
use volley_client::ClientError;
use volley_tests::cluster::Cluster;
use volley_tests::{process, until};

fn data(cluster: &Cluster, coordinator: usize) -> PathBuf {
    cluster
        .folder()
        .join(&cluster.coordinators[coordinator].name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Registers models through a coordinator, each until it is acknowledged.
async fn write(cluster: &Cluster, through: usize, names: &[String]) {
    let client = cluster.client(through);
    for name in names {
        until("the write is acknowledged", || async {
            match client.register_text_model(name).await {
                Ok(_) => Some(()),
                // It was, and its acknowledgement was lost.
                Err(ClientError::Refused { status: 409, .. }) => Some(()),
                Err(_) => None,
            }
        })
        .await;
    }
}

fn names(prefix: &str) -> Vec<String> {
    (0..10).map(|index| format!("{prefix}-{index}")).collect()
}

async fn has_all(cluster: &Cluster, coordinator: usize, names: &[String]) {
    cluster
        .wait(coordinator, "every acknowledged write is there", |status| {
            let there: BTreeSet<_> = status.models.iter().map(|model| &model.id).collect();
            names.iter().all(|name| there.contains(name))
        })
        .await;
}

/// Waits until a coordinator has ended by itself; gives what it wrote.
async fn refuses(cluster: &mut Cluster, coordinator: usize) -> String {
    let node = &mut cluster.coordinators[coordinator];
    let mut process = node.process.take().expect("it was started");
    let ended = process.ended().await;
    let output = process.output();
    assert!(!ended.success(), "it ends with an error: {output}");
    output
}

/// Starts another coordinator in the place of one, and gives the command that it has printed.
async fn obey(cluster: &mut Cluster, (lost, at): (usize, usize), output: &str) -> usize {
    let newcomer =
        cluster.add_coordinator_with(|_, _| "[cluster]\nawait_invitation = true\n".to_owned());
    // At the address of the one that was lost, as the pod of a stateful set is.
    let internal = cluster.coordinators[lost].internal.clone();
    let own = std::mem::replace(
        &mut cluster.coordinators[newcomer].internal,
        internal.clone(),
    );
    cluster.configure(newcomer, |text| text.replace(&own, &internal));
    cluster.coordinators[newcomer].start();
    let command = output.rsplit("run `volley ").next().unwrap();
    let command = command.split('`').next().unwrap();
    let url = format!("http://{}", cluster.coordinators[at].http);
    let words: Vec<_> = ["--url", &url]
        .into_iter()
        .chain(command.split(' '))
        .collect();
    until("it is replaced", || async {
        let (_, done) = process::run(&words).await;
        done.then_some(())
    })
    .await;
    newcomer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_coordinator_and_a_stale_one_do_not_elect_a_leader_without_what_was_acknowledged() {
    let mut cluster = Cluster::start(3, 0).await;
    let early = names("early");
    write(&cluster, 0, &early[..1]).await;
    for index in 0..3 {
        has_all(&cluster, index, &early[..1]).await;
    }
    let (stale, wiped, whole) = (0, 1, 2);
    cluster.coordinators[stale].kill().await;
    let acknowledged = names("acknowledged");
    write(&cluster, whole, &acknowledged).await;
    cluster.coordinators[wiped].kill().await;
    cluster.coordinators[whole].kill().await;

    std::fs::remove_dir_all(data(&cluster, wiped)).unwrap();
    cluster.coordinators[wiped].start();
    cluster.coordinators[stale].start();
    let output = refuses(&mut cluster, wiped).await;
    let address = cluster.coordinators[wiped].internal.clone();
    let command = format!("`volley cluster replace 2 4 {address}`");
    assert!(output.contains(&command), "{output}");
    // Nor does it at its next start.
    cluster.coordinators[wiped].start();
    let output = refuses(&mut cluster, wiped).await;
    assert!(output.contains(&command), "{output}");
    let refused = cluster.client(stale).register_text_model("lost").await;
    assert!(
        matches!(refused, Err(ClientError::Refused { status: 503, .. })),
        "{refused:?}"
    );

    // With the one that has everything, all goes on.
    cluster.coordinators[whole].start();
    cluster.wait_for_leader().await;
    has_all(&cluster, stale, &acknowledged).await;
    // While there is a leader too, the wiped one ends, and harms nobody.
    cluster.coordinators[wiped].start();
    let output = refuses(&mut cluster, wiped).await;
    assert!(output.contains(&command), "{output}");
    let newcomer = obey(&mut cluster, (wiped, whole), &output).await;
    has_all(&cluster, newcomer, &acknowledged).await;
    cluster
        .wait(newcomer, "the wiped one is out", |status| {
            let voters = status.coordinators.iter().filter(|node| node.voter);
            let voters: BTreeSet<_> = voters.map(|node| node.id).collect();
            voters == BTreeSet::from([1, 3, 4])
        })
        .await;
    write(&cluster, newcomer, &names("after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_a_directory_is_refused_and_so_is_a_second_process_over_one() {
    let mut cluster = Cluster::start(3, 0).await;
    let struck = 1;
    cluster.coordinators[struck].stop().await;
    let copied = cluster.folder().join("copied");
    copy(&data(&cluster, struck), &copied);
    cluster.coordinators[struck].start();
    cluster.wait_for_leader().await;
    let acknowledged = names("acknowledged");
    write(&cluster, struck, &acknowledged).await;

    // A second process, at another address.
    let second = cluster.add_coordinator();
    let clone = &cluster.coordinators[second];
    let text = std::fs::read_to_string(&cluster.coordinators[struck].config).unwrap();
    let text = text
        .replace(&cluster.coordinators[struck].http, &clone.http)
        .replace(
            &format!("internal = {:?}", cluster.coordinators[struck].internal),
            &format!("internal = {:?}", clone.internal),
        )
        .replace(
            &format!("2 = {:?}", cluster.coordinators[struck].internal),
            &format!("2 = {:?}", clone.internal),
        )
        .replace("coordinator-2", "coordinator-4");
    std::fs::write(&clone.config, text).unwrap();
    copy(&copied, &data(&cluster, second));
    cluster.coordinators[second].start();
    let output = refuses(&mut cluster, second).await;
    assert!(
        output.contains("another process runs as coordinator 2"),
        "{output}"
    );
    let original = cluster.coordinators[struck].process.as_mut().unwrap();
    assert!(original.runs(), "the first one goes on");
    write(&cluster, struck, &names("beside")).await;

    // The same copy in the place of the first.
    cluster.coordinators[struck].kill().await;
    std::fs::remove_dir_all(data(&cluster, struck)).unwrap();
    copy(&copied, &data(&cluster, struck));
    cluster.coordinators[struck].start();
    let output = refuses(&mut cluster, struck).await;
    assert!(output.contains("is older than its last vote"), "{output}");
    assert!(output.contains("volley cluster replace 2 "), "{output}");
    for index in [0, 2] {
        has_all(&cluster, index, &acknowledged).await;
    }
    write(&cluster, 0, &names("after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_begins_in_any_order_and_only_once_all_its_first_members_are_there() {
    let mut cluster = Cluster::new(3, 0);
    for index in [2, 0] {
        cluster.coordinators[index].start();
    }
    let said = "coordinator 2 does not answer";
    for index in [0, 2] {
        until("it waits for the third", || async {
            let process = cluster.coordinators[index].process.as_ref()?;
            process.output().contains(said).then_some(())
        })
        .await;
    }
    let ready = cluster.client(0).ready().await;
    assert!(!ready.unwrap_or_default(), "nothing was formed");
    cluster.coordinators[1].start();
    cluster.wait_for_leader().await;
    write(&cluster, 1, &names("first")).await;
    for index in 0..3 {
        has_all(&cluster, index, &names("first")).await;
    }
}

/// Has the first coordinator run so that writes beyond a limit fail; they would end its process.
fn outlive_full_disks(cluster: &mut Cluster) {
    let start = cluster.folder().join("start.sh");
    let script = format!(
        "#!/bin/sh\ntrap '' XFSZ\nexec {} \"$@\"\n",
        process::binary().display()
    );
    std::fs::write(&start, script).unwrap();
    std::fs::set_permissions(&start, std::fs::Permissions::from_mode(0o755)).unwrap();
    cluster.coordinators[0].setting.program = Some(start);
}

/// From now on its disk takes nothing more of a process's database.
fn fill_disk(process: &process::Process) {
    let pid = process.pid().unwrap().to_string();
    let limited = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--fsize=65536"])
        .status();
    assert!(limited.unwrap().success());
}

/// The disk takes nothing more of the database: as where it is full or gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_whose_disk_fails_leaves_service_and_ends_with_the_reason() {
    let mut cluster = Cluster::new(1, 0);
    outlive_full_disks(&mut cluster);
    cluster.run().await;
    write(&cluster, 0, &names("kept")).await;
    let node = &mut cluster.coordinators[0];
    let (http, name) = (node.http.clone(), node.name.clone());
    let mut process = node.process.take().unwrap();
    fill_disk(&process);
    // Nothing is acknowledged that is not on the disk.
    let client = volley_tests::cluster::client(&[&http]);
    let mut refused = Vec::new();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        loop {
            let model = format!("lost-{}", refused.len());
            tokio::select! {
                ended = process.ended() => break ended,
                written = client.register_text_model(&model) => {
                    refused.push(written.map(drop));
                }
            }
        }
    });
    let ended = ended.await.unwrap();
    let output = process.output();
    assert_eq!(ended.code(), Some(1), "{output}");
    let noted = std::fs::read_to_string(cluster.folder().join(name).join("last-failure"));
    let noted = noted.unwrap();
    let reason = noted.lines().nth(1).unwrap();
    assert!(output.contains(reason), "{reason}: {output}");
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
}

/// The status of a GET on a connection of its own; `None` where nobody answers.
async fn status_of(http: &reqwest::Client, url: &str, key: Option<&str>) -> Option<u16> {
    let request = http.get(url);
    let request = match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    };
    let answer = request.send().await.ok()?;
    Some(answer.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_whose_consensus_has_failed_lets_nobody_in_until_its_process_ends() {
    let mut cluster = Cluster::new(1, 1);
    let (bootstrap, made) = process::run(&["key", "bootstrap"]).await;
    assert!(made, "{bootstrap}");
    let file = cluster.folder().join("bootstrap.key");
    std::fs::write(&file, &bootstrap).unwrap();
    cluster.configure(0, |text| {
        format!("{text}\n[security]\nbootstrap_key_file = {file:?}\n")
    });
    cluster.key = Some(bootstrap.trim().to_owned());
    outlive_full_disks(&mut cluster);
    cluster.run().await;
    let client = cluster.client(0);
    let mut keys = Vec::new();
    for name in ["good", "revoked"] {
        let made = json!({ "name": name, "role": "predict" });
        let made = client.create_key(&made).await.unwrap();
        keys.push(made["key"].as_str().unwrap().to_owned());
        if name == "revoked" {
            let id = made["id"].as_str().unwrap();
            client.revoke_key(id).await.unwrap();
        }
    }
    // A stream that goes on for a while keeps the process from ending at once.
    let slow = json!({ "name": "slow", "function_name": "fake",
                       "parameters": { "chunks": 1000, "delay_ms": 50, "text": "on" } });
    cluster.deploy(&slow, 1).await;
    let running = client.stream("slow", &json!({ "prompt": "x" })).await;
    let mut running = running.unwrap();
    assert!(running.next().await.unwrap().is_ok());

    let http = reqwest::Client::builder().pool_max_idle_per_host(0);
    let http = http.build().unwrap();
    let base = format!("http://{}", cluster.coordinators[0].http);
    let (ready, models) = (
        format!("{base}/_volley/health/ready"),
        format!("{base}/v1/models"),
    );
    let (good, revoked) = (keys[0].as_str(), keys[1].as_str());
    assert_eq!(status_of(&http, &ready, None).await, Some(200));
    assert_eq!(status_of(&http, &models, Some(good)).await, Some(200));
    assert_eq!(status_of(&http, &models, Some(revoked)).await, Some(401));

    let mut process = cluster.coordinators[0].process.take().unwrap();
    fill_disk(&process);
    // Whoever hears that a write failed has heard it after consensus did.
    for turn in 0.. {
        if client
            .register_text_model(&format!("m{turn}"))
            .await
            .is_err()
        {
            break;
        }
    }
    let mut seen = [0; 3];
    while process.runs() {
        let answers = [
            status_of(&http, &ready, None).await,
            status_of(&http, &models, Some(good)).await,
            status_of(&http, &models, Some(revoked)).await,
        ];
        let expected: [&[u16]; 3] = [&[503], &[503], &[503, 401]];
        for (place, status) in answers.into_iter().enumerate() {
            if let Some(status) = status {
                assert!(expected[place].contains(&status), "{place}: {status}");
                seen[place] += 1;
            }
        }
    }
    eprintln!("answers of the failed coordinator: {seen:?}");
    let ended = process.ended().await;
    assert_eq!(ended.code(), Some(1), "{}", process.output());
}
