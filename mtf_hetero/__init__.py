"""Mesh-TensorFlow with uneven mesh layouts: each split dimension divided in proportion to what each device can do.

A name is imported when it is first asked for, so that the programs of the package can read their flags, and the parts
that are pure arithmetic can be used, before TensorFlow is loaded or without it.
"""

import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf, tf
    from mtf_hetero.estimator import (
        Estimator,
        EstimatorSpec,
        EvalSpec,
        ModeKeys,
        RunConfig,
        TrainSpec,
        train_and_evaluate,
    )
    from mtf_hetero.layout import Layout
    from mtf_hetero.lowering import Lowering
    from mtf_hetero.mesh_impl import UnevenMeshImpl
    from mtf_hetero.partition import split_by_share, split_by_time

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Layout",
    "Lowering",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "UnevenMeshImpl",
    "mtf",
    "split_by_share",
    "split_by_time",
    "tf",
    "train_and_evaluate",
]

_MODULE_OF = {
    "Layout": "layout",
    "Lowering": "lowering",
    "UnevenMeshImpl": "mesh_impl",
    "mtf": "_compat",
    "split_by_share": "partition",
    "split_by_time": "partition",
    "tf": "_compat",
}  # the others are the estimator's


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'estimator')}")
        globals()[name] = getattr(module, name)
        return globals()[name]
    if importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    modules = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
    return sorted({*globals(), *__all__, *modules})
