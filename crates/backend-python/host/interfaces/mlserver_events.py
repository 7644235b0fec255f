"""MLServer's streaming models: each response of `predict_stream` is an event.

Unary requests go to `predict` if the class has its own, as in MLServer.
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Dict, List, Sequence

from ..context import CURRENT
from ..events import check_names
from ..wire import Column
from .mlserver import Table, data_of, flat


class Events(Table):
    """A class with its own `predict_stream`."""

    task = "events"

    def __init__(self, instance: Any, settings: Any, context: Any, inputs: Sequence[Any],
                 outputs: Sequence[Any]) -> None:
        import mlserver
        super().__init__(instance, settings, context, inputs, outputs)
        self.max_rows = None
        self._has_predict = type(instance).predict is not mlserver.MLModel.predict

    async def stream(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any],
                     send: Any) -> None:
        """Gives the outputs of each response to `send`."""
        request = self.request_of(rows, columns, parameters)
        with self.context(self.settings):
            if self._has_predict and CURRENT.get().whole:
                await send(self.columns_of(await self.instance.predict(request)))
                return

            async def payloads() -> AsyncIterator[Any]:
                yield request

            responses = self.instance.predict_stream(payloads())
            try:
                async for response in responses:
                    await send(self.columns_of(response))
            finally:
                close = getattr(responses, "aclose", None)
                if close is not None:
                    await close()

    def columns_of(self, response: Any) -> List[Column]:
        """The columns of an event. The first length of an output's shape is its rows."""
        outputs = response.outputs
        if len(outputs) == len(self.outputs) == 1:
            return [self.output(self.outputs[0], self.declared_out[0], outputs[0],
                                rows_of(outputs[0]))]
        found = self.named(response)
        check_names([field.name for field in self.outputs], list(found))
        return [self.output(field, datatype, found[field.name], rows_of(found[field.name]))
                for field, datatype in zip(self.outputs, self.declared_out)]


def rows_of(output: Any) -> int:
    """The rows of an output."""
    if output.shape:
        return int(output.shape[0])
    return len(flat(data_of(output)))
