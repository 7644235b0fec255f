use std::time::Duration;

use super::*;

fn key(digit: char) -> Key {
    Key(digit.to_string().repeat(64))
}

fn cache(root: &Path, cache_bytes: u64) -> Cache {
    let limits = CacheLimits {
        cache_bytes,
        min_free_bytes: 0,
    };
    Cache::open(root.to_path_buf(), limits, Metrics::new()).unwrap()
}

/// Writes a model of `bytes` bytes at `key`, last used `age` ago.
fn put(cache: &Cache, key: &Key, bytes: usize, age: Duration) {
    let files = cache.partial(key).join("files");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("model.onnx"), vec![0; bytes]).unwrap();
    let record = Record {
        url: "s3://b/m.onnx".to_owned(),
        sha256: None,
        bytes: bytes as u64,
    };
    let lock = cache.try_write(key).unwrap().unwrap();
    cache.commit(key, &files, &record).unwrap();
    lock._file.set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn the_least_recently_used_makes_room_and_what_is_in_use_stays() {
    let root = tempfile::tempdir().unwrap();
    let cache = cache(root.path(), 100);
    let old = Duration::from_secs(3_600);
    put(&cache, &key('a'), 40, old * 3);
    put(&cache, &key('b'), 40, old * 2);
    let used = cache.try_read(&key('a')).unwrap().unwrap();
    let room = cache.reserve(&key('c'), 50).unwrap();
    assert!(cache.entry(&key('a')).exists());
    assert!(!cache.entry(&key('b')).exists());
    assert!(!cache.at(&key('b'), ".lock").exists());
    let refused = cache.reserve(&key('d'), 20).err().unwrap();
    assert!(refused.message.contains("in use"), "{refused:?}");
    drop(used);
    let _more = cache.reserve(&key('d'), 20).unwrap();
    assert!(!cache.entry(&key('a')).exists());
    drop(room);
    let refused = cache.reserve(&key('e'), 101).err().unwrap();
    assert_eq!(refused.code, ErrorCode::TooLarge);
}

#[test]
fn a_lock_on_a_file_that_was_removed_is_none() {
    let root = tempfile::tempdir().unwrap();
    let cache = cache(root.path(), 100);
    put(&cache, &key('a'), 10, Duration::ZERO);
    let held = cache.try_read(&key('a')).unwrap().unwrap();
    assert!(cache.try_write(&key('a')).unwrap().is_none());
    assert!(!cache.remove(&key('a')).unwrap());
    drop(held);
    assert!(cache.remove(&key('a')).unwrap());
    let anew = cache.try_write(&key('a')).unwrap().unwrap();
    assert!(cache.try_read(&key('a')).unwrap().is_none());
    drop(anew);
}

#[test]
fn a_full_disk_is_told_before_anything_is_fetched() {
    let root = tempfile::tempdir().unwrap();
    let limits = CacheLimits {
        cache_bytes: u64::MAX,
        min_free_bytes: u64::MAX / 2,
    };
    let cache = Cache::open(root.path().to_path_buf(), limits, Metrics::new()).unwrap();
    let refused = cache.reserve(&key('a'), 1).err().unwrap();
    assert!(refused.message.contains("disk"), "{refused:?}");
    assert!(cache.check_free().is_err());
}

#[test]
fn files_of_others_in_the_directory_are_left_alone() {
    assert!(split("notes.txt").is_none());
    assert!(split(&format!("{}.txt", "a".repeat(64))).is_none());
    assert!(split(&"é".repeat(40)).is_none());
    let (found, ending) = split(&format!("{}.part", "a".repeat(64)))
        .map(|(k, e)| (k, e.to_owned()))
        .unwrap();
    assert_eq!((found, ending.as_str()), (key('a'), ".part"));
}
