use super::*;

struct Object(String);

impl Object {
    fn new(bytes: &[u8]) -> Self {
        let id = volley_types::RequestId::random();
        let key = format!("volley-test-{id}");
        let written = std::fs::write(FilePath::new(DIRECTORY).join(&key), bytes);
        assert!(written.is_ok(), "{written:?}");
        Self(key)
    }

    fn path(&self) -> std::path::PathBuf {
        FilePath::new(DIRECTORY).join(&self.0)
    }

    fn region(&self, offset: u64, byte_size: u64) -> Region {
        let key = format!("/{}", self.0);
        Region {
            key,
            offset,
            byte_size,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

fn at(offset: u64, size: u64) -> Slice {
    Slice {
        region: "r".to_owned(),
        offset,
        size,
    }
}

#[test]
fn a_region_is_read_and_written_within_its_borders() {
    let object = Object::new(b"0123456789");
    let memory = SharedMemory::new(true, 8);
    memory
        .register("r".to_owned(), object.region(2, 6))
        .unwrap();
    assert_eq!(memory.reader().read(&at(1, 3)).unwrap(), "345");
    memory.write(&at(0, 4), b"ab").unwrap();
    assert_eq!(std::fs::read(object.path()).unwrap(), b"01ab456789");
    assert!(
        memory
            .write(&at(0, 1), b"ab")
            .unwrap_err()
            .message
            .contains("2 bytes")
    );
    for outside in [at(0, 7), at(6, 1), at(u64::MAX, 2)] {
        assert_eq!(
            memory.reader().read(&outside).unwrap_err().code,
            ErrorCode::InvalidInput
        );
    }
    let again = memory.register("r".to_owned(), object.region(0, 1));
    assert_eq!(again.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(memory.regions("").unwrap().len(), 1);
    assert_eq!(memory.regions("x").unwrap_err().code, ErrorCode::NotFound);
    // A shrunk object is an error of the request, and ends nothing else.
    std::fs::write(object.path(), b"01").unwrap();
    assert_eq!(
        memory.reader().read(&at(0, 2)).unwrap_err().code,
        ErrorCode::InvalidInput
    );
    memory.unregister("x");
    memory.unregister("");
    assert!(memory.regions("").unwrap().is_empty());
}

#[test]
fn only_objects_are_opened_and_only_where_that_is_allowed() {
    let object = Object::new(b"0123");
    let memory = SharedMemory::new(true, 8);
    for key in [
        "",
        "/",
        "../etc/passwd",
        "a/b",
        "/..",
        ".hidden",
        "volley-none",
    ] {
        let region = Region {
            key: key.to_owned(),
            offset: 0,
            byte_size: 1,
        };
        let refused = memory.register("r".to_owned(), region).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{key}");
        assert!(!refused.message.contains(DIRECTORY), "{refused}");
    }
    let link = FilePath::new(DIRECTORY).join(format!("{}-link", object.0));
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    let region = Region {
        key: format!("{}-link", object.0),
        offset: 0,
        byte_size: 1,
    };
    let refused = memory.register("r".to_owned(), region);
    std::fs::remove_file(link).unwrap();
    assert!(refused.is_err());
    assert!(
        memory
            .register("r".to_owned(), object.region(0, 5))
            .is_err()
    );
    assert!(
        memory
            .register("r".to_owned(), object.region(u64::MAX, 2))
            .is_err()
    );
    let off = SharedMemory::new(false, 8);
    let refused = off
        .register("r".to_owned(), object.region(0, 1))
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unimplemented);
    off.unregister("");
}

#[test]
fn inputs_in_regions_become_binary_data_in_their_places() {
    let object = Object::new(b"shared");
    let memory = SharedMemory::new(true, 64);
    memory
        .register("r".to_owned(), object.region(0, 6))
        .unwrap();
    let body = json!({ "inputs": [
        { "name": "a", "parameters": { "binary_data_size": 2 } },
        { "name": "b", "parameters": { REGION: "r", SIZE: 3, OFFSET: 1 } },
        { "name": "c", "data": [1] },
    ]});
    let mut body = body.as_object().unwrap().clone();
    let raw = memory.fill(&mut body, Bytes::from_static(b"xy")).unwrap();
    assert_eq!(raw, "xyhar");
    let parameters = &body["inputs"][1]["parameters"];
    assert_eq!(*parameters, json!({ "binary_data_size": 3 }));
    let twice = json!({ "inputs": [
        { "name": "a", "parameters": { REGION: "r", SIZE: 1, "binary_data_size": 2 } }] });
    let mut twice = twice.as_object().unwrap().clone();
    assert!(memory.fill(&mut twice, Bytes::new()).is_err());
}

#[test]
fn inputs_of_one_request_are_bounded_together() {
    let object = Object::new(b"shared");
    let memory = SharedMemory::new(true, 8);
    memory
        .register("r".to_owned(), object.region(0, 6))
        .unwrap();
    let fill = |inputs: usize| {
        let input = json!({ "name": "a", "parameters": { REGION: "r", SIZE: 4 } });
        let body = json!({ "inputs": vec![input; inputs] });
        memory.fill(&mut body.as_object().unwrap().clone(), Bytes::new())
    };
    assert_eq!(fill(2).unwrap(), "sharshar");
    let refused = fill(3).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
    assert!(refused.message.contains("12 bytes"), "{refused}");
    assert!(
        refused.message.contains("the limit of 8 bytes"),
        "{refused}"
    );
    // Each request has the whole limit.
    assert_eq!(fill(2).unwrap().len(), 8);
}
