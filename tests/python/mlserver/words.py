"""A model of a real MLServer that answers word by word.

A prompt that begins with `fail` fails after its first word, and one that begins with `wait` waits
until its caller is gone, which it writes into the file that VOLLEY_LEFT names.
"""

import asyncio
import os
from collections.abc import AsyncIterator

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse


def left():
    with open(os.environ["VOLLEY_LEFT"], "w", encoding="utf-8") as file:
        file.write("left")


class Words(MLModel):
    async def load(self) -> bool:
        return True

    def answer(self, text: str) -> InferenceResponse:
        output = StringCodec.encode_output("output", [text], use_bytes=False)
        return InferenceResponse(model_name=self.name, outputs=[output])

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        prompt = StringCodec.decode_input(payload.inputs[0])[0]
        return self.answer(f"You said: {prompt}")

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        async for payload in payloads:
            prompt = StringCodec.decode_input(payload.inputs[0])[0]
            yield self.answer("You said:")
            if prompt.startswith("fail"):
                raise InferenceError("the words were lost")
            try:
                for word in prompt.split():
                    yield self.answer(f" {word}")
                    # Forever, for a caller that does not leave.
                    while prompt.startswith("wait"):
                        await asyncio.sleep(0.02)
                        yield self.answer(".")
            finally:
                if prompt.startswith("wait"):
                    left()
