//! Schemas in both of their forms, kept for the next exchange.
//!
//! Every exchange begins with a schema in each direction, and a node sends and receives the same few
//! of them all the time. Writing and checking one takes longer than all else in a short message.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_schema::SchemaRef;
use bytes::Bytes;
use parking_lot::Mutex;

/// Maximum number of schemas in each cache. A full one is emptied.
const MAX_SCHEMAS: usize = 256;
/// Maximum size in bytes of the encoded form of a schema that is kept.
const MAX_BYTES: usize = 16 << 10;

/// Encoded schemas, by the address of the schema. The entry keeps the schema, so that no other one
/// gets its address.
static ENCODED: LazyLock<Mutex<HashMap<usize, (SchemaRef, Bytes)>>> = LazyLock::new(Mutex::default);
/// Decoded schemas without special encodings, by their encoded form.
static DECODED: LazyLock<Mutex<HashMap<Bytes, SchemaRef>>> = LazyLock::new(Mutex::default);

/// The encoded form of `schema`, which `encode` returns for one that is not known.
pub(crate) fn encoded(schema: &SchemaRef, encode: impl FnOnce() -> Bytes) -> Bytes {
    let address = Arc::as_ptr(schema).addr();
    if let Some((_, bytes)) = ENCODED.lock().get(&address) {
        return bytes.clone();
    }
    let bytes = encode();
    if bytes.len() <= MAX_BYTES {
        keep(&ENCODED, address, (schema.clone(), bytes.clone()));
    }
    bytes
}

/// The schema of an encoded form; `None` for one that is not known.
pub(crate) fn decoded(bytes: &Bytes) -> Option<SchemaRef> {
    if MAX_BYTES < bytes.len() {
        return None;
    }
    DECODED.lock().get(bytes).cloned()
}

/// Keeps the schema of an encoded form that was checked.
pub(crate) fn keep_decoded(bytes: &Bytes, schema: &SchemaRef) {
    if bytes.len() <= MAX_BYTES {
        // A copy: the bytes are a part of a larger buffer.
        keep(&DECODED, Bytes::copy_from_slice(bytes), schema.clone());
    }
}

fn keep<K: Eq + std::hash::Hash, V>(cache: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut cache = cache.lock();
    if MAX_SCHEMAS <= cache.len() {
        cache.clear();
    }
    cache.insert(key, value);
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    fn schema(name: &str) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new(name, DataType::Utf8, false)]))
    }

    #[test]
    fn a_schema_is_encoded_once_and_found_by_its_bytes() {
        let (first, same) = (schema("a"), schema("a"));
        assert_eq!(encoded(&first, || Bytes::from_static(b"first")), "first");
        assert_eq!(encoded(&first, || unreachable!()), "first");
        assert_eq!(encoded(&same, || Bytes::from_static(b"again")), "again");

        let bytes = Bytes::from_static(b"encoded form of a test");
        assert_eq!(decoded(&bytes), None);
        keep_decoded(&bytes, &first);
        assert!(Arc::ptr_eq(&decoded(&bytes).unwrap(), &first));
    }

    #[test]
    fn long_forms_are_not_kept_and_the_caches_are_bounded() {
        let long = Bytes::from(vec![0; MAX_BYTES + 1]);
        keep_decoded(&long, &schema("long"));
        assert_eq!(decoded(&long), None);
        let cache = Mutex::default();
        for key in 0..1_000 {
            keep(&cache, key, ());
            assert!(cache.lock().len() <= MAX_SCHEMAS);
        }
    }
}
