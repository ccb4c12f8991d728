"""Layouts that are planned on a cluster of unequal workers, and what a plan is compared with."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero import Layout, tf
from mtf_hetero.cluster import Cluster, LocalCluster, shorten
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models.plan import build_step
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import auto, calibration
from mtf_hetero.planner.find import describe, find
from mtf_hetero.planner.plan import Plan, dumps

_NEVER = 1e6  # seconds


class Planner:
    """Workers, and networks that are planned and run on them.

    Args:
      fractions: cores of each worker.
    """

    def __init__(self, fractions: Sequence[float]) -> None:
        self._local = LocalCluster(fractions)
        self._cluster: Cluster = self._local.__enter__()

    def close(self) -> None:
        """Ends the workers."""
        self._local.close()

    def describe(self) -> dict[str, Any]:
        """The devices and what limits them."""
        return {"devices": [shorten(device) for device in self._cluster.devices], "limits": self._local.limits}

    def measure(
        self, model: str, batch_size: int, config: Mapping[str, Any], recipes: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """{way: seconds of a step in each turn, what was predicted, ...} of each device alone, of recipes and the plan.

        Args:
          model: a name in models.MODELS.
          batch_size: images or volumes of a step.
          config: keyword arguments of the model's build.
          recipes: names in layouts.LAYOUTS.
        """
        build = functools.partial(build_step, MODELS[model], batch_size, "sgd", **config)
        begin = time.perf_counter()
        machines = calibration.calibrate(build, self._cluster)
        calibrated = time.perf_counter()
        with tf.Graph().as_default():
            graph = build()
            plan = find(graph, machines)
            planned = time.perf_counter()
            speeds = calibration.speeds(graph, machines)
            fastest = max(range(len(speeds)), key=speeds.__getitem__)
            plans = {"alone": describe(graph, machines.only([fastest]), Layout([("all", 1)], ()))}
            for name in recipes:
                layout = LAYOUTS[name](graph, mesh_shape=f"all:{len(speeds)}", shares={"all": speeds})
                plans[name] = describe(graph, machines, layout)
            plans["plan"] = plan
        times = auto.race(build, self._cluster, plans, seconds=_NEVER)
        spent = {"calibrate_seconds": calibrated - begin, "plan_seconds": planned - calibrated}
        return {name: {**_row(plans[name]), "seconds": list(times[name]), **spent} for name in plans}


def _row(plan: Plan) -> dict[str, Any]:
    return {
        "predicted_seconds": plan.seconds,
        "sizes": {name: list(sizes) for name, sizes in plan.layout.sizes},
        "devices": [shorten(device) for device in plan.devices],
        "sent_bytes": sum(sum(layer.sent_bytes) for layer in plan.layers),
        "plan": dumps(plan) if len(plan.devices) > 1 else None,
    }
