use super::*;

#[test]
fn counts_and_durations_are_read_and_percentiles_lie_in_their_buckets() {
    let text = "# TYPE volley_requests counter\n\
        volley_requests_total{model=\"m\",code=\"ok\"} 8\n\
        volley_requests_total{model=\"m\",code=\"overloaded\"} 2\n\
        volley_active_streams{model=\"m\"} 3\n\
        volley_request_duration_seconds_sum{model=\"m\"} 0.5\n\
        volley_request_duration_seconds_count{model=\"m\"} 10\n\
        volley_request_duration_seconds_bucket{le=\"0.01\",model=\"m\"} 5\n\
        volley_request_duration_seconds_bucket{le=\"0.1\",model=\"m\"} 9\n\
        volley_request_duration_seconds_bucket{le=\"+Inf\",model=\"m\"} 10\n\
        volley_workers{liveness=\"alive\"} 1\n# EOF\n";
    let all = read(text);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["m"]);
    let figures = &all["m"];
    assert_eq!(
        (figures.requests, figures.failures, figures.active),
        (10, 2, 3)
    );
    let told = figures.latency().unwrap();
    assert_eq!(
        (&told["count"], &told["average"]),
        (&json!(10), &json!(50.0))
    );
    assert_eq!(told["p50"], json!(10.0));
    assert_eq!(told["p90"], json!(100.0));
    assert_eq!(told["p99"], json!(100.0), "no more is known");
    assert_eq!(Figures::default().latency(), None);
}
