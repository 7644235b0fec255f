"""Inferless' newer style: `infer` takes and returns an object of a declared class.

    import inferless
    from pydantic import BaseModel, Field

    @inferless.request
    class Request(BaseModel):
        prompt: str = Field(default="a horse")

    class InferlessPythonModel:
        def infer(self, request: Request) -> Response: ...

A module `inferless` with the names that models use takes the place of the real package where that
is not installed.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
import typing
from typing import Any, Callable, Dict, List, Optional

from ..answers import AnswerError, input_values, of_values
from ..context import InvalidInput
from ..hints import hints_of, parse
from ..wire import Column, Field
from .base import LoadError, Model


class Cls:
    """`app = inferless.Cls(gpu="T4")` with its decorators, which mark methods."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @staticmethod
    def load(function: Callable[..., Any]) -> Callable[..., Any]:
        """`@app.load`"""
        function.__volley_role__ = "load"
        return function

    @staticmethod
    def infer(function: Callable[..., Any]) -> Callable[..., Any]:
        """`@app.infer`"""
        function.__volley_role__ = "infer"
        return function


def marked(*arguments: Any, **_: Any) -> Any:
    """A decorator that leaves what it decorates as it is, with or without arguments."""
    if len(arguments) == 1 and callable(arguments[0]):
        return arguments[0]
    return lambda decorated: decorated


def install_shim() -> None:
    """Makes `import inferless` work where the package is not installed."""
    if "inferless" in sys.modules or importlib.util.find_spec("inferless") is not None:
        return
    module = types.ModuleType("inferless", "The decorators of Inferless, without its cloud.")
    module.Cls = Cls
    for name in ("request", "response", "config", "method", "local_entry_point"):
        setattr(module, name, marked)
    sys.modules["inferless"] = module


def find_class(module: types.ModuleType) -> Optional[type]:
    """The class with a method that `@app.infer` marks."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and role(value, "infer"):
            return value
    return None


def role(model_class: Any, name: str) -> Optional[str]:
    """The name of the method with a role."""
    for method, function in inspect.getmembers(model_class, callable):
        if getattr(function, "__volley_role__", None) == name:
            return method
    return None


def request_class(function: Callable[..., Any]) -> Optional[type]:
    """The class of `infer`'s argument; None for a dict, as in the older style."""
    names = list(inspect.signature(function).parameters)
    hint = hints_of(function).get(names[0]) if names else None
    is_plain = hint in (None, dict, Any) or not isinstance(hint, type)
    return None if is_plain else hint


class Typed(Model):
    """A model whose `infer` takes and returns objects, one per row."""

    interface = "inferless"

    def __init__(self, function: Callable[..., Any], wanted: type, finish: Any) -> None:
        super().__init__()
        self._function = function
        self._wanted = wanted
        self.unload = finish
        answer = hints_of(function).get("return")
        if not isinstance(answer, type):
            raise LoadError("infer has no class for its answer; write: def infer(self, request: "
                            "%s) -> ResponseObjects" % wanted.__name__)
        self.inputs = fields_of(wanted)
        self.outputs = [field._replace(nullable=field.nullable and is_optional(answer, field.name))
                        for field in fields_of(answer)]

    def answer(self, rows: int, columns: Dict[str, Column],
               parameters: Dict[str, Any]) -> List[Column]:
        """The outputs of all rows."""
        if parameters:
            raise InvalidInput("the model has no parameter '%s'" % next(iter(parameters)))
        values = {field.name: input_values(field, columns, rows) for field in self.inputs}
        answers = []
        for row in range(rows):
            given = {name: column[row] for name, column in values.items()
                     if column[row] is not None}
            try:
                request = self._wanted(**given)
            except (TypeError, ValueError) as error:
                raise InvalidInput("the input is no %s" % self._wanted.__name__) from error
            answers.append(self._function(request))
        for answer in answers:
            for field in self.outputs:
                if not hasattr(answer, field.name):
                    raise AnswerError("infer returned %s, which has no '%s'"
                                      % (type(answer).__name__, field.name))
        return [of_values(field, [plain(getattr(answer, field.name)) for answer in answers])
                for field in self.outputs]


def plain(value: Any) -> Any:
    """An object of pydantic as a dict."""
    return value.model_dump() if hasattr(value, "model_dump") else value


def is_optional(of: type, name: str) -> bool:
    """Whether the hint of a member allows None."""
    parsed = parse(hints_of(of)[name])
    return parsed is not None and parsed.nullable


def fields_of(of: type) -> List[Field]:
    """The members of a class of pydantic or a dataclass; those with a default may be null."""
    details = getattr(of, "model_fields", None)
    found = []
    for name, hint in hints_of(of).items():
        is_class_variable = typing.get_origin(hint) is typing.ClassVar
        if name.startswith("_") or is_class_variable or (details is not None
                                                         and name not in details):
            continue
        parsed = parse(hint)
        field = parsed.as_row().field(name) if parsed is not None else Field(name, "json")
        has_default = hasattr(of, name)
        if details is not None:
            has_default = not details[name].is_required()
        found.append(field._replace(nullable=field.nullable or has_default))
    if not found:
        raise LoadError("the class '%s' declares no members" % of.__name__)
    return found
