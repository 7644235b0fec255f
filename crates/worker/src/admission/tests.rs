use futures::FutureExt;

use super::*;

fn visit<'a>(tenant: &'a TenantId, priority: Priority) -> AdmissionRequest<'a> {
    AdmissionRequest {
        tenant,
        priority,
        deadline: None,
    }
}

fn acquire(queue: &AdmissionQueue, priority: Priority) -> Result<QueuedPermit, PredictError> {
    queue.acquire(visit(&TenantId::default(), priority))
}

fn permit(ticket: &mut QueuedPermit) -> Option<Permit> {
    ticket.now_or_never().map(Result::unwrap)
}

#[test]
fn the_urgent_go_first_the_full_queue_refuses_and_leaving_makes_room() {
    let queue = AdmissionQueue::new(1, 3);
    let running = permit(&mut acquire(&queue, Priority::Normal).unwrap()).unwrap();
    let mut low = acquire(&queue, Priority::Low).unwrap();
    let mut normal = acquire(&queue, Priority::Normal).unwrap();
    let mut high = acquire(&queue, Priority::High).unwrap();
    let refused = acquire(&queue, Priority::Low).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert!(refused.retry_after.is_some());
    assert_eq!((queue.running(), queue.waiting()), (1, 3));

    drop(running);
    assert!((&mut low).now_or_never().is_none() && (&mut normal).now_or_never().is_none());
    let running = permit(&mut high).expect("the urgent one goes first");
    drop(normal);
    assert_eq!(queue.waiting(), 1);
    drop(running);
    let running = permit(&mut low).expect("the one that left is passed over");
    drop(running);
    assert_eq!((queue.running(), queue.waiting()), (0, 0));
}

#[test]
fn a_permit_that_nobody_takes_goes_on_to_the_next() {
    let queue = AdmissionQueue::new(1, 8);
    let running = permit(&mut acquire(&queue, Priority::Normal).unwrap()).unwrap();
    let gone = acquire(&queue, Priority::Normal).unwrap();
    let mut stays = acquire(&queue, Priority::Normal).unwrap();
    drop(running);
    // Its permit was sent and never received.
    drop(gone);
    assert!((&mut stays).now_or_never().is_some());
    assert_eq!(queue.running(), 0);
}

#[test]
fn tenants_take_turns_whatever_each_has_waiting() {
    let queue = AdmissionQueue::new(1, 100);
    let (loud, quiet) = (
        TenantId::new("loud").unwrap(),
        TenantId::new("quiet").unwrap(),
    );
    let mut running = permit(&mut acquire(&queue, Priority::Normal).unwrap());
    let mut waiting: Vec<_> = (0..20)
        .map(|_| {
            (
                &loud,
                queue.acquire(visit(&loud, Priority::Normal)).unwrap(),
            )
        })
        .collect();
    let late = (0..5).map(|_| {
        (
            &quiet,
            queue.acquire(visit(&quiet, Priority::Normal)).unwrap(),
        )
    });
    waiting.extend(late);
    let mut order = Vec::new();
    while running.take().is_some() {
        for (tenant, ticket) in &mut waiting {
            if let Some(permit) = permit(ticket) {
                order.push(tenant.as_str());
                running = Some(permit);
            }
        }
        waiting.retain(|(_, ticket)| !ticket.answer.is_terminated());
    }
    assert_eq!(order.len(), 25);
    let first: Vec<_> = order[..10].iter().filter(|who| **who == "quiet").collect();
    assert_eq!(first.len(), 5, "{order:?}");
}

#[test]
fn a_full_queue_makes_room_for_the_urgent_and_for_those_with_fewer_waiting() {
    let queue = AdmissionQueue::new(1, 4);
    let (loud, quiet) = (
        TenantId::new("loud").unwrap(),
        TenantId::new("quiet").unwrap(),
    );
    let _running = permit(&mut acquire(&queue, Priority::Normal).unwrap());
    let mut flood: Vec<_> = (0..4)
        .map(|_| queue.acquire(visit(&loud, Priority::Normal)).unwrap())
        .collect();
    assert!(queue.acquire(visit(&loud, Priority::Normal)).is_err());
    let _first = queue.acquire(visit(&quiet, Priority::Normal)).unwrap();
    let _second = queue.acquire(visit(&quiet, Priority::Normal)).unwrap();
    assert!(
        queue.acquire(visit(&quiet, Priority::Normal)).is_err(),
        "both have two"
    );
    for out in flood.drain(2..) {
        let refused = out.now_or_never().unwrap().unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
    }
    let _urgent = queue.acquire(visit(&loud, Priority::High)).unwrap();
    assert!(queue.acquire(visit(&quiet, Priority::Low)).is_err());
    assert_eq!(queue.waiting(), 4);
}

#[test]
fn what_cannot_begin_in_time_is_refused() {
    let queue = AdmissionQueue::new(2, 100);
    for _ in 0..100 {
        queue.0.state.lock().service.observe(Duration::from_secs(4));
    }
    let tenant = TenantId::default();
    let by = |seconds| AdmissionRequest {
        deadline: Some(Deadline::after(
            Instant::now(),
            Duration::from_secs(seconds),
        )),
        ..visit(&tenant, Priority::Normal)
    };
    let _running: Vec<_> = (0..2).map(|_| queue.acquire(by(1)).unwrap()).collect();
    let _queued: Vec<_> = (0..3).map(|_| queue.acquire(by(60)).unwrap()).collect();
    // Three before it and itself, two at a time, four seconds each.
    let refused = queue.acquire(by(7)).unwrap_err();
    assert!(refused.message.contains("8000 ms"), "{}", refused.message);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(8)));
    let _patient = queue.acquire(by(9)).unwrap();
    // The urgent one has nobody before it.
    let urgent = AdmissionRequest {
        priority: Priority::High,
        ..by(3)
    };
    let _urgent = queue.acquire(urgent).unwrap();
}

proptest::proptest! {
    #[test]
    fn never_more_than_capacity_and_nothing_leaks(
        steps in proptest::collection::vec((0_u8..4, 0_usize..8), 1..200)
    ) {
        let tenants = ["a", "b", "c"].map(|name| TenantId::new(name).unwrap());
        let priorities = [Priority::Low, Priority::Normal, Priority::High];
        let queue = AdmissionQueue::new(3, 4);
        let (mut tickets, mut permits) = (Vec::new(), Vec::new());
        for (step, index) in steps {
            match step {
                0 | 1 => {
                    let visitor = visit(&tenants[index % 3], priorities[index / 3]);
                    tickets.extend(queue.acquire(visitor).ok());
                }
                2 if index < tickets.len() => drop(tickets.remove(index)),
                3 if index < permits.len() => drop(permits.remove(index)),
                _ => {}
            }
            let mut waiting = Vec::new();
            for mut ticket in tickets.drain(..) {
                match (&mut ticket).now_or_never() {
                    Some(Ok(permit)) => permits.push(permit),
                    // It had to yield.
                    Some(Err(_)) => {}
                    None => waiting.push(ticket),
                }
            }
            tickets = waiting;
            proptest::prop_assert!(permits.len() <= 3);
            proptest::prop_assert_eq!(queue.running(), permits.len());
            proptest::prop_assert_eq!(queue.waiting(), tickets.len());
            proptest::prop_assert!(tickets.is_empty() || permits.len() == 3);
        }
        drop((tickets, permits));
        proptest::prop_assert_eq!((queue.running(), queue.waiting()), (0, 0));
    }
}
