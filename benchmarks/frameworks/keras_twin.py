"""A model of keras.applications, trained by Keras and by its builder on several layouts: how far they are apart."""

import gc
import itertools
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import mtf_hetero
from benchmarks.cases.keras_models import AGAIN, ONE_DEVICE, PLANNED
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.keras import Builder
from mtf_hetero.layers import batch_norm_updates
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.mesh import initial_value_feed
from mtf_hetero.planner.planning import find

_LEAST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}  # pixels; of the others 32
_CLASSES = 10
_RATE, _MOMENTUM = 2.0**-13, 0.875  # of which float32 has all digits: Keras keeps them so
_CONSTANT = ("mean", "variance", "count")  # weights that nothing changes, of a Normalization
_LINK = Link(1e-6, 1e12)  # over which it pays to divide
_PARTS = 8  # in which weights are read
_Values = Iterable[tuple[str, np.ndarray]]  # (kind/path, array)


class Twin:
    """A model, and what Keras has of it.

    Args:
      name: a function of keras.applications.
      directory: for what Keras has.
    """

    def __init__(self, name: str, examples: int, dtype: str, steps: int, seed: int, directory: str) -> None:
        self._steps = steps
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        keras.utils.set_random_seed(seed)
        size = _LEAST.get(name, 32)
        make = getattr(keras.applications, name)
        self._model = make(weights=None, classes=_CLASSES, input_shape=(size, size, 3), classifier_activation=None)
        rng = np.random.default_rng(seed)
        _prepare(self._model, rng)
        mean, deviation = (128.0, 64.0) if _rescales(self._model) else (0.0, 1.0)
        self._images = (mean + deviation * rng.standard_normal((examples, size, size, 3))).astype(dtype)
        self._factors = (rng.standard_normal((examples, _CLASSES)) / examples).astype(dtype)
        self._builder = Builder(self._model, starts=False)  # a graph has no room for the weights of the largest models
        self._directory, self._numbers = directory, itertools.count()
        self._initial = self._stored({v.path: np.asarray(v) for v in self._model.variables})
        self._reference = self._train_keras(self._images)

    def facts(self) -> dict[str, Any]:
        """Return the number of layers and weights, and the images' size."""
        return {
            "layers": len(self._model.layers),
            "weights": int(self._model.count_params()),
            "pixels": self._images.shape[1],
            "keras_seconds": self._seconds,
        }

    def _train_keras(self, of_images: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Keras's outputs, gradients and weights before the first step and after each."""
        begin, steps, dtype = time.perf_counter(), [], keras.config.floatx()
        for variable in self._model.variables:
            variable.assign(self._initial[variable.path])
        optimizer = keras.optimizers.SGD(_RATE, momentum=_MOMENTUM)
        weights = self._model.trainable_variables
        images = tf.convert_to_tensor(of_images)
        inferred = {"output/inference": np.asarray(self._model(images, training=False))}
        if not self._steps:
            steps.append(self._stored(inferred))
        for _ in range(self._steps):
            with tf.GradientTape() as tape:
                tape.watch(images)
                logits = self._model(images, training=True)
                loss = tf.reduce_sum(logits * self._factors)
            image_gradient, *gradients = tape.gradient(loss, [images, *[v.value for v in weights]])
            optimizer.apply(gradients, weights)
            found = {"output/training": np.asarray(logits), "gradient/images": np.asarray(image_gradient), **inferred}
            inferred = {}
            found |= {f"gradient/{v.path}": np.array(g) for v, g in zip(weights, gradients, strict=True)}
            moved = [v for v in self._model.variables if v.dtype == dtype and v.name not in _CONSTANT]
            found |= {f"{_kind(v)}/{v.path}": np.array(v) for v in moved}
            steps.append(self._stored(found))
        if self._steps:
            steps[-1]["output/trained"] = np.asarray(self._model(images, training=False))
        self._seconds = time.perf_counter() - begin
        return steps

    def _stored(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the same arrays in files: of large models, those of all steps are more than a machine's memory."""
        stored = {}
        for name, value in values.items():
            path = pathlib.Path(self._directory, f"{next(self._numbers)}.npy")
            np.save(path, value)
            stored[name] = np.load(path, mmap_mode="r")
        return stored

    def compare(self, layout: str, shares: Sequence[float]) -> dict[str, Any]:
        """Return the differences of the builder from Keras on a layout, {kind: the largest difference}, and seconds.

        Differences of outputs and weights are relative to the largest value of a tensor, or 1 if that is less; those of
        gradients to the largest of a tensor, or to a hundredth of the largest of all if that is more.
        """
        begin = time.perf_counter()
        errors: dict[str, float] = {}
        if layout == AGAIN:
            again = self._train_keras(np.nextafter(self._images, np.inf, dtype=self._images.dtype))
            trained = (step.items() for step in again)
        else:
            trained = self._train(layout, shares)
        for expected, actual in zip(self._reference, trained, strict=True):
            gradients = [np.abs(v).max() for name, v in expected.items() if name.startswith("gradient/")]
            floor, left = 0.01 * max(gradients, default=0.0), set(expected)
            for name, value in actual:
                kind = name.partition("/")[0]
                scale = max(np.abs(expected[name]).max(), floor if kind == "gradient" else 1.0)
                error = float(np.abs(expected[name] - value).max() / scale)
                errors[kind] = max(errors.get(kind, 0.0), error)
                left.remove(name)
            if left:
                raise RuntimeError(f"the builder has no {min(left)}")
        gc.collect()
        return {**errors, "seconds": time.perf_counter() - begin}

    def _train(self, layout: str, shares: Sequence[float]) -> Iterator[_Values]:
        """Yield the builder's values, step by step, in the form of `_train_keras`; read each before the next."""
        with tf.Graph().as_default():
            yield from self._train_in_graph(layout, shares)

    def _train_in_graph(self, layout: str, shares: Sequence[float]) -> Iterator[_Values]:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        dims = [mtf.Dimension(n, s) for n, s in zip(("batch", "height", "width", "channels"), self._images.shape)]
        images = mtf.import_tf_tensor(mesh, tf.constant(self._images), mtf.Shape(dims))
        if not self._steps:
            yield self._infer(graph, images, layout, shares).items()
            return
        logits = self._builder(images, training=True)
        factors = mtf.import_tf_tensor(mesh, tf.constant(self._factors), logits.shape)
        weights = graph.trainable_variables
        sources = [images, *[v.outputs[0] for v in weights]]
        image_gradient, *gradients = mtf.gradients([mtf.reduce_sum(logits * factors)], sources)
        updates = batch_norm_updates(graph)
        for variable, gradient in zip(weights, gradients, strict=True):
            updates += _momentum(variable, gradient)
        inferred = self._builder(images, training=False)
        mesh_impl = _mesh_impl(graph, layout, shares)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl}, autostack=False)
        exported = {"output/training": logits, "gradient/images": image_gradient}
        names = {name: w.variable.path for name, w in self._builder.variables.items()}
        exported |= {f"gradient/{names[v.name]}": g for v, g in zip(weights, gradients, strict=True)}
        fetched = {name: lowering.export_to_tf_tensor(x) for name, x in exported.items()}
        inference = lowering.export_to_tf_tensor(inferred)
        held = {v.name: lowering.export_to_tf_tensor(v.outputs[0]) for v in graph.all_variables if v.name in names}
        step = tf.group([lowering.lowered_operation(op) for op in updates])
        with _session(mesh_impl.size) as session:
            session.run(tf.global_variables_initializer(), self._initial_values())
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            before = {"output/inference": session.run(inference)}
            for left in reversed(range(self._steps)):
                found, _ = session.run([fetched, step])
                after = {} if left else {"output/trained": session.run(inference)}
                yield itertools.chain(
                    before.items(), self._gradients(found), self._weights(session, held), after.items()
                )
                before = {}

    def _gradients(self, found: dict[str, np.ndarray]) -> _Values:
        """Yield the fetched values in Keras's form; each array is released after it was returned."""
        while found:
            name, value = found.popitem()
            yield name, self._as_keras(name, value)

    def _weights(self, session: tf.Session, held: Mapping[str, tf.Tensor]) -> _Values:
        """Yield the weights as Keras has them, a part of them at a time: of large models all are gigabytes."""
        for part in range(_PARTS):
            for name, value in session.run({name: held[name] for name in sorted(held)[part::_PARTS]}).items():
                weight = self._builder.variables[name]
                yield f"{_kind(weight.variable)}/{weight.variable.path}", weight.to_keras(value)

    def _infer(self, graph: mtf.Graph, images: mtf.Tensor, layout: str, shares: Sequence[float]) -> dict[str, Any]:
        logits = self._builder(images, training=False)
        mesh_impl = _mesh_impl(graph, layout, shares)
        lowering = mtf_hetero.Lowering(graph, {images.mesh: mesh_impl})
        output = lowering.export_to_tf_tensor(logits)
        with _session(mesh_impl.size) as session:
            session.run(tf.global_variables_initializer(), self._initial_values())
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            return {"output/inference": session.run(output)}

    def _initial_values(self) -> Mapping[Any, np.ndarray]:
        """Return the feeds with which the builder starts from Keras's initial values."""
        weights = self._builder.variables.items()
        return initial_value_feed({name: w.to_mtf(self._initial[w.variable.path]) for name, w in weights})

    def _as_keras(self, name: str, value: np.ndarray) -> np.ndarray:
        of = {weight.variable.path: weight for weight in self._builder.variables.values()}
        path = name.removeprefix("gradient/")
        return of[path].to_keras(value) if path in of else value

    @property
    def builder(self) -> Builder:
        """The model's builder."""
        return self._builder


def _prepare(model: Any, rng: np.random.Generator) -> None:
    """Weights that are not all ones and zeros; no dropout, of which each has random numbers of its own."""
    for layer in model.layers:
        for attribute in ("rate", "drop_path_rate"):
            if hasattr(layer, attribute):
                setattr(layer, attribute, 0.0)
    for variable in model.variables:
        noise = 0.1 * rng.standard_normal(variable.shape)
        if variable.name == "gamma" and np.all(np.array(variable) == 1):
            variable.assign(1 + noise)
        elif variable.name in ("beta", "bias", "moving_mean"):
            variable.assign(noise)
        elif variable.name == "moving_variance":
            variable.assign(1 + np.abs(noise))


def _rescales(model: Any) -> bool:
    """Return whether a model expects pixels from 0 to 255."""
    return any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in model.layers)


def _kind(variable: Any) -> str:
    return "average" if variable.name.startswith("moving_") else "weight"


def _momentum(variable: mtf.Variable, gradient: mtf.Tensor) -> list[mtf.Assign]:
    """Stochastic gradient descent with momentum as Keras computes it."""
    velocity = mtf.get_variable(
        variable.mesh, f"{variable.name}/velocity", variable.shape, dtype=gradient.dtype,
        initializer=tf.zeros_initializer(), trainable=False,
    )  # fmt: skip
    moved = velocity * _MOMENTUM - gradient * _RATE
    return [mtf.assign(velocity, moved), mtf.assign_add(variable, moved)]


def _session(devices: int) -> tf.Session:
    """Return a session of so many devices, which does not spend minutes on optimizing a graph for a few steps."""
    config = tf.ConfigProto(device_count={"CPU": devices})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.Session(config=config)


def _mesh_impl(graph: mtf.Graph, layout: str, shares: Sequence[float]) -> mtf_hetero.UnevenMeshImpl:
    if layout == ONE_DEVICE:
        return mtf_hetero.UnevenMeshImpl("all:1", "", [""])
    if layout == PLANNED:
        machines = Machines(
            tuple(Machine(f"cpu:{i}", share * 1e9, share * 1e9) for i, share in enumerate(shares)), _LINK
        )
        plan = find(graph, machines)
        return mtf_hetero.UnevenMeshImpl.from_layout(plan.layout, plan.devices)
    shape = f"all:{len(shares)}"
    rules: Mapping[str, Any] = {"mesh_shape": shape, "shares": {"all": list(shares)}}
    made: Layout = LAYOUTS[layout](graph, **rules)
    return mtf_hetero.UnevenMeshImpl.from_layout(made, [f"cpu:{i}" for i in range(len(shares))])
