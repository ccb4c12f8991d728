"""The table of renderers: each makes a report from a case's rows."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from benchmarks.renderers import (
    any_step,
    dropout,
    elastic,
    faults,
    heterogeneous,
    keras_fit,
    keras_models,
    learning,
    lowering,
    one_device,
    phases,
    planner,
    reading,
    sequences,
    slots,
    spatial,
    splitbrain,
    stages,
    verdicts,
    volumes,
)
from benchmarks.renderers.document import Report
from benchmarks.renderers.tables import Row

Renderer = Callable[[Sequence[Row]], Report]
RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {
        "accounting": one_device.render_account,
        "any_step": any_step.render,
        "cluster_curve": learning.render_cluster_curve,
        "cosmology": volumes.render_cosmology,
        "dropout": dropout.render,
        "elastic": elastic.render,
        "faults": faults.render,
        "heterogeneous": heterogeneous.render,
        "keras_fit": keras_fit.render,
        "keras_models": keras_models.render,
        "learning_curve": learning.render_curve,
        "lowering": lowering.render,
        "one_device": one_device.render,
        "phases": phases.render,
        "planner": planner.render,
        "segmentation": volumes.render_segmentation,
        "reading": reading.render,
        "sequences": sequences.render,
        "slots": slots.render,
        "spatial": spatial.render,
        "splitbrain": splitbrain.render,
        "stages": stages.render,
        "verdicts": verdicts.render,
    }
)

__all__ = ["RENDERERS", "Renderer"]
