//! The choice of a replica. Pure, but for the random numbers that it is given.

use crate::live::Candidate;

/// Takes the next replica to try out of `candidates`: power of two choices (Mitzenmacher,
/// 2001) by load over capacity, among those not suspect while there are any. `None` when no
/// candidate is left. A taken replica is not offered again.
pub fn choose(candidates: &mut Vec<Candidate>, random: &mut fastrand::Rng) -> Option<Candidate> {
    let trusted: Vec<usize> = (0..candidates.len())
        .filter(|index| !candidates[*index].suspect)
        .collect();
    let pool = if trusted.is_empty() {
        (0..candidates.len()).collect()
    } else {
        trusted
    };
    let chosen = match pool.as_slice() {
        [] => return None,
        [only] => *only,
        pool => {
            let first = random.usize(..pool.len());
            // The second of two different ones: skip the first.
            let second = (first + random.usize(1..pool.len())) % pool.len();
            let (first, second) = (pool[first], pool[second]);
            let lighter = candidates[second].load_permille() < candidates[first].load_permille();
            if lighter { second } else { first }
        }
    };
    Some(candidates.swap_remove(chosen))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use async_trait::async_trait;
    use volley_types::*;

    use super::*;

    struct Nobody;

    #[async_trait]
    impl Predict for Nobody {
        async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
            Err(PredictError::new(ErrorCode::Unavailable, "nobody"))
        }
        async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
            Err(PredictError::new(ErrorCode::Unavailable, "nobody"))
        }
        async fn models(&self) -> Vec<ModelName> {
            Vec::new()
        }
    }

    fn candidate(name: &str, load: u32, suspect: bool) -> Candidate {
        Candidate {
            worker: WorkerId::new(name).unwrap(),
            suspect,
            in_flight: Arc::new(AtomicU32::new(load)),
            reported_load: 0,
            capacity: 10,
            client: Arc::new(Nobody),
        }
    }

    fn order(mut candidates: Vec<Candidate>, seed: u64) -> Vec<String> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::from_fn(|| choose(&mut candidates, &mut random))
            .map(|candidate| candidate.worker.to_string())
            .collect()
    }

    #[test]
    fn every_replica_is_offered_once_and_suspects_come_last() {
        for seed in 0..200 {
            let tried = order(
                vec![
                    candidate("a", 0, true),
                    candidate("b", 9, false),
                    candidate("c", 5, false),
                ],
                seed,
            );
            assert_eq!(tried.last().unwrap(), "a");
            let mut sorted = tried.clone();
            sorted.sort();
            assert_eq!(sorted, ["a", "b", "c"]);
        }
        assert!(order(Vec::new(), 1).is_empty());
    }

    #[test]
    fn the_lighter_of_two_wins_and_the_heaviest_of_many_never_does() {
        for seed in 0..200 {
            let two = order(
                vec![candidate("busy", 9, false), candidate("idle", 1, false)],
                seed,
            );
            assert_eq!(two[0], "idle");
            let many = order(
                vec![
                    candidate("x", 10, false),
                    candidate("y", 2, false),
                    candidate("z", 1, false),
                ],
                seed,
            );
            assert_ne!(many[0], "x");
        }
    }
}
