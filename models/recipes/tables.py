"""Makes the classifiers of tables in crates/backend-onnx/tests/models, exported as scikit-learn,
LightGBM and XGBoost are by default, each with `expected.json`: rows, and what onnxruntime's own
Python package answers to them.

Needs: pip install numpy pandas onnx onnxruntime scikit-learn skl2onnx onnxmltools lightgbm xgboost
Run:   python models/recipes/tables.py
"""

import json
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import pandas as pd
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

ROOT = Path(__file__).parents[2] / "crates" / "backend-onnx" / "tests" / "models"


def plain(value):
    """An output as JSON: maps by class have texts for keys."""
    if isinstance(value, list):
        return [{str(key): float(number) for key, number in row.items()} for row in value]
    return value.tolist()


def save(name, model, inputs):
    directory = ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(model, directory / "model.onnx")
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, map(plain, session.run(None, inputs)), strict=True))
    inputs = {name: column.tolist() for name, column in inputs.items()}
    text = json.dumps({"inputs": inputs, "outputs": outputs}, indent=1) + "\n"
    (directory / "expected.json").write_text(text)


def main():
    random = np.random.default_rng(7)
    rows = 300
    age = random.integers(1, 70, rows).astype(np.float32)
    fare = random.exponential(30, rows).astype(np.float32)
    city = random.choice(np.array(["Cherbourg", "Queenstown", "Southampton"], dtype=object), rows)
    score = 0.03 * (fare - age) + (city == "Cherbourg") * 0.8 + random.normal(0, 0.5, rows)
    survived = (score > 0).astype(np.int64)

    # One column each, as a table has them.
    columns = make_column_transformer(
        (StandardScaler(), ["age", "fare"]),
        (OneHotEncoder(handle_unknown="ignore"), ["city"]),
    )
    survive = make_pipeline(columns, LogisticRegression())
    survive.fit(pd.DataFrame({"age": age, "fare": fare, "city": city}), survived)
    types = [
        ("age", FloatTensorType([None, 1])),
        ("fare", FloatTensorType([None, 1])),
        ("city", StringTensorType([None, 1])),
    ]
    model = convert_sklearn(survive, "survive", types, target_opset=17)
    table = {name: column[:4, None] for name, column in
             (("age", age), ("fare", fare), ("city", city))}
    save("sklearn-columns", model, table)

    # Classes that are texts.
    iris = load_iris()
    kinds = np.array([str(name) for name in iris.target_names])[iris.target]
    flowers = iris.data.astype(np.float32)
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(flowers, kinds)
    save("sklearn-texts", to_onnx(forest, flowers[:1], target_opset=17), {"X": flowers[::50]})

    both = np.stack([age, fare], axis=1)
    kind = [("input", Floats([None, 2]))]
    light = lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(both, survived)
    for name, maps in (("lightgbm", True), ("lightgbm-tensors", False)):
        model = onnxmltools.convert_lightgbm(light, zipmap=maps, initial_types=kind,
                                             target_opset=15)
        save(name, model, {"input": both[:4]})

    boosted = xgboost.XGBClassifier(n_estimators=3, max_depth=2).fit(both, survived)
    save("xgboost", onnxmltools.convert_xgboost(boosted, initial_types=kind, target_opset=15),
         {"input": both[:4]})


if __name__ == "__main__":
    main()
