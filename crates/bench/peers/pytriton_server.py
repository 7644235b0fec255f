"""PyTriton: Triton's HTTP front and batcher before the same Python. `pytriton_server.py PORT`."""

import sys

import numpy as np
from encode import Encoder
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

encoder = Encoder()


@batch
def embed(text):
    return [encoder([row[0].decode() for row in text]).astype(np.float32)]


port = int(sys.argv[1])
config = TritonConfig(
    http_port=port, grpc_port=port + 1, metrics_port=port + 2, http_address="127.0.0.1")
with Triton(config=config) as triton:
    triton.bind(
        model_name="encoder",
        infer_func=embed,
        inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
        outputs=[Tensor(name="embedding", dtype=np.float32, shape=(384,))],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
    )
    triton.serve()
