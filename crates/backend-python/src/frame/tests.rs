use arrow_array::StringArray;
use proptest::prelude::*;

use super::*;
use crate::column::{ValueType, texts};

#[tokio::test]
async fn a_frame_has_the_documented_layout() {
    let mut body = Body::default();
    let column = texts(
        "prompt",
        ValueType::Utf8,
        &StringArray::from(vec!["hi"]),
        &mut body,
    );
    let command = Command::Call {
        id: 7,
        rows: 1,
        columns: vec![column],
        parameters: serde_json::Map::new(),
        request_id: "r".to_owned(),
        deadline_ms: None,
        trace: None,
        credit: 2,
        whole: false,
    };
    let mut bytes = Vec::new();
    write(&mut bytes, &[command, Command::Cancel { id: 3 }], &body)
        .await
        .unwrap();
    let json = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    assert_eq!(bytes.len(), 16 + json + length);
    let messages: serde_json::Value = serde_json::from_slice(&bytes[16..16 + json]).unwrap();
    assert_eq!(
        messages,
        serde_json::json!([
            {
                "op": "call", "id": 7, "rows": 1, "parameters": {}, "request_id": "r",
                "deadline_ms": null, "trace": null, "credit": 2,
                "columns": [{
                    "name": "prompt", "type": "utf8", "shape": [], "at": [[0, 16], [64, 2]],
                }],
            },
            { "op": "cancel", "id": 3 },
        ])
    );
    assert_eq!(&bytes[16 + json + 64..][..2], b"hi");
}

#[tokio::test]
async fn the_end_of_the_socket_is_no_error_and_a_break_is() {
    assert!(read(&mut &[][..]).await.unwrap().is_none());
    assert!(read(&mut &[1; 20][..]).await.is_err());
    let mut long = [0_u8; 16];
    long[8..].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = read(&mut &long[..]).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        json in "[ -~]{0,40}",
        header in any::<Option<[u8; 16]>>(),
    ) {
        let mut bytes = header.unwrap_or_else(|| {
            let mut header = [0; 16];
            header[..4].copy_from_slice(&u32::try_from(json.len()).unwrap().to_le_bytes());
            header
        }).to_vec();
        // A long body would be allocated first.
        bytes[11..16].fill(0);
        bytes.extend_from_slice(json.as_bytes());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(read(&mut &*bytes));
    }
}
