//! Generators of quotas and sealed secrets for the tests of records.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use volley_types::registry::SealedSecret;
use volley_types::{Quota, SecretName};

prop_compose! {
    pub(crate) fn quota()(
        requests_per_minute in option::of(1_u32..),
        tokens_per_minute in option::of(1_u32..),
        max_streams in option::of(1_u32..),
    ) -> Quota {
        Quota { requests_per_minute, tokens_per_minute, max_streams }
    }
}

pub(crate) fn secret_name() -> impl Strategy<Value = SecretName> {
    "[a-z]{1,8}".prop_map(|name| SecretName::new(name).unwrap())
}

prop_compose! {
    pub(crate) fn sealed()(
        master in "[0-9a-f]{16}", key in vec(any::<u8>(), 0..9), text in vec(any::<u8>(), 0..9),
    ) -> SealedSecret {
        SealedSecret { master, key, text }
    }
}
