"""The classes of `triton_python_backend_utils`: tensors, requests, responses and errors."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import numpy

from . import types

#: Flag of the last response to a request.
COMPLETE_FINAL = 1
RELEASE_ALL = 1
RESCHEDULE = 2
#: Device types of DLPack whose memory the host can read.
CPU_DEVICES = (1, 3)
NO_CALLS = (
    "the model calls the model '%s', and a Python model cannot call other models of the cluster "
    "yet (BLS); chain the models in an ensemble or a pipeline"
)


class TritonModelException(Exception):
    """An error whose text the caller sees."""


class TritonError:
    """The error of a response: a message and a code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in range(8):
            raise TritonModelException("%r is not a code of TritonError" % (code,))
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> int:
        """One of the codes of this class."""
        return self._code

    def __str__(self) -> str:
        return self._message


class PreferredMemory:
    """Where the model wants the outputs of its own requests to be."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class Capsule:
    """A DLPack capsule as an object that numpy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> "tuple[int, int]":
        return (1, 0)


class Tensor:
    """A named array in the memory of the CPU."""

    def __init__(self, name: str, array: Any) -> None:
        if not isinstance(array, numpy.ndarray):
            raise TypeError("Tensor '%s' needs a numpy array and got %s"
                            % (name, type(array).__name__))
        self._name = str(name)
        self._array = array
        self._triton_dtype = types.of_numpy(array.dtype)

    def name(self) -> str:
        """The name of the input or output."""
        return self._name

    def as_numpy(self) -> Any:
        """The array, without a copy."""
        return self._array

    def triton_dtype(self) -> int:
        """Triton's number of the data type."""
        return self._triton_dtype

    def shape(self) -> List[int]:
        """The lengths of all dimensions."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Always true: tensors of a GPU are copied when they come from DLPack."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the array."""
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        if stream not in (None, -1):
            raise TritonModelException("tensor '%s' is in the memory of the CPU; DLPack has a "
                                       "stream for GPUs only" % self._name)
        if self._array.dtype.kind in "OSU":
            raise TritonModelException("tensor '%s' has texts, which DLPack does not carry"
                                       % self._name)
        return numpy.ascontiguousarray(self._array).__dlpack__()

    def __dlpack_device__(self) -> "tuple[int, int]":
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, source: Any) -> "Tensor":
        """A tensor of an object with `__dlpack__`, such as a tensor of PyTorch, or of a capsule."""
        if not hasattr(numpy, "from_dlpack"):
            raise TritonModelException("Tensor.from_dlpack needs numpy 1.22 or later")
        if not hasattr(source, "__dlpack__"):
            return Tensor(name, numpy.from_dlpack(Capsule(source)))
        if hasattr(source, "detach"):
            source = source.detach()
        device = getattr(source, "__dlpack_device__", lambda: (1, 0))()
        if device[0] not in CPU_DEVICES:
            if not hasattr(source, "cpu"):
                raise TritonModelException("tensor '%s' is in the memory of a device; copy it to "
                                           "the CPU first" % name)
            source = source.cpu()
        return Tensor(name, numpy.from_dlpack(source))


class InferenceResponse:
    """The response to one request: tensors, or an error."""

    def __init__(self, output_tensors: Optional[Sequence[Tensor]] = None,
                 error: Optional[TritonError] = None,
                 parameters: Optional[Dict[str, Any]] = None) -> None:
        tensors = list(output_tensors or [])
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError("output_tensors has %s and must have tensors only"
                                % type(tensor).__name__)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("error is %s and must be a TritonError" % type(error).__name__)
        self._tensors = tensors
        self._error = error
        self._parameters = as_json(parameters)

    def output_tensors(self) -> List[Tensor]:
        """The tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether there is an error instead of tensors."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """The error."""
        return self._error

    def parameters(self) -> str:
        """The parameters as a text with a JSON object."""
        return self._parameters


class InferenceTrace:
    """The trace of a request."""

    def __init__(self, context: Optional[str] = None) -> None:
        self._context = context

    def get_context(self) -> Optional[str]:
        """A text with a JSON object that has the W3C `traceparent`; None without a trace."""
        return None if self._context is None else json.dumps({"traceparent": self._context})


class InferenceRequest:
    """A request: one that the model answers, or one that it makes."""

    def __init__(self, request_id: str = "", correlation_id: Union[int, str] = 0,
                 inputs: Sequence[Tensor] = (), requested_output_names: Sequence[str] = (),
                 model_name: str = "", model_version: int = -1, flags: int = 0, timeout: int = 0,
                 preferred_memory: Optional[PreferredMemory] = None,
                 trace: Optional[InferenceTrace] = None,
                 parameters: Optional[Dict[str, Any]] = None) -> None:
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._names = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or InferenceTrace()
        self._parameters = as_json(parameters)
        self.preferred_memory = preferred_memory
        #: What the host adds to a request that the model answers.
        self._open_sender: Optional[Callable[[], "InferenceResponseSender"]] = None
        self._ask_cancelled: Callable[[], bool] = lambda: False

    def inputs(self) -> List[Tensor]:
        """The tensors."""
        return self._inputs

    def request_id(self) -> str:
        """The id of the request."""
        return self._request_id

    def correlation_id(self) -> Union[int, str]:
        """The id of the sequence; 0 without one."""
        return self._correlation_id

    def flags(self) -> int:
        """Flags of the sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags of the sequence."""
        self._flags = flags

    def timeout(self) -> int:
        """The timeout of the request in microseconds; 0 without one."""
        return self._timeout

    def parameters(self) -> str:
        """The parameters as a text with a JSON object."""
        return self._parameters

    def trace(self) -> InferenceTrace:
        """The trace."""
        return self._trace

    def requested_output_names(self) -> List[str]:
        """The outputs that the caller needs."""
        return self._names

    def model_name(self) -> str:
        """The model that answers the request."""
        return self._model_name

    def model_version(self) -> int:
        """Its version; -1 leaves the choice to the cluster."""
        return self._model_version

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._ask_cancelled()

    def get_response_sender(self) -> "InferenceResponseSender":
        """The sender of the responses to this request."""
        if self._open_sender is None:
            raise TritonModelException("a request that the model makes has no response sender")
        return self._open_sender()

    def set_release_flags(self, flags: int) -> None:
        """Says what happens to the request when `execute` returns."""
        if flags == RESCHEDULE:
            raise TritonModelException("TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is not supported: "
                                       "a request cannot be executed again")
        if flags != RELEASE_ALL:
            raise TritonModelException("%r is not a release flag" % (flags,))

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """Calls a model of the cluster."""
        raise TritonModelException(NO_CALLS % self._model_name)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Calls a model of the cluster without blocking the event loop."""
        raise TritonModelException(NO_CALLS % self._model_name)


class InferenceResponseSender:
    """Sends the responses to one request, from any thread, also after `execute` has returned."""

    def __init__(self, put: Callable[[Optional[InferenceResponse], bool], None],
                 is_cancelled: Callable[[], bool]) -> None:
        self._put = put
        self._ask_cancelled = is_cancelled

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Sends a response. The flag COMPLETE_FINAL ends the request, with or without one."""
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("the response sender does not know the flags %r" % (flags,))
        if response is None and flags == 0:
            raise TritonModelException("the response sender needs a response, or the flag "
                                       "TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("send got %s and takes an InferenceResponse" % type(response).__name__)
        self._put(response, flags == COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._ask_cancelled()


def as_json(parameters: Optional[Dict[str, Any]]) -> str:
    """Parameters as a text; their values are texts, whole numbers, numbers and truth values."""
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TypeError("the name of a parameter is %s and must be a text"
                            % type(name).__name__)
        if not isinstance(value, (str, int, float, bool)):
            raise TypeError("the parameter '%s' is %s and must be a text, a number or a bool"
                            % (name, type(value).__name__))
    return json.dumps(parameters or {})
