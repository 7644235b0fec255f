"""A runtime for MLServer; its settings turn adaptive batching on."""

from encode import Encoder
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class EncoderModel(MLModel):
    async def load(self):
        self.encoder = Encoder()
        return True

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(request.inputs[0])
        output = NumpyCodec.encode_output("embedding", self.encoder(texts))
        return InferenceResponse(model_name=self.name, outputs=[output])
