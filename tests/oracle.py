"""The oracle: an mtf program on an uneven mesh gives what mtf itself gives on one device, on every processor's slice.

A program is a function `build(feed) -> {name: mtf.Tensor}`. `feed(name, shape)` imports an array of fixed random
numbers. The harness adds a loss (a fixed random weighting of all floating-point outputs), its gradients with respect
to all floating-point inputs and variables, and one step of gradient descent, and compares each of these.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf

TOLERANCE = {tf.float64: 1e-9, tf.float32: 1e-5}
MODEL_TOLERANCE_FLOAT32 = 1e-4
LEARNING_RATE = 0.1
SEED = 7


class Feed:
    """Imports arrays of fixed random numbers, the same for the same name and shape."""

    def __init__(self, mesh: Any, dtype: Any) -> None:
        self.mesh = mesh
        self.dtype = dtype
        self.inputs: dict[str, Any] = {}

    def __call__(self, name: str, shape: Any, *, below: int | None = None) -> Any:
        """Normal numbers of the test's dtype, or int32 numbers in [0, below)."""
        shape = mtf.convert_to_shape(shape)
        rng = np.random.default_rng(crc32(name.encode()))
        if below is None:
            array = rng.standard_normal(shape.to_integer_list).astype(self.dtype.as_numpy_dtype)
        else:
            array = rng.integers(0, below, shape.to_integer_list, dtype=np.int32)
        self.inputs[name] = mtf.import_tf_tensor(self.mesh, tf.constant(array), shape)
        return self.inputs[name]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a program gave: per name, one array per processor, and the logical shape."""

    slices: Mapping[str, list[np.ndarray]]
    shapes: Mapping[str, Any]
    mesh_impl: Any


def _with_gradients(feed: Feed, outputs: dict[str, Any], graph: Any) -> tuple[dict[str, Any], list[Any]]:
    floating = {name: y for name, y in outputs.items() if y.dtype.is_floating}
    results, updates = dict(outputs), []
    if floating:
        weighted = [mtf.reduce_sum(y * feed(f"weights of {name}", y.shape)) for name, y in floating.items()]
        sources = {f"input {name}": x for name, x in feed.inputs.items() if x.dtype.is_floating}
        sources |= {f"variable {v.name}": v.outputs[0] for v in graph.trainable_variables}
        for (name, _), gradient in zip(sources.items(), mtf.gradients([mtf.add_n(weighted)], [*sources.values()])):
            if gradient is not None:
                results[f"gradient of {name}"] = gradient
        for v in graph.trainable_variables:
            gradient = results.get(f"gradient of variable {v.name}")
            if gradient is not None:
                updates.append(mtf.assign_sub(v, gradient * LEARNING_RATE))
    return results, updates


def run(
    build: Callable[[Feed], dict[str, Any]], make_mesh_impl: Callable[[], Any], dtype: Any, cluster: Any = None
) -> Result:
    """Runs a program on a mesh, of a Cluster's devices if one is given: outputs, gradients, then one step of descent.

    The reference's step is taken in NumPy: stock mtf on TensorFlow 2 lets a variable's update race with its reads.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(SEED)
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        feed = Feed(mesh, dtype)
        results, updates = _with_gradients(feed, build(feed), graph)
        variables = {f"variable {v.name} after a step": v for v in graph.all_variables}
        mesh_impl = make_mesh_impl()
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        slices = {name: lowering.tensors[y].to_laid_out_tensor().tensor_list for name, y in results.items()}
        exported = {f"export of {name}": lowering.export_to_tf_tensor(y) for name, y in results.items()}
        config = tf.ConfigProto(device_count={"CPU": max(1, mesh_impl.size)}, intra_op_parallelism_threads=1)
        if cluster is not None:
            config = cluster.session_config()
        if not isinstance(mesh_impl, mtf_hetero.UnevenMeshImpl):
            # TensorFlow 2.21's optimizer gives random program 4950 a result of the wrong shape on one device
            config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session("" if cluster is None else cluster.target, config=config) as session:
            session.run([tf.global_variables_initializer()])
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            values, whole = session.run([slices, exported])
            values = dict(values)
            if isinstance(mesh_impl, mtf_hetero.UnevenMeshImpl):
                session.run([lowering.lowered_operation(op) for op in updates])
            for name, v in variables.items():
                values[name] = session.run(lowering.variables[v].laid_out_tensor.tensor_list)
                gradient = values.get(f"gradient of variable {v.name}")
                if gradient is not None and not isinstance(mesh_impl, mtf_hetero.UnevenMeshImpl):
                    values[name] = [values[name][0] - LEARNING_RATE * gradient[0]]
        for name, array in whole.items():
            values[name] = [array]
        shapes = {name: y.shape for name, y in results.items()} | {n: v.shape for n, v in variables.items()}
        return Result(values, shapes, mesh_impl)


def one_device(build: Callable[[Feed], dict[str, Any]], dtype: Any = tf.float64) -> Result:
    """The reference: stock Mesh-TensorFlow on one device."""
    return run(build, lambda: mtf.placement_mesh_impl.PlacementMeshImpl([], [], [""]), dtype)


def mesh_impl_of(layout: mtf_hetero.Layout) -> Any:
    """An uneven mesh on logical devices of one CPU."""
    return mtf_hetero.UnevenMeshImpl.from_layout(layout, [f"cpu:{i}" for i in range(layout.size)])


def assert_same(reference: Result, uneven: Result, tolerance: float) -> None:
    """Compares each processor's slice, and the exported tensors, with the reference."""
    assert set(uneven.slices) == set(reference.slices)
    for name, slices in uneven.slices.items():
        expected = np.asarray(reference.slices[name][0])
        scale = max(1.0, float(np.abs(expected).max(initial=0))) if expected.dtype.kind == "f" else 1
        for pnum, actual in enumerate(slices):
            part = expected
            if not name.startswith("export of "):
                begin = uneven.mesh_impl.slice_begin(reference.shapes[name], pnum)
                size = uneven.mesh_impl.slice_shape(reference.shapes[name], pnum)
                part = expected[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]
            context = f"{name}, processor {pnum}"
            assert actual.shape == part.shape, context
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(actual, part, rtol=0, atol=tolerance * scale, err_msg=context)
            else:
                np.testing.assert_array_equal(actual, part, err_msg=context)


def check(
    build: Callable[[Feed], dict[str, Any]],
    *layouts: mtf_hetero.Layout,
    dtype: Any = tf.float64,
    tolerance: float | None = None,
) -> None:
    """Asserts that the program gives the same on every layout as on one device."""
    reference = one_device(build, dtype)
    for layout in layouts:
        with _naming(layout):
            uneven = run(build, lambda layout=layout: mesh_impl_of(layout), dtype)
            assert_same(reference, uneven, TOLERANCE[dtype] if tolerance is None else tolerance)


@contextlib.contextmanager
def _naming(layout: mtf_hetero.Layout) -> Any:
    try:
        yield
    except Exception as error:
        error.add_note(f"on {layout}")
        raise
