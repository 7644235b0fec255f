use proptest::prelude::*;

use super::*;

fn text(requests: u32, failed: u32, fast: u32) -> String {
    let all = requests + failed;
    format!(
        "# TYPE volley_requests counter\n\
         volley_requests_total{{model=\"m\",code=\"ok\"}} {requests}\n\
         volley_requests_total{{model=\"m\",code=\"overloaded\"}} {failed}\n\
         volley_chunks_total{{model=\"m\"}} 50\n\
         volley_time_to_first_chunk_seconds_bucket{{le=\"0.001\",model=\"m\"}} {fast}\n\
         volley_time_to_first_chunk_seconds_bucket{{le=\"0.004\",model=\"m\"}} {all}\n\
         volley_time_to_first_chunk_seconds_bucket{{le=\"+Inf\",model=\"m\"}} {all}\n\
         volley_raft_term 3\n# EOF\n"
    )
}

#[test]
fn rates_are_differences_over_time() {
    let (mut before, mut now) = (Counts::default(), Counts::default());
    before.add(&text(10, 0, 10));
    // Two coordinators.
    now.add(&text(20, 10, 20));
    now.add(&text(10, 0, 10));
    let rates = now.since(&before, Duration::from_secs(2));
    let rate = rates.model("m");
    assert_eq!((rate.requests, rate.failures), (15.0, 5.0));
    assert_eq!(rates.all.requests, 15.0);
    assert_eq!(rate.first_chunk(0.5), Some(0.001));
    assert_eq!(rate.first_chunk(0.95), Some(0.004));
    assert_eq!(rates.model("other").first_chunk(0.5), None);
    let restarted = before.since(&now, Duration::from_secs(2));
    assert_eq!(restarted.model("m").requests, 0.0);
}

#[test]
fn labels_may_hold_anything() {
    let sample = Sample::parse(r#"x{a="1",b="q\"}, \\ \n"} 2 1700000000"#).unwrap();
    assert_eq!(sample.label("b"), Some("q\"}, \\ \n"));
    assert_eq!(sample.value, 2.0);
}

proptest! {
    #[test]
    fn nonsense_is_passed_over(text: String) {
        let mut counts = Counts::default();
        counts.add(&text);
        let _ = Sample::parse(&text);
    }
}
