"""FastAPI around ONNX Runtime: `uvicorn fastapi_server:app`. Runs go to FastAPI's own threads."""

from encode import Encoder
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
encoder = Encoder()


class Texts(BaseModel):
    input: list[str]


@app.post("/embed")
def embed(texts: Texts):
    return {"embeddings": encoder(texts.input).tolist()}


@app.get("/ready")
def ready():
    return {}
