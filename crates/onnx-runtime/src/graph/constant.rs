//! The parts of a constant (`TensorProto` of `onnx.proto`) that are read: its type, its number of
//! elements, and the elements of small integer constants.

use std::collections::HashSet;

use super::element_type::{ElementType, INT32, INT64};

/// `FLOAT16` and `BFLOAT16` of ONNX's `TensorProto.DataType`.
pub(crate) const HALVES: [ElementType; 2] = [10, 16];

const DIMS: u64 = 1;
const DATA_TYPE: u64 = 2;
const INT32_DATA: u64 = 5;
const INT64_DATA: u64 = 7;
const RAW_DATA: u64 = 9;

/// The parts that were read of one constant.
#[derive(Clone, Debug)]
pub(crate) struct Constant {
    pub kind: Option<ElementType>,
    elements: u64,
    values: Vec<i64>,
    raw: Vec<u8>,
}

impl Default for Constant {
    fn default() -> Self {
        Self {
            kind: None,
            // A scalar has one element.
            elements: 1,
            values: Vec::new(),
            raw: Vec::new(),
        }
    }
}

impl Constant {
    /// The scalar `value`.
    #[cfg(test)]
    pub(super) fn integer(value: i64) -> Self {
        Self {
            kind: Some(INT64),
            values: vec![value],
            ..Self::default()
        }
    }

    /// Whether the bytes of a field are read, if they are few.
    pub(super) fn wants(field: u64) -> bool {
        matches!(field, DIMS | INT32_DATA | INT64_DATA | RAW_DATA)
    }

    /// Handles a varint field.
    pub(crate) fn number(&mut self, field: u64, value: u64) {
        match field {
            DIMS => self.elements = self.elements.saturating_mul(value),
            DATA_TYPE => self.kind = Some(value),
            INT32_DATA | INT64_DATA => self.values.push(value.cast_signed()),
            _ => {}
        }
    }

    /// Handles a length-delimited field: packed varints, or raw elements.
    pub(crate) fn bytes(&mut self, field: u64, bytes: Vec<u8>) {
        if field == RAW_DATA {
            self.raw = bytes;
            return;
        }
        let (mut number, mut shift) = (0_u64, 0);
        for byte in bytes {
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                self.number(field, number);
                (number, shift) = (0, 0);
            }
        }
    }

    /// Bytes of its elements if they are 16-bit floating-point numbers, else 0.
    pub(super) fn half_bytes(&self) -> u64 {
        match self.kind {
            Some(kind) if HALVES.contains(&kind) => self.elements.saturating_mul(2),
            _ => 0,
        }
    }

    /// Whether dividing integers by this constant is safe: all of its elements are known, and none
    /// is -1. Types other than 32-bit and 64-bit integers are always safe.
    pub(super) fn divides_safely(&self) -> bool {
        match self.kind {
            None => false,
            Some(INT32 | INT64) => self.integers().is_some_and(|it| !it.contains(&-1)),
            Some(_) => true,
        }
    }

    /// Whether it consists of integers that are all known and differ from each other.
    pub(super) fn is_distinct(&self) -> bool {
        let integers = self.integers();
        integers.is_some_and(|it| it.iter().collect::<HashSet<_>>().len() == it.len())
    }

    /// All elements; `None` if they are not known or no integers of 32 or 64 bits.
    fn integers(&self) -> Option<Vec<i64>> {
        let raw = |width: usize, read: fn(&[u8]) -> i64| self.raw.chunks_exact(width).map(read);
        let values: Vec<i64> = match self.kind {
            Some(INT32 | INT64) if self.raw.is_empty() => self.values.clone(),
            Some(INT32) => raw(4, |bytes| {
                i64::from(i32::from_le_bytes(bytes.try_into().unwrap_or_default()))
            })
            .collect(),
            Some(INT64) => raw(8, |bytes| {
                i64::from_le_bytes(bytes.try_into().unwrap_or_default())
            })
            .collect(),
            _ => return None,
        };
        let is_whole = u64::try_from(values.len()) == Ok(self.elements);
        is_whole.then_some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(kind: ElementType, dims: &[u64]) -> Constant {
        let mut constant = Constant::default();
        constant.number(DATA_TYPE, kind);
        for dim in dims {
            constant.number(DIMS, *dim);
        }
        constant
    }

    fn raw(kind: ElementType, bytes: &[u8]) -> bool {
        let mut constant = constant(kind, &[2]);
        constant.bytes(RAW_DATA, bytes.to_vec());
        constant.divides_safely()
    }

    #[test]
    fn minus_one_is_found_in_each_form() {
        assert!(raw(INT32, &[2, 0, 0, 0, 3, 0, 0, 0]));
        assert!(!raw(INT32, &[2, 0, 0, 0, 255, 255, 255, 255]));
        let (two, minus) = (2_i64.to_le_bytes(), (-1_i64).to_le_bytes());
        assert!(raw(INT64, &[two, two].concat()));
        assert!(!raw(INT64, &[two, minus].concat()));
        let typed = |numbers: &[i64]| {
            let mut constant = constant(INT64, &[2]);
            for number in numbers {
                constant.number(INT64_DATA, number.cast_unsigned());
            }
            constant.divides_safely()
        };
        assert!(typed(&[2, -2]));
        assert!(!typed(&[2, -1]));
        // Packed: 2, and -1 in ten bytes.
        let mut packed = constant(INT64, &[2]);
        packed.bytes(INT64_DATA, [&[2][..], &[255; 9], &[1]].concat());
        assert_eq!(packed.values, [2, -1]);
        assert!(!packed.divides_safely());
    }

    #[test]
    fn what_is_not_known_is_not_safe_and_fractions_are() {
        assert!(!raw(INT64, &[1, 0, 0, 0, 0, 0, 0, 0]), "half of it");
        assert!(!constant(INT32, &[1]).divides_safely(), "in another file");
        assert!(!Constant::default().divides_safely());
        assert!(constant(1, &[5]).divides_safely());
        let mut scalar = constant(INT64, &[]);
        scalar.number(INT64_DATA, 7);
        assert!(scalar.divides_safely());
    }

    #[test]
    fn integers_are_distinct_if_all_are_known() {
        let numbers = |numbers: &[i64]| {
            let mut constant = constant(INT64, &[2]);
            for number in numbers {
                constant.number(INT64_DATA, number.cast_unsigned());
            }
            constant.is_distinct()
        };
        assert!(numbers(&[0, 2]));
        assert!(!numbers(&[2, 2]));
        assert!(!numbers(&[2]), "one is not known");
        assert!(!constant(1, &[0]).is_distinct());
    }

    #[test]
    fn halves_are_counted_by_their_dimensions() {
        let mut packed = constant(HALVES[0], &[3]);
        packed.bytes(DIMS, vec![0x80, 1, 2]);
        assert_eq!(packed.half_bytes(), 3 * 128 * 2 * 2);
        assert_eq!(constant(1, &[3]).half_bytes(), 0);
        assert_eq!(constant(HALVES[1], &[u64::MAX, 9]).half_bytes(), u64::MAX);
    }
}
