use arrow_array::{Float32Array, StringArray};
use proptest::prelude::*;

use super::*;

fn item(data_type: DataType) -> Field {
    Field::new("item", data_type, false)
}

#[test]
fn bytes_that_lie_askew_are_copied_and_read() {
    let mut bytes = vec![0];
    bytes.extend([1.5_f32, -2.0].iter().flat_map(|value| value.to_le_bytes()));
    let askew = Bytes::from(bytes).slice(1..);
    let values = decode(&item(DataType::Float32), 2, askew, false).unwrap();
    assert_eq!(values.as_ref(), &Float32Array::from(vec![1.5, -2.0]));
}

#[test]
fn a_text_is_its_length_and_its_bytes() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["hi", "", "é"]));
    let mut bytes = Vec::new();
    encode(&texts, &mut bytes).unwrap();
    assert_eq!(bytes, b"\x02\0\0\0hi\0\0\0\0\x02\0\0\0\xc3\xa9");
    let read = decode(&item(DataType::Utf8), 3, bytes.clone().into(), false).unwrap();
    assert_eq!(&read, &texts);
    let short = decode(&item(DataType::Utf8), 2, bytes.into(), false).unwrap_err();
    assert!(short.contains("after its 2 texts"), "{short}");
    let broken = decode(
        &item(DataType::Utf8),
        1,
        Bytes::from_static(b"\x01\0\0\0\xff"),
        false,
    );
    assert!(broken.unwrap_err().contains("UTF-8"));
}

const TYPES: [DataType; 14] = [
    DataType::Boolean,
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::UInt8,
    DataType::UInt16,
    DataType::UInt32,
    DataType::UInt64,
    DataType::Float16,
    DataType::Float32,
    DataType::Float64,
    DataType::Utf8,
    DataType::LargeUtf8,
];

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_and_come_back(
        which in 0..TYPES.len(),
        count in prop_oneof![0_usize..20, any::<usize>()],
        bytes in proptest::collection::vec(prop_oneof![Just(0_u8), 0..4_u8, any::<u8>()], 0..64),
        any_bytes in any::<bool>(),
    ) {
        let data_type = TYPES[which].clone();
        let Ok(values) = decode(&item(data_type.clone()), count, bytes.clone().into(), any_bytes) else {
            return Ok(());
        };
        prop_assert_eq!(values.len(), count);
        let mut back = Vec::new();
        encode(&values, &mut back).unwrap();
        if data_type == DataType::Boolean {
            prop_assert_eq!(back.len(), bytes.len());
        } else {
            prop_assert_eq!(back, bytes);
        }
    }
}
