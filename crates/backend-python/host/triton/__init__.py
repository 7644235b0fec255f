"""Triton's Python models: the module that they import, their configuration, and their calls.

Reading order: `values` (tensors, requests, responses, errors), `utils` (the module
`triton_python_backend_utils`), `config` (config.pbtxt as JSON), `tensors` (columns and tensors),
`calls` (which requests run in one call of `execute`, and where their responses go).
"""
