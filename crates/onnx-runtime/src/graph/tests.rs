use std::io::Cursor;

use super::*;
use crate::wire;
use crate::wire::{field, varint};
use crate::{Device, OnnxConfig};

/// A tensor whose data is at `location`.
fn tensor(location: &str) -> Vec<u8> {
    let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
    field(13, &entry)
}

fn read(bytes: &[u8]) -> Result<BTreeSet<PathBuf>, GraphError> {
    walk(BufReader::new(Cursor::new(bytes)), bytes.len() as u64).map(|walk| walk.found)
}

#[test]
fn weights_are_found_wherever_a_tensor_may_lie() {
    let attribute = |number, inner: &[u8]| field(5, &field(number, inner));
    let body = field(1, &attribute(6, &field(5, &tensor("body.bin"))));
    let graph = [
        field(5, &tensor("a.bin")),
        field(5, &tensor("a.bin")),
        field(15, &field(1, &tensor("sparse/b.bin"))),
        field(1, &attribute(5, &tensor("constant.bin"))),
        body,
    ];
    let function = field(25, &field(7, &attribute(10, &tensor("list.bin"))));
    let model = [field(7, &graph.concat()), function].concat();
    let found = read(&model).unwrap();
    let names = [
        "a.bin",
        "body.bin",
        "constant.bin",
        "list.bin",
        "sparse/b.bin",
    ];
    assert_eq!(found, names.map(PathBuf::from).into());
    for cut in 1..field(7, &graph.concat()).len() {
        assert!(
            matches!(read(&model[..cut]), Err(GraphError::Malformed)),
            "{cut}"
        );
    }
}

#[test]
fn weights_outside_of_the_directory_and_endless_nests_are_refused() {
    for location in ["/etc/passwd", "../x", "a/../../x", ""] {
        let model = field(7, &field(5, &tensor(location)));
        assert!(
            matches!(read(&model), Err(GraphError::Outside)),
            "{location:?}"
        );
    }
    let mut graph = Vec::new();
    for _ in 0..50 {
        graph = field(1, &field(5, &field(6, &graph)));
    }
    assert!(matches!(read(&field(7, &graph)), Err(GraphError::Deep)));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = read(&bytes);
        let _ = read(&field(7, &field(5, &bytes)));
    }
}

#[test]
fn the_numbers_of_a_decoders_cache_are_told_by_its_inputs() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-onnx/tests/models");
    let half = |graph: &str| outline(&models.join(graph)).unwrap().half_inputs;
    assert!(half("half-decoder/model.onnx"));
    assert!(half("plain-decoder/onnx/model_fp16.onnx"));
    assert!(!half("plain-decoder/onnx/model.onnx"));
}

#[test]
fn a_cpu_keeps_weights_of_sixteen_bits_in_both_forms() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-onnx/tests/models");
    let config = |device| OnnxConfig {
        device,
        ..OnnxConfig::default()
    };
    let half = outline(&models.join("plain-decoder/onnx/model_fp16.onnx")).unwrap();
    assert!(half.bytes / 2 < half.half_bytes && half.half_bytes < half.bytes);
    let on = |device| config(device).weights(&half);
    assert_eq!(on(Device::Cpu), half.bytes + 2 * half.half_bytes);
    assert_eq!(on(Device::Cuda), half.bytes);
    let plain = outline(&models.join("plain-decoder/onnx/model.onnx")).unwrap();
    assert_eq!(config(Device::Cpu).weights(&plain), plain.bytes);
}

/// A graph that divides its integer input by a constant: one of the graph, or of a `Constant` node.
fn divides(constant: &[u8], of_node: bool) -> bool {
    let whole = field(2, &field(1, &[&[8, 7][..], &field(2, &[])].concat()));
    let input = field(11, &[field(1, b"x"), whole].concat());
    let names = [field(1, b"x"), field(1, b"c"), field(2, b"y")].concat();
    let division = field(1, &[names, field(4, b"Div")].concat());
    let constant = match of_node {
        false => field(5, &[constant, &field(8, b"c")].concat()),
        true => {
            let node = [field(2, b"c"), field(4, b"Constant"), field(5, constant)];
            field(1, &node.concat())
        }
    };
    let model = field(7, &[constant, division, input].concat());
    let walked = walk(BufReader::new(Cursor::new(&model)), model.len() as u64);
    integer_division::divides(&walked.unwrap().own)
}

#[test]
fn a_division_by_minus_one_is_found_however_it_is_written() {
    let number = |field: u64, value: i64| wire::number(field, value.cast_unsigned());
    for (value, found) in [(2_i64, false), (-1, true)] {
        let raw = [number(2, 7), field(9, &value.to_le_bytes())].concat();
        assert_eq!(divides(&raw, false), found);
        let typed = [number(2, 7), number(7, value)].concat();
        assert_eq!(divides(&typed, false), found);
        let packed = [number(2, 7), field(7, &varint(value.cast_unsigned()))].concat();
        assert_eq!(divides(&packed, false), found);
        let tensor = [field(1, b"value"), field(5, &raw)].concat();
        assert_eq!(divides(&tensor, true), found);
        let single = [field(1, b"value_int"), number(3, value)].concat();
        assert_eq!(divides(&single, true), found);
        let list = [field(1, b"value_ints"), number(8, 3), number(8, value)].concat();
        assert_eq!(divides(&list, true), found);
    }
    // The numbers in external files are not examined.
    let elsewhere = [number(2, 7), tensor("weights.bin")].concat();
    assert!(divides(&elsewhere, false));
}
