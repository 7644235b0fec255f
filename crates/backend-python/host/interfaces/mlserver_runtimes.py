"""Inputs and outputs of MLServer's published runtimes, whose settings declare none.

The runtimes for scikit-learn, XGBoost and LightGBM accept one tensor with a row of features for each
prediction. The number of features is the loaded model's. A prediction for one row of zeros shows the
types and shapes of its outputs.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from ..loop import event_loop
from .base import LoadError

#: Packages of the runtimes.
PACKAGES = ("mlserver_sklearn", "mlserver_xgboost", "mlserver_lightgbm")
#: Name of the input in the requests of MLServer's documentation.
INPUT = "predict"
#: Methods of a model that are outputs of the runtimes, if the settings choose none.
METHODS = ("predict", "predict_proba")


def declare(instance: Any, settings: Any, context: Any) -> Optional[Tuple[List[Any], List[Any]]]:
    """The inputs and outputs of a runtime's model; None for other classes."""
    package = next((of for of in PACKAGES for kind in type(instance).__mro__
                    if kind.__module__.split(".")[0] == of), None)
    if package is None:
        return None
    from mlserver.types import MetadataTensor
    model = instance._model  # pylint: disable=protected-access
    features = count_features(model)
    names = output_names(package, settings, model)
    with context(settings):
        outputs = event_loop().run_until_complete(probe(instance, settings, features, names))
    declared = [MetadataTensor(name=output.name, datatype=output.datatype,
                               shape=[-1] + list(output.shape[1:])) for output in outputs]
    return [MetadataTensor(name=INPUT, datatype="FP64", shape=[-1, features])], declared


def count_features(model: Any) -> int:
    """The length of a row."""
    found = getattr(model, "n_features_in_", None)
    if found is None and hasattr(model, "num_feature"):
        found = model.num_feature()
    if not isinstance(found, int) or found < 1:
        raise LoadError("the model does not report how many features it takes; declare \"inputs\" "
                        "and \"outputs\" in model-settings.json")
    return found


def output_names(package: str, settings: Any, model: Any) -> Optional[List[str]]:
    """The outputs to request; None where the runtime takes no names."""
    if package == "mlserver_lightgbm":
        return None
    extra = (settings.parameters.extra if settings.parameters else None) or {}
    if "predict_fn" in extra:
        return [extra["predict_fn"]]
    return [method for method in METHODS if hasattr(model, method)] or ["transform"]


async def probe(instance: Any, settings: Any, features: int, names: Optional[List[str]]
                ) -> List[Any]:
    """The outputs for one row of zeros."""
    import numpy
    from mlserver.types import InferenceRequest, RequestInput
    rows = numpy.zeros((1, features))
    request = InferenceRequest(
        model_name=settings.name, outputs=requested(names),
        inputs=[RequestInput(name=INPUT, shape=[1, features], datatype="FP64", data=rows)])
    try:
        response = await instance.predict(request)
    except Exception as error:
        raise LoadError(
            "the model fails on a row of zeros (%s); if it needs named columns or texts, declare "
            "\"inputs\" and \"outputs\" in model-settings.json" % type(error).__name__) from error
    return response.outputs


def requested(names: Optional[List[str]]) -> Optional[List[Any]]:
    """The outputs as a request names them."""
    from mlserver.types import RequestOutput
    return None if names is None else [RequestOutput(name=name) for name in names]
