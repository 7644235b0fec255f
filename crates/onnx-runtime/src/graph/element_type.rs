//! Element types of ONNX's `TensorProto.DataType`.

/// The number of an element type, such as `INT32` or `INT64`.
pub(crate) type ElementType = u64;
pub(super) const FLOAT: ElementType = 1;
pub(super) const INT32: ElementType = 6;
pub(super) const INT64: ElementType = 7;
pub(super) const STRING: ElementType = 8;
pub(super) const BOOL: ElementType = 9;
