"""Plain models on tables: typed arguments, whole columns, dicts of columns or Arrow batches."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..answers import check_names, input_array, input_values, of_values, output_columns
from ..hints import Arguments, Hint, hints_of, is_numpy, is_structure, members, parse
from ..wire import FORMATS, TEXTS, Column, Field
from .base import LoadError, Model
from .plain_text import is_async

ROW, COLUMNS, DICT, ARROW = "row", "columns", "dict", "arrow"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Argument(typing.NamedTuple):
    """An input of a function with typed arguments."""

    field: Field
    is_array: bool
    default: Any


def load(function: Callable[..., Any], inputs: Any, outputs: Any) -> Model:
    """The model of a function whose hints or declarations tell its columns."""
    return fill(Table(function), inputs, outputs)


def fill(model: "Table", inputs: Any, outputs: Any) -> Model:
    """Reads the columns of a model from the hints of its function and from declarations."""
    function = model.function
    hints = hints_of(function)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    first = positional[0].name if positional else ""
    declared_in, declared_out = declared("inputs", inputs), declared("outputs", outputs)
    hint = hints.get(first)
    is_named_batch = first == "batch" and hint in (None, dict)
    if len(positional) == 1 and (is_batch_hint(hint) or is_named_batch):
        return _load_batch(model, hint, declared_in, declared_out, first)
    skipped = [one.name for one in positional]
    parsed = [parse(hints.get(one.name)) for one in positional]
    # A list is a column, unless an argument is a single value: then it is a list in a row.
    has_single = any(one is not None and not one.whole for one in parsed)
    model.arguments = [
        _argument(function, one, one.name in hints, meaning, has_single, declared_in)
        for one, meaning in zip(positional, parsed)
    ]
    wholes = {one.name for one, meaning in zip(positional, parsed)
              if meaning is not None and (meaning.as_row() if has_single else meaning).whole}
    if wholes and len(wholes) < len(positional):
        single = next(one.name for one in positional if one.name not in wholes)
        raise LoadError(
            "the argument '%s' of '%s' is one value and '%s' a whole column; make it a column too "
            "(%s: list[float]) or a parameter of the request (after *)"
            % (single, function.__name__, sorted(wholes)[0], single))
    model.style = COLUMNS if wholes else ROW
    model.inputs = declared_in or [argument.field for argument in model.arguments]
    model.outputs = declared_out or model.outputs_of(hints.get("return"), bool(wholes))
    _set_parameters(model, skipped)
    return model


def _load_batch(model: "Table", hint: Any, inputs: Optional[List[Field]],
                outputs: Optional[List[Field]], first: str) -> Model:
    """A model whose function takes one batch."""
    is_arrow = getattr(hint, "__module__", "").startswith("pyarrow")
    for name, fields in (("inputs", inputs), ("outputs", outputs)):
        if not fields:
            raise LoadError(
                "a model that takes a batch declares its columns; write: %s = [{\"name\": \"x\", "
                "\"type\": \"fp32\", \"shape\": []}]" % name)
    model.style = ARROW if is_arrow else DICT
    values = typing.get_args(hint)
    model.as_arrays = bool(values) and (is_numpy(values[-1]) or is_numpy(
        typing.get_origin(values[-1])))
    model.inputs, model.outputs = inputs or [], outputs or []
    _set_parameters(model, [first])
    return model


def _set_parameters(model: "Table", skipped: List[str]) -> None:
    model.bound = Arguments(model.function, skipped)
    model.parameters = model.bound.names
    model.any_parameter = model.bound.any_parameter


def is_batch_hint(hint: Any) -> bool:
    """Whether a hint is that of a batch: an Arrow batch, or a dict of columns."""
    if getattr(hint, "__name__", "") == "RecordBatch":
        return True
    if typing.get_origin(hint) is not dict:
        return False
    inner = typing.get_args(hint)[-1]
    return inner is list or is_numpy(inner) or typing.get_origin(inner) is list or is_numpy(
        typing.get_origin(inner))


def _argument(function: Callable[..., Any], parameter: inspect.Parameter, is_hinted: bool,
              parsed: Optional[Hint], has_single: bool,
              inputs: Optional[List[Field]]) -> Argument:
    """The input of one argument."""
    name = parameter.name
    for field in inputs or []:
        if field.name == name:
            return Argument(field, parsed is not None and parsed.whole == "array",
                            parameter.default)
    if parsed is None:
        line = "%s: float" % name
        if is_hinted:
            line = "%s: Annotated[np.ndarray, \"fp32\", (3, 224, 224)]" % name
        elif name in ("prompt", "text", "messages"):
            line = "%s: str" % name
        raise LoadError("the argument '%s' of '%s' has no type that tells its column; write: "
                        "def %s(%s)" % (name, function.__name__, function.__name__, line))
    if has_single:
        parsed = parsed.as_row()
    field = parsed.field(name)
    if parameter.default is not inspect.Parameter.empty:
        field = field._replace(nullable=True)
    return Argument(field, parsed.whole == "array", parameter.default)


def _outputs(function: Callable[..., Any], hint: Any, is_whole: bool) -> List[Field]:
    """The outputs that a return hint tells."""
    if is_structure(hint):
        return structure_fields(hint, is_whole)
    is_dict = hint is dict or typing.get_origin(hint) is dict
    parsed = None if hint is None or is_dict else parse(hint)
    if parsed is None:
        first = next(iter(inspect.signature(function).parameters), "")
        single = "str" if first in ("prompt", "messages") else "float"
        line = "def %s(...) -> %s" % (function.__name__, "list[float]" if is_whole else single)
        if is_dict:
            line = "outputs = [{\"name\": \"score\", \"type\": \"fp64\", \"shape\": []}]"
        raise LoadError("the answer of '%s' has no type that tells its columns; write: %s"
                        % (function.__name__, line))
    return [(parsed if is_whole else parsed.as_row()).field("output")]


def structure_fields(hint: Any, is_whole: bool) -> List[Field]:
    """The members of a dataclass, a NamedTuple or a TypedDict as outputs."""
    fields = []
    for name, member in hints_of(hint).items():
        parsed = parse(member)
        if parsed is None:
            raise LoadError("the member '%s' of %s has no type that tells its column; write: "
                            "%s: float" % (name, hint.__name__, name))
        fields.append((parsed if is_whole else parsed.as_row()).field(name))
    return fields


def declared(what: str, fields: Any) -> Optional[List[Field]]:
    """Explicit declarations of columns."""
    if fields is None:
        return None
    found = []
    for field in fields:
        type = field.get("type") if isinstance(field, dict) else None
        if not isinstance(field, dict) or "name" not in field or not (
                type in FORMATS or type in TEXTS):
            raise LoadError("each of the model's %s is like {\"name\": \"x\", \"type\": \"fp32\", "
                            "\"shape\": [2]}; types are %s" % (what, ", ".join([*FORMATS, *TEXTS])))
        found.append(Field(field["name"], type, tuple(field.get("shape") or ()),
                           bool(field.get("nullable"))))
    return found


class Table(Model):
    """A function that answers the rows of a table."""

    task = "tensors"

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.style = ROW
        self.as_arrays = False
        self.arguments: List[Argument] = []
        self.bound: Any = None
        self.is_async = is_async(function)
        if self.is_async and self.task == "tensors":
            self.answer = self._answer_async

    def outputs_of(self, hint: Any, is_whole: bool) -> List[Field]:
        """The outputs that the return hint tells."""
        return _outputs(self.function, hint, is_whole)

    def _values(self, columns: Dict[str, Column], rows: int) -> List[Any]:
        """One list or array per argument."""
        found = []
        for argument in self.arguments:
            if argument.is_array:
                found.append(input_array(argument.field, columns, rows))
                continue
            values = input_values(argument.field, columns, rows)
            if argument.default is not inspect.Parameter.empty:
                values = [argument.default if value is None else value for value in values]
            found.append(values)
        return found

    def _batch(self, columns: Dict[str, Column], rows: int) -> Any:
        """The only argument of a function that takes a batch."""
        if self.style == ARROW:
            from .. import arrow
            return arrow.batch_of(self.inputs, columns, rows)
        read = input_array if self.as_arrays else input_values
        return {field.name: read(field, columns, rows) for field in self.inputs}

    def calls(self, rows: int, columns: Dict[str, Column]) -> List[Tuple[Any, ...]]:
        """The positional arguments of each call of the function."""
        if self.style == ROW:
            return list(zip(*self._values(columns, rows)))
        if self.style == COLUMNS:
            return [tuple(self._values(columns, rows))]
        return [(self._batch(columns, rows),)]

    def _columns(self, rows: int, answers: List[Any]) -> List[Column]:
        """The columns of the answers of all calls."""
        if self.style != ROW:
            answer = answers[0]
            if type(answer).__name__ == "RecordBatch":
                from .. import arrow
                return arrow.columns_of(self.outputs, answer)
            return output_columns(self.outputs, answer, rows)
        names = [field.name for field in self.outputs]
        if names == ["output"] and not (answers and isinstance(answers[0], dict)
                                        and "output" in answers[0]):
            return [of_values(self.outputs[0], answers)]
        found = []
        for answer in answers:
            row = members(answer, names)
            check_names(names, row)
            found.append(row)
        return [of_values(field, [row[field.name] for row in found]) for field in self.outputs]

    def answer(self, rows: int, columns: Dict[str, Column],
               parameters: Dict[str, Any]) -> List[Column]:
        """The outputs of all rows."""
        bound = self.bound.bind(parameters)
        calls = self.calls(rows, columns)
        return self._columns(rows, [self.function(*values, **bound) for values in calls])

    async def _answer_async(self, rows: int, columns: Dict[str, Column],
                            parameters: Dict[str, Any]) -> List[Column]:
        bound = self.bound.bind(parameters)
        calls = self.calls(rows, columns)
        return self._columns(rows, [await self.function(*values, **bound) for values in calls])

