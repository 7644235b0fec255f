use proptest::prelude::*;

use super::*;

#[test]
fn elements_belong_in_the_list_of_their_datatype() {
    let given = InferTensorContents {
        int_contents: vec![-1, 300],
        ..InferTensorContents::default()
    };
    let raw = to_raw("INT16", &given).unwrap();
    assert_eq!(raw.as_ref(), [0xff, 0xff, 0x2c, 0x01]);
    assert_eq!(to_typed("INT16", &raw).unwrap(), given);
    for (datatype, sign) in [
        ("INT8", "300"),
        ("INT64", "int_contents has elements"),
        ("FP16", "raw_input_contents"),
        ("COMPLEX", "datatype"),
    ] {
        let message = to_raw(datatype, &given).unwrap_err().message;
        assert!(message.contains(sign), "{message}");
    }
    assert!(to_typed("FP16", &raw).is_none());
}

proptest! {
    #[test]
    fn every_content_comes_back(
        ints in proptest::collection::vec(any::<i8>(), 0..9),
        longs in proptest::collection::vec(any::<u64>(), 0..9),
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 0..9),
    ) {
        let ints = InferTensorContents {
            int_contents: ints.into_iter().map(i32::from).collect(),
            ..InferTensorContents::default()
        };
        let longs = InferTensorContents { uint64_contents: longs, ..InferTensorContents::default() };
        let texts = InferTensorContents {
            bytes_contents: texts.into_iter().map(Bytes::from).collect(),
            ..InferTensorContents::default()
        };
        for (datatype, given) in [("INT8", ints), ("UINT64", longs), ("BYTES", texts)] {
            let raw = to_raw(datatype, &given).unwrap();
            prop_assert_eq!(to_typed(datatype, &raw), Some(given));
        }
    }

    #[test]
    fn any_bytes_are_elements_or_none(data in proptest::collection::vec(any::<u8>(), 0..40)) {
        let data = Bytes::from(data);
        if let Some(elements) = elements(&data) {
            let size: usize = elements.iter().map(|element| element.len() + 4).sum();
            prop_assert_eq!(size, data.len());
        }
    }
}
