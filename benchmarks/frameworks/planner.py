"""Layouts that are planned on a cluster of unequal workers, and what a plan is compared with."""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.frameworks.every_way import every_way
from benchmarks.frameworks.slow_link import LinkedCluster
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cost import calibration, memory
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.trial import Trial
from mtf_hetero.layouts import COMPARED
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import auto, trying
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import describe, find

_FEW = 3  # turns of each of very many ways
_AT_ONCE = 16  # ways of all that take turns
_FASTEST = 6  # of them, that take turns with a plan
_FLOPS, _BYTES, _LINK = 1e11, 2e10, Link(2e-4, 1e9)  # of a core, and between two, for plans whose memory is measured
_TRANSFORMER = {"length": 64, "d_model": 256, "heads": 8, "d_kv": 32, "d_ff": 1024, "vocab": 512}
_LAYERS = 2


class Planner:
    """Workers, and networks that are planned and run on them.

    Args:
      megabits_per_second: that each sends; None: as many as it can.
    """

    def __init__(self, fractions: list[float], megabits_per_second: float | None, return_memory: bool = False) -> None:
        self._local = LinkedCluster(fractions, megabits_per_second or 0, return_memory=return_memory)
        self._cluster: Cluster = self._local.__enter__()

    def close(self) -> None:
        """End the workers."""
        self._local.close()

    def describe(self) -> dict[str, Any]:
        """Return the devices and what limits them."""
        return {"devices": [shorten(device) for device in self._cluster.devices], "limits": self._local.limits}

    def measure(self, problem: Mapping[str, Any], rounds: int) -> dict[str, dict[str, Any]]:
        """{way: its turns, what was predicted, ...} of each device alone, fastest first, of recipes and the plan."""
        build = _builder(problem)
        begin = time.perf_counter()
        machines = calibration.calibrate(build, self._cluster)
        calibrated = time.perf_counter()
        with tf.Graph().as_default():
            graph = build()
            plan = find(graph, machines)
            planned = time.perf_counter()
            speeds = calibration.speeds(graph, machines)
            order = sorted(range(len(speeds)), key=speeds.__getitem__, reverse=True)
            whole = Layout([("all", 1)], ())
            alone = {
                f"alone, {shorten(machines.names[number])}": describe(graph, machines.only([number]), whole)
                for number in order
            }
            recipes = auto.describe_recipes(graph, machines, {name: COMPARED[name] for name in problem["recipes"]})
        plans = {**alone, **recipes, "plan": plan}
        turns = trying.race(build, self._cluster, plans, rounds=rounds)
        tried = [next(iter(alone)), min(recipes, key=lambda name: recipes[name].seconds), "plan"]
        taken = trying.winner({name: turns[name] for name in tried}, {name: plans[name].seconds for name in tried})
        spent = {"calibrate_seconds": calibrated - begin, "plan_seconds": planned - calibrated, "speeds": list(speeds)}
        return {
            name: {**_row(plans[name]), "turns": list(turns[name]), "is_taken": name == taken, **spent}
            for name in plans
        }

    def exhaust(self, problem: Mapping[str, Any], rounds: int) -> dict[str, Any]:
        """Return steps of a plan and of all ways to split the network. The fastest ways take turns with the plan.

        Returns:
          {"ways": {name: (predicted seconds, measured seconds)}, "turns": {name: seconds of each turn}, "predicted":
          {name: seconds of a step}}, the latter two of those that took turns.
        """
        build = _builder(problem)
        machines = calibration.calibrate(build, self._cluster)
        with tf.Graph().as_default():
            graph = build()
            plan, plans = find(graph, machines), {}
            for name, layout in every_way(graph, machines).items():
                with contextlib.suppress(NotImplementedError):
                    plans[name] = describe(graph, machines, layout)
        seconds: dict[str, float] = {}
        for names in (list(plans)[first : first + _AT_ONCE] for first in range(0, len(plans), _AT_ONCE)):
            turns = trying.race(build, self._cluster, {name: plans[name] for name in names}, rounds=_FEW)
            seconds |= {name: statistics.median(times) for name, times in turns.items()}
        fastest = sorted(seconds, key=seconds.__getitem__)[:_FASTEST]
        tried = {**{name: plans[name] for name in fastest}, "plan": plan}
        turns = trying.race(build, self._cluster, tried, rounds=rounds)
        return {
            "ways": {name: (plans[name].seconds, seconds[name]) for name in seconds},
            "turns": {name: list(times) for name, times in turns.items()},
            "predicted": {name: each.seconds for name, each in tried.items()},
        }

    def measure_memory(self, problem: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Return the memory of each worker in steps of a plan, for devices of these speeds, beside the prediction."""
        build, devices = _builder(problem), zip(self._cluster.devices, self._local.fractions, strict=True)
        machines = Machines(tuple(Machine(d, cores * _FLOPS, cores * _BYTES) for d, cores in devices), _LINK)
        with tf.Graph().as_default():
            plan = find(build(), machines)
        estimates = memory.estimate_layout(build, plan.layout)
        places = [self._cluster.devices.index(device) for device in plan.devices]
        peaks = memory.ProcessPeaks([self._local.pids[place] for place in places])
        with Trial(build, plan.layout, plan.devices, self._cluster) as trial:
            for _ in range(steps):
                trial.run()
            measured = peaks.read()
        return {
            "workers": places,
            "peak_bytes": list(measured),
            "predicted_bytes": [each.peak for each in estimates],
            "runtime_bytes": [each.runtime for each in estimates],
        }


def _row(plan: Plan) -> dict[str, Any]:
    return {
        "predicted_seconds": plan.seconds,
        "sizes": {name: list(sizes) for name, sizes in plan.layout.sizes},
        "used_devices": [shorten(device) for device in plan.devices],
        "sent_bytes": sum(sum(layer.sent_bytes) for layer in plan.layers),
    }


def _builder(problem: Mapping[str, Any]) -> Callable[[], mtf.Graph]:
    """From nothing to the mtf.Graph of a training step, in TensorFlow's default graph."""
    if problem["network"] == "transformer":
        return functools.partial(_build_transformer, problem["batch_size"])
    model = MODELS[problem["network"]]
    if problem["image_shape"]:
        model = dataclasses.replace(model, image_shape=tuple(problem["image_shape"]))
    config = {name: tuple(x) if isinstance(x, list) else x for name, x in problem["config"].items()}
    return functools.partial(build_step, model, problem["batch_size"], "sgd", **config)


def _build_transformer(batch_size: int) -> mtf.Graph:
    """Return a Transformer that predicts the next of some characters, with a step of gradient descent."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    batch = mtf.Dimension("batch", batch_size)
    length, model, heads, d_kv, d_ff, vocab = (mtf.Dimension(*item) for item in _TRANSFORMER.items())
    shape = mtf.Shape([batch, length])
    inputs, targets = (
        mtf.import_tf_tensor(mesh, tf.zeros(shape.to_integer_list, tf.int32), shape, name=name)
        for name in ("inputs", "targets")
    )
    float32 = mtf.VariableDType()
    x = mtf.layers.embedding(inputs, vocab, model, float32, name="characters")
    x += mtf.layers.embedding_weights(mesh, length, model, float32, name="positions")
    mask = mtf.layers.attention_mask_autoregressive(mtf.range(mesh, length, tf.int32), tf.float32)
    for number in range(1, _LAYERS + 1):
        y = mtf.layers.layer_norm(x, model, name=f"before_attention{number}")
        x += mtf.layers.multihead_attention(y, None, mask, d_kv, heads, is_training=True, name=f"attention{number}")
        y = mtf.layers.layer_norm(x, model, name=f"before_hidden{number}")
        y = mtf.layers.dense(y, [d_ff], reduced_dims=[model], activation=mtf.relu, name=f"hidden{number}")
        x += mtf.layers.dense(y, [model], reduced_dims=[d_ff], name=f"output{number}")
    logits = mtf.layers.dense(mtf.layers.layer_norm(x, model), [vocab], reduced_dims=[model], name="logits")
    loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab))
    gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
    mtf.optimize.SgdOptimizer(0.01).apply_grads(gradients, graph.trainable_variables)
    return graph
