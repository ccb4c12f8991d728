"""Keras models on workers that are linked by slow links: planned with slots and without, and each worker alone."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import keras

import mtf_hetero
from benchmarks.frameworks.chief import short_errors
from benchmarks.frameworks.slow_link import LinkedCluster
from benchmarks.harness import CHECKED_STEPS
from benchmarks.networks import STAGED, Staged
from mtf_hetero import Layout, tf
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cost import calibration
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import describe, find

_RATE = 1e-3  # of learning


class Planned:
    """Workers, the one with most cores first, and a Keras model of benchmarks.networks.STAGED."""

    def __init__(self, network: str, link: int, fractions: Sequence[float], seed: int) -> None:
        self._local = LinkedCluster(fractions, link)
        self._cluster = self._local.__enter__()
        keras.utils.set_random_seed(seed)
        self._model = _build(STAGED[network], network)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(keras.optimizers.SGD(_RATE), loss, jit_compile=False)
        self._inputs = STAGED[network].batch(seed)
        self._plans: dict[str, Plan] = {}
        self._ways: dict[str, mtf_hetero.Divided] = {}
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """End the steps and the workers."""
        self._local.lift_limit()  # each step pulls its variables when it ends
        with contextlib.suppress(Exception):  # a worker may have ended
            self._stack.close()
        self._local.close()

    def plan(self) -> dict[str, dict[str, Any]]:
        """Measure the workers; return what is known of each way: {way: its prediction and its sizes}."""
        began = time.perf_counter()
        with self._place("stages") as staged, self._place("batch") as plain, short_errors():
            machines = calibration.calibrate(staged.build, self._cluster)
            measured = time.perf_counter()
            with tf.Graph().as_default():
                graph = plain.build()
                for number, name in enumerate(machines.names):
                    alone = describe(graph, machines.only([number]), Layout([("all", 1)], ()))
                    self._plans[f"alone, {shorten(name)}"] = alone
                self._plans["plan without slots"] = find(graph, machines)
            with tf.Graph().as_default():
                self._plans["plan"] = find(staged.build(), machines)
        spent = {"calibrate_seconds": measured - began, "plan_seconds": time.perf_counter() - measured}
        return {way: {**_describe(plan), **spent} for way, plan in self._plans.items()}

    def add(self, name: str) -> dict[str, Any]:
        """Open a way, and return the losses before two steps."""
        plan = self._plans[name]
        with short_errors():
            self._ways[name] = self._stack.enter_context(
                mtf_hetero.function(
                    self._step,
                    self._inputs,
                    workers=self._cluster,
                    layout=plan,
                    wait_for_workers=False,
                    rebalance="off",
                    verify=False,
                    progress=False,
                )
            )
        return {"losses": self.run(name, CHECKED_STEPS)["losses"]}

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Take steps, and return seconds and the losses before them."""
        begin = time.perf_counter()
        with short_errors():
            losses = [float(self._ways[name](*self._inputs)) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def _step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._model.compute_loss(x, y, self._model(x, training=True))
        variables = self._model.trainable_variables
        self._model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _place(self, layout: str) -> Any:
        """Return the step on devices of this process, of which only its graph is used."""
        devices = [f"cpu:{number}" for number, _ in enumerate(self._local.fractions)]
        options = {"list_speed": list(self._local.fractions), "verify": False, "progress": False}
        return mtf_hetero.function(self._step, self._inputs, devices=devices, layout=layout, **options)


def _describe(plan: Plan) -> dict[str, Any]:
    sent = sum(sum(layer.sent_bytes) for layer in plan.layers)
    sizes = {name: list(sizes) for name, sizes in plan.layout.sizes}
    used = [shorten(device) for device in dict.fromkeys(plan.devices)]
    slots = {axis: list(counts) for axis, counts in plan.layout.slots}
    return {"predicted_seconds": plan.seconds, "sizes": sizes, "used": used, "slots": slots, "sent_bytes": sent}


def _build(about: Staged, network: str) -> Any:
    layers = keras.layers
    if about.size:
        make = getattr(keras.applications, network)
        return make(input_shape=(about.size, about.size, 3), weights=None, classifier_activation=None)
    inputs = keras.Input([about.length], dtype="int32")
    x = layers.Embedding(about.classes, about.width)(inputs)
    x += layers.Embedding(about.length, about.width)(keras.ops.arange(about.length))
    for _ in range(about.layers):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x += layers.MultiHeadAttention(about.heads, about.width // about.heads)(y, y)
        y = layers.Dense(about.hidden, activation="relu")(layers.LayerNormalization(epsilon=1e-5)(x))
        x += layers.Dense(about.width)(y)
    return keras.Model(inputs, layers.Dense(about.classes)(layers.LayerNormalization(epsilon=1e-5)(x)))
