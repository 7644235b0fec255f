"""Makes models/classifier/model.onnx: digits of 8 x 8 pixels, a network of two layers.

Needs: pip install numpy onnx onnxruntime
Run:   python models/recipes/classifier.py
The same seed gives the same model.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GLYPHS = {
    0: ".###.|#...#|#...#|#...#|#...#|#...#|.###.",
    1: "..#..|.##..|..#..|..#..|..#..|..#..|.###.",
    2: ".###.|#...#|....#|...#.|..#..|.#...|#####",
    3: "####.|....#|....#|.###.|....#|....#|####.",
    4: "...#.|..##.|.#.#.|#..#.|#####|...#.|...#.",
    5: "#####|#....|####.|....#|....#|#...#|.###.",
    6: ".###.|#....|#....|####.|#...#|#...#|.###.",
    7: "#####|....#|...#.|..#..|..#..|.#...|.#...",
    8: ".###.|#...#|#...#|.###.|#...#|#...#|.###.",
    9: ".###.|#...#|#...#|.####|....#|....#|.###.",
}
HIDDEN = 40


def draw(digit, random):
    """One digit somewhere in the picture, thick or thin, smudged."""
    glyph = np.array([[c == "#" for c in row] for row in GLYPHS[digit].split("|")], float)
    picture = np.zeros((8, 8))
    top, left = random.integers(0, 2), random.integers(0, 4)
    picture[top : top + 7, left : left + 5] = glyph
    if random.random() < 0.3:
        picture[:, 1:] = np.maximum(picture[:, 1:], 0.6 * picture[:, :-1])
    picture *= random.uniform(0.6, 1.0)
    picture += random.normal(0, 0.08, picture.shape)
    return np.clip(picture, 0, 1)


def sample(count, random):
    labels = random.integers(0, 10, count)
    return np.stack([draw(label, random) for label in labels]).reshape(count, 64), labels


def forward(x, weights):
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return hidden, exp / exp.sum(1, keepdims=True)


def train(random):
    weights = [
        random.normal(0, (2 / 64) ** 0.5, (64, HIDDEN)),
        np.zeros(HIDDEN),
        random.normal(0, (2 / HIDDEN) ** 0.5, (HIDDEN, 10)),
        np.zeros(10),
    ]
    moments = [[np.zeros_like(w), np.zeros_like(w)] for w in weights]
    for step in range(1, 4001):
        x, y = sample(64, random)
        hidden, probabilities = forward(x, weights)
        error = (probabilities - np.eye(10)[y]) / len(y)
        back = (error @ weights[2].T) * (hidden > 0)
        gradients = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        rate = 3e-3 * (1 - step / 4001)
        for w, g, (m, v) in zip(weights, gradients, moments):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            w -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return weights


def export(weights, path):
    names = ["w1", "b1", "w2", "b2"]
    constants = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in zip(names, weights)]
    constants.append(numpy_helper.from_array(np.array([-1, 64], np.int64), "flat"))
    nodes = [
        helper.make_node("Reshape", ["pixels", "flat"], ["x"]),
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 8, 8])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
        ],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def main():
    random = np.random.default_rng(7)
    weights = train(random)
    x, y = sample(2000, random)
    accuracy = (forward(x, weights)[1].argmax(1) == y).mean()
    path = Path(__file__).parents[1] / "classifier" / "model.onnx"
    export(weights, path)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    _, label = session.run(None, {"pixels": x.reshape(-1, 8, 8).astype(np.float32)})
    print(f"accuracy {accuracy:.3f}, exported {(label == y).mean():.3f}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
