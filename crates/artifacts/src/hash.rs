//! SHA-256, from the same library as TLS.

use ring::digest::{Context, SHA256};
use volley_types::registry::Sha256;

pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Sha256 {
        let digest = self.0.finish();
        let bytes = digest.as_ref().try_into();
        #[expect(clippy::expect_used, reason = "the algorithm fixes the length")]
        let bytes = bytes.expect("a SHA-256 digest has 32 bytes");
        Sha256(bytes)
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Sha256 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}
