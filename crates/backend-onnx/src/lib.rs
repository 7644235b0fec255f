//! Volley backend-onnx.
