"""A small client of Volley: registers, deploys, infers with binary tensors."""

import http.client
import json
import threading
import time
import urllib.parse

import ml_dtypes
import numpy as np

DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}
LENGTH = "Inference-Header-Content-Length"


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """One connection for each thread."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url).netloc
        self.local = threading.local()

    def ask(self, method, path, body=b"", headers=None):
        for attempt in (0, 1):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPConnection(self.address, timeout=120)
                self.local.connection = connection
            try:
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                return response.status, response.headers, response.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                connection.close()
                self.local.connection = None
                if attempt:
                    raise

    def json(self, method, path, body=None):
        payload = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if payload else {}
        status, _, answer = self.ask(method, path, payload, headers)
        if status >= 300:
            raise Refused(status, error_of(answer))
        return json.loads(answer) if answer else {}

    def register(self, name, directory):
        body = {"name": name, "function_name": "onnx", "path": str(directory)}
        self.json("POST", "/_plugins/_ml/models/_register", body)

    def load(self, name):
        """Returns when the model answers; refused with the reason when it cannot be loaded."""
        self.json("POST", f"/v2/repository/models/{name}/load", {})

    def remove(self, name):
        self.json("POST", f"/v2/repository/models/{name}/unload", {})
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.json("DELETE", f"/_plugins/_ml/models/{name}")
            except Refused as refused:
                if refused.status != 409 or deadline < time.monotonic():
                    raise
                time.sleep(0.02)

    def infer(self, name, ports, arrays):
        """The outputs by name, as arrays."""
        inputs, blobs = [], []
        for port, array in zip(ports, arrays):
            blob = to_bytes(array)
            blobs.append(blob)
            inputs.append({
                "name": port.name,
                "datatype": port.datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(blob)},
            })
        head = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        head = json.dumps(head).encode()
        headers = {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        path = f"/v2/models/{name}/infer"
        status, told, body = self.ask("POST", path, head + b"".join(blobs), headers)
        if status != 200:
            raise Refused(status, error_of(body))
        length = int(told.get(LENGTH, len(body)))
        raw, outputs = memoryview(body)[length:], {}
        for output in json.loads(body[:length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = to_array(raw[:size], output["datatype"], output["shape"])
            raw = raw[size:]
        return outputs


def error_of(body):
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
    return error.get("reason", error) if isinstance(error, dict) else error


def to_bytes(array):
    array = np.asarray(array)
    if array.dtype.kind not in "OUS":
        return np.ascontiguousarray(array).tobytes()
    texts = (text if isinstance(text, bytes) else str(text).encode() for text in array.flat)
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def to_array(raw, datatype, shape):
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype]).reshape(shape)
    texts = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        texts.append(bytes(raw[4 : 4 + size]).decode())
        raw = raw[4 + size :]
    return np.array(texts, dtype=object).reshape(shape)
