"""The module `triton_python_backend_utils`, which Triton's models import as `pb_utils`."""

from __future__ import annotations

import logging
import struct
import sys
import types as modules
from typing import Any, Dict, List, Optional

import numpy

from . import metrics, types, values

NO_REPOSITORY = "a Python model cannot load or unload models of the cluster; use `volley model`"


def get_input_tensor_by_name(inference_request: Any, name: str) -> Optional[values.Tensor]:
    """The input of a request; None if the request does not have it."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Optional[values.Tensor]:
    """The output of a response; None if the response does not have it."""
    return _named(inference_response.output_tensors(), name)


def _named(tensors: List[values.Tensor], name: str) -> Optional[values.Tensor]:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of an input; None if there is none."""
    return _entry(model_config, "input", name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of an output; None if there is none."""
    return _entry(model_config, "output", name)


def _entry(config: Dict[str, Any], kind: str, name: str) -> Optional[Dict[str, Any]]:
    return next((entry for entry in config.get(kind) or [] if entry.get("name") == name), None)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Whether the model sends its responses itself."""
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> Any:
    """numpy's type for Triton's number."""
    return types.TRITON_TO_NUMPY[data_type]


def numpy_to_triton_type(data_type: Any) -> int:
    """Triton's number for numpy's type."""
    return types.of_numpy(data_type)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """numpy's type for a name such as TYPE_FP32."""
    return types.TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """The elements in row-major order, each behind its length as 4 bytes."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        raise values.TritonModelException("cannot serialize bytes tensor: invalid datatype %s"
                                          % input_tensor.dtype)
    parts = []
    for value in numpy.nditer(input_tensor, flags=["refs_ok"], order="C"):
        item = value.item()
        item = item if isinstance(item, bytes) else str(item).encode("utf-8")
        parts.append(struct.pack("<I", len(item)) + item)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Any:
    """An array with one dimension of the elements of `serialize_byte_tensor`."""
    found, at = [], 0
    while at < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, at)
        at += 4
        if at + length > len(encoded_tensor):
            raise values.TritonModelException("the serialized tensor ends inside of an element")
        found.append(bytes(encoded_tensor[at:at + length]))
        at += length
    array = numpy.empty(len(found), dtype=object)
    array[:] = found
    return array


class LogLevel:
    """Levels of `Logger.log`."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Log messages; they go to the worker's log with the model's name."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE
    _LEVELS = {LogLevel.INFO: logging.INFO, LogLevel.WARNING: logging.WARNING,
               LogLevel.ERROR: logging.ERROR, LogLevel.VERBOSE: logging.DEBUG}

    @staticmethod
    def log(message: str, level: int = LogLevel.INFO) -> None:
        """Logs a message."""
        logging.getLogger("triton").log(Logger._LEVELS.get(level, logging.INFO), "%s", message)

    @staticmethod
    def log_info(message: str) -> None:
        """Logs a message."""
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Logs a warning."""
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Logs an error."""
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Logs a message for those who debug."""
        Logger.log(message, LogLevel.VERBOSE)


class ModelConfig:
    """The configuration that `auto_complete_config` completes."""

    def __init__(self, model_config: Dict[str, Any]) -> None:
        self._model_config = model_config

    def as_dict(self) -> Dict[str, Any]:
        """The configuration."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the most rows of one call of `execute`."""
        given = self._model_config.get("max_batch_size", 0)
        if given > max_batch_size:
            raise ValueError("config.pbtxt has the max_batch_size %d and auto_complete_config "
                             "sets %d, which is less" % (given, max_batch_size))
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Lets one call of `execute` get several requests."""
        if "sequence_batching" not in self._model_config:
            self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Says whether the model sends its responses itself."""
        others = [key for key in transaction_policy_dict if key != "decoupled"]
        if others:
            raise ValueError("model_transaction_policy has no field '%s'" % others[0])
        wanted = transaction_policy_dict.get("decoupled", False)
        given = self._model_config.get("model_transaction_policy")
        if given and given.get("decoupled", False) != wanted:
            raise ValueError("config.pbtxt has the model_transaction_policy 'decoupled: %s' and "
                             "auto_complete_config sets %s" % (given.get("decoupled"), wanted))
        self._model_config["model_transaction_policy"] = {"decoupled": wanted}

    def add_input(self, input: Dict[str, Any]) -> None:
        """Adds an input, or checks the one of this name."""
        self._add("input", ("name", "data_type", "dims", "optional"), input)

    def add_output(self, output: Dict[str, Any]) -> None:
        """Adds an output, or checks the one of this name."""
        self._add("output", ("name", "data_type", "dims"), output)

    def _add(self, kind: str, known: Any, entry: Dict[str, Any]) -> None:
        for key in entry:
            if key not in known:
                raise ValueError("an %s has no field '%s'; its fields are %s"
                                 % (kind, key, ", ".join(known)))
        for key in known[:3]:
            if key not in entry:
                raise ValueError("an %s of auto_complete_config has no '%s'" % (kind, key))
        given = _entry(self._model_config, kind, entry["name"])
        if given is None:
            self._model_config.setdefault(kind, []).append({**entry, "dims": list(entry["dims"])})
            return
        for key in known[1:]:
            if key in entry and given.get(key) in (None, [], "TYPE_INVALID"):
                given[key] = entry[key]
            elif key in ("data_type", "dims") and given[key] != entry[key]:
                raise ValueError("the %s '%s' has the %s %s in config.pbtxt and %s in "
                                 "auto_complete_config"
                                 % (kind, entry["name"], key, given[key], entry[key]))


def load_model(model_name: str = "", files: Any = None, config: str = "") -> None:
    """Not for models: raises."""
    raise values.TritonModelException(NO_REPOSITORY)


def unload_model(model_name: str = "", unload_dependents: bool = False) -> None:
    """Not for models: raises."""
    raise values.TritonModelException(NO_REPOSITORY)


#: Classes and functions that Triton's own module has from C++.
NATIVE = (
    values.Tensor, values.InferenceRequest, values.InferenceResponse,
    values.InferenceResponseSender, values.InferenceTrace, values.TritonError,
    values.TritonModelException, values.PreferredMemory, metrics.MetricFamily, metrics.Metric,
    Logger, LogLevel, load_model, unload_model,
)
FUNCTIONS = (
    get_input_tensor_by_name, get_output_tensor_by_name, get_input_config_by_name,
    get_output_config_by_name, using_decoupled_model_transaction_policy, triton_to_numpy_type,
    numpy_to_triton_type, triton_string_to_numpy, serialize_byte_tensor, deserialize_bytes_tensor,
    ModelConfig,
)
CONSTANTS = {
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": values.COMPLETE_FINAL,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
    "TRITONSERVER_REQUEST_RELEASE_ALL": values.RELEASE_ALL,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": values.RESCHEDULE,
    "TRITONSERVER_MEMORY_CPU": 0,
    "TRITONSERVER_MEMORY_GPU": 1,
    "TRITON_TO_NUMPY_TYPE": types.TRITON_TO_NUMPY,
    "NUMPY_TO_TRITON_TYPE": types.NUMPY_TO_TRITON,
    "TRITON_STRING_TO_NUMPY": types.TRITON_STRING_TO_NUMPY,
}


def install(model: str, version_directory: str) -> None:
    """Makes the modules importable by the code of the model of this name."""
    def get_model_dir() -> str:
        """The folder of the model's version."""
        return version_directory

    def is_model_ready(model_name: str, model_version: str = "") -> bool:
        """Whether a model serves. A model can ask about itself only."""
        if model_name == model:
            return True
        raise values.TritonModelException(values.NO_CALLS % model_name)

    native = modules.ModuleType("c_python_backend_utils", "Triton's classes for Python models.")
    for public in (*NATIVE, get_model_dir, is_model_ready):
        setattr(native, public.__name__, public)
    module = modules.ModuleType("triton_python_backend_utils", __doc__)
    vars(module).update({name: value for name, value in vars(native).items()
                         if not name.startswith("__")})
    for public in FUNCTIONS:
        setattr(module, public.__name__, public)
    vars(module).update(CONSTANTS)
    # Both names are in use.
    module.deserialize_byte_tensor = deserialize_bytes_tensor
    module.Logger = Logger
    sys.modules[native.__name__] = native
    sys.modules[module.__name__] = module
