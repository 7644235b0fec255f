use super::*;

#[tokio::test]
async fn calls_over_a_limit_wait_and_are_refused_when_that_takes_too_long() {
    let limits = ConnectorLimits::new(&ConnectorPolicy {
        max_concurrent: Some(1),
        max_per_minute: Some(600),
        ..ConnectorPolicy::default()
    });
    let short = Duration::from_millis(20);
    let permit = limits.permit(short).await.unwrap();
    let refused = limits.permit(short).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert!(refused.retry_after.is_some());
    drop(permit);
    assert!(limits.permit(short).await.unwrap().is_some());

    for _ in 0..600 {
        limits.turn(Duration::ZERO).await.unwrap();
    }
    let refused = limits.turn(Duration::ZERO).await.unwrap_err();
    let after = refused.retry_after.unwrap();
    assert!(after <= Duration::from_millis(100), "{after:?}");
    limits.turn(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn without_limits_there_is_nothing_to_wait_for() {
    let limits = ConnectorLimits::new(&ConnectorPolicy::default());
    assert!(limits.permit(Duration::ZERO).await.unwrap().is_none());
    limits.turn(Duration::ZERO).await.unwrap();
}
