//! Acknowledged writes are seen through every coordinator.

use tokio::time::Instant;

use crate::nodes::{PATIENCE, Three, has, register};

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_write_is_applied_by_every_coordinator() {
    let three = Three::start().await;
    for turn in 0..60 {
        let name = format!("turn-{turn}");
        let through = &three.nodes[turn % 3].cluster;
        through.write_visibly(register(&name)).await.unwrap();
        for (index, node) in three.nodes.iter().enumerate() {
            let state = node.cluster.registry().borrow().clone();
            assert!(has(&state, &name), "coordinator {index} lacks '{name}'");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_down_delays_writes_for_a_bounded_time() {
    let mut three = Three::start().await;
    three.nodes.remove(2).stop().await;
    let by = Instant::now() + PATIENCE;
    let mut number = 0;
    let took = loop {
        let begin = Instant::now();
        number += 1;
        let command = register(&format!("model-{number}"));
        // There may be no leader for a moment.
        match three.nodes[0].cluster.write_visibly(command).await {
            Ok(_) => break begin.elapsed(),
            Err(error) => assert!(begin < by, "{error:?}"),
        }
    };
    assert!(took < PATIENCE / 2, "{took:?}");
    let name = format!("model-{number}");
    let state = three.nodes[1].cluster.registry().borrow().clone();
    assert!(has(&state, &name), "the coordinator that is up lacks it");
}
