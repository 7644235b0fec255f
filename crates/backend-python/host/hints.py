"""Type hints of model code, as fields of the contract and as parameters of requests."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .context import InvalidInput
from .interfaces.base import LoadError
from .wire import FORMATS, NUMPY, TEXTS, Field

SCALARS = {int: "int64", float: "fp64", bool: "bool", str: "utf8", bytes: "bytes"}
FROM_NUMPY = {name: type for type, name in NUMPY.items()}
FROM_NUMPY.update({"str_": "utf8", "object_": "utf8", "bytes_": "bytes", "bool_": "bool"})
#: Python 3.8 has none.
_ANNOTATED = getattr(typing, "Annotated", object())
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
_MISSING = inspect.Parameter.empty


class Hint(NamedTuple):
    """What a type hint says about the values of a column."""

    type: str
    shape: Tuple[int, ...] = ()
    nullable: bool = False
    #: "array" or "list" for a whole column, "" for one value.
    whole: str = ""

    def field(self, name: str) -> Field:
        """The field of this name."""
        return Field(name, self.type, self.shape, self.nullable)

    def as_row(self) -> "Hint":
        """The hint of one value: a list within a row is JSON."""
        return Hint("json", (), self.nullable) if self.whole == "list" else self


def hints_of(function: Any) -> Dict[str, Any]:
    """The type hints of a function or class, with names in texts resolved."""
    try:
        if sys.version_info < (3, 9):
            return typing.get_type_hints(function)
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise LoadError("the type hints of '%s' cannot be read: %s"
                        % (getattr(function, "__name__", "the model"), error)) from error


def parse(hint: Any) -> Optional[Hint]:
    """The meaning of a hint; None for one that has none here."""
    if hint is Any or hint in (dict, list):
        return Hint("json")
    if hint in SCALARS:
        return Hint(SCALARS[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is _ANNOTATED:
        return _annotated(arguments[0], arguments[1:])
    if origin in _UNIONS:
        others = [argument for argument in arguments if argument is not type(None)]
        inner = parse(others[0]) if len(others) == 1 else Hint("json")
        is_nullable = len(others) < len(arguments)
        return inner and inner._replace(nullable=is_nullable or inner.nullable)
    if origin is typing.Literal:
        kinds = {SCALARS.get(type(argument)) for argument in arguments}
        return Hint(kinds.pop() or "json") if len(kinds) == 1 else Hint("json")
    if is_numpy(origin):
        return _numpy(arguments)
    if origin is list:
        inner_type = SCALARS.get(arguments[0]) if arguments else None
        return Hint(inner_type, whole="list") if inner_type else Hint("json")
    if origin is dict or is_structure(hint):
        return Hint("json")
    return None


def _annotated(base: Any, details: Tuple[Any, ...]) -> Optional[Hint]:
    inner = Hint("fp32", whole="array") if is_numpy(base) else parse(base)
    if inner is None:
        return None
    for detail in details:
        if isinstance(detail, str) and (detail in FORMATS or detail in TEXTS):
            inner = inner._replace(type=detail)
        elif isinstance(detail, (tuple, list)) and all(isinstance(at, int) for at in detail):
            inner = inner._replace(shape=tuple(detail))
    return inner


def _numpy(arguments: Tuple[Any, ...]) -> Optional[Hint]:
    """The hint of `numpy.typing.NDArray[numpy.float32]`."""
    inner = typing.get_args(arguments[1]) if len(arguments) == 2 else ()
    name = getattr(inner[0], "__name__", "") if inner else ""
    type = FROM_NUMPY.get(name)
    return Hint(type, whole="array") if type else None


def is_numpy(hint: Any) -> bool:
    """Whether a hint is numpy's array, without an import of numpy."""
    return getattr(hint, "__module__", "") == "numpy" and getattr(hint, "__name__", "") == "ndarray"


def is_structure(hint: Any) -> bool:
    """Whether a hint is a dataclass, a NamedTuple or a TypedDict."""
    if not isinstance(hint, type):
        return False
    is_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    is_dict = issubclass(hint, dict) and hasattr(hint, "__total__")
    return dataclasses.is_dataclass(hint) or is_tuple or is_dict


def members(answer: Any, names: List[str]) -> Dict[str, Any]:
    """The members of a dict, dataclass or NamedTuple."""
    if isinstance(answer, dict):
        return answer
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}


class Arguments:
    """The arguments of a function that come from a request's parameters."""

    def __init__(self, function: Callable[..., Any], skipped: List[str]) -> None:
        self.hints = {}
        self.required: List[str] = []
        self.names: List[str] = []
        self.takes_any = False
        self.takes_all = False
        known = hints_of(function)
        for name, argument in inspect.signature(function).parameters.items():
            if argument.kind is inspect.Parameter.VAR_KEYWORD:
                self.takes_any = True
            elif argument.kind is inspect.Parameter.VAR_POSITIONAL or name in skipped:
                continue
            elif name == "parameters":
                self.takes_all = True
            else:
                self.names.append(name)
                self.hints[name] = known.get(name, Any)
                if argument.default is _MISSING:
                    self.required.append(name)

    @property
    def any_parameter(self) -> bool:
        """Whether a request may have any parameter."""
        return self.takes_any or self.takes_all

    def bind(self, parameters: Dict[str, Any]) -> Dict[str, Any]:
        """The keyword arguments for the parameters of a request."""
        bound, others = {}, {}
        for name, value in parameters.items():
            if name in self.hints:
                bound[name] = checked(name, self.hints[name], value)
            else:
                others[name] = value
        for name in self.required:
            if name not in bound:
                raise InvalidInput("the model needs the parameter '%s'" % name)
        if self.takes_all:
            bound["parameters"] = others
        elif self.takes_any:
            bound.update(others)
        elif others:
            raise InvalidInput("the model has no parameter '%s'" % next(iter(others)))
        return bound


def checked(name: str, hint: Any, value: Any) -> Any:
    """The value of a parameter, if its type fits the hint."""
    wanted = _classes(hint)
    if wanted is None or (float in wanted and type(value) is int):
        return float(value) if wanted == (float,) else value
    is_wrong_bool = isinstance(value, bool) and bool not in wanted
    if not isinstance(value, wanted) or is_wrong_bool:
        names = " or ".join("null" if one is type(None) else one.__name__ for one in wanted)
        found = "null" if value is None else type(value).__name__
        raise InvalidInput("parameter '%s' must be %s and is %s" % (name, names, found))
    if typing.get_origin(hint) is typing.Literal and value not in typing.get_args(hint):
        choices = ", ".join(map(repr, typing.get_args(hint)))
        raise InvalidInput("parameter '%s' must be one of %s" % (name, choices))
    return value


def _classes(hint: Any) -> Optional[Tuple[type, ...]]:
    """The classes that a simple hint allows; None when it allows everything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is _ANNOTATED:
        return _classes(arguments[0])
    if origin in _UNIONS:
        parts = [_classes(argument) for argument in arguments]
        return None if None in parts else tuple(one for part in parts for one in part)
    if origin is typing.Literal:
        return tuple({type(argument) for argument in arguments})
    plain = origin or hint
    if plain in (int, float, str, bool, list, dict, type(None)):
        return (plain,)
    return None
