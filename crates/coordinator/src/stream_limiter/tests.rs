use super::*;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

#[test]
fn a_flood_leaves_room_for_others_and_one_tenant_alone_may_have_all() {
    let places = StreamLimiter::new(8);
    let (loud, quiet) = (tenant("loud"), tenant("quiet"));
    let mut held: Vec<_> = (0..8).map(|_| places.acquire(&loud).unwrap()).collect();
    assert!(places.acquire(&loud).is_err());
    assert!(places.acquire(&quiet).is_err(), "all places are taken");
    // What the flood gives back is another's now, up to the half of it.
    for _ in 0..4 {
        held.truncate(held.len() - 1);
        held.insert(0, places.acquire(&quiet).unwrap());
        assert!(places.acquire(&loud).is_err());
    }
    assert_eq!(places.held(), 8);
    drop(held);
    assert_eq!(places.held(), 0);
    assert!(places.0.state.lock().tenants.is_empty());
}

proptest::proptest! {
    /// Nobody is over the limit, nothing leaks, and a tenant with nothing gets in wherever a
    /// place is free.
    #[test]
    fn places_are_bounded_and_never_lost(
        limit in 1_usize..20, steps in proptest::collection::vec((0_u8..6, 0_usize..40), 1..300)
    ) {
        let places = StreamLimiter::new(limit);
        let mut held: Vec<StreamPermit> = Vec::new();
        for (who, index) in steps {
            if who < 4 {
                let tenant = tenant(&format!("t{who}"));
                let own = held.iter().filter(|place| place.tenant == tenant).count();
                match places.acquire(&tenant) {
                    Ok(place) => held.push(place),
                    Err(_) => proptest::prop_assert!(own != 0 || held.len() == limit),
                }
            } else if index < held.len() {
                drop(held.remove(index));
            }
            proptest::prop_assert!(held.len() <= limit);
            proptest::prop_assert_eq!(places.held(), held.len());
        }
    }
}
