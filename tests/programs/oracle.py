"""The oracle: an mtf program on an uneven mesh gives what mtf itself gives on one device, on every processor's slice.

A program is a function `build(feed) -> {name: mtf.Tensor}`. `feed(name, shape)` imports an array of fixed random
numbers: as a constant, the value of a resource variable, or a placeholder that is fed, for TensorFlow folds, keeps and
shares each of them differently. The harness adds a loss (a fixed random weighting of all floating-point outputs), its
gradients with respect to all floating-point inputs and variables, and a step of gradient descent. It takes three steps
in one session, and compares all of this after each of them: what one call of a session leaves behind, the next shows.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tiers import CONSTANT, KINDS, MIXED, VARIABLE
from tiers import FED as FED
from tiers import ONCE as ONCE

import mtf_hetero
from mtf_hetero import mtf, tf
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.lowering import names
from mtf_hetero.mesh import collectives, traffic

TOLERANCE = {tf.float64: 1e-9, tf.float32: 1e-5}
MODEL_TOLERANCE_FLOAT32 = 1e-4
LEARNING_RATE = {tf.float64: 0.1, tf.float32: 1e-3}  # a long step would multiply what float32 rounds
MOMENTUM = 0.5
SEED = 7
STEPS = 3
DEVICES = os.environ.get("ORACLE_DEVICES", "").split(",")  # of processors, in turn; "": a logical CPU for each
of_cpus = pytest.mark.skipif(DEVICES != [""], reason="it tells processors by the numbers of their CPUs")


class Feed:
    """Imports arrays of fixed random numbers, the same for the same name and shape.

    Args:
      mesh: mtf.Mesh.
      dtype: of the floating-point numbers.
      kind: of the inputs; MIXED: each of a kind that its name decides.
    """

    def __init__(self, mesh: Any, dtype: Any, kind: str = CONSTANT) -> None:
        self.mesh = mesh
        self.dtype = dtype
        self.kind = kind
        self.inputs: dict[str, Any] = {}
        self.fed: dict[Any, np.ndarray] = {}  # {placeholder: what every step feeds}

    def __call__(self, name: str, shape: Any, *, below: int | None = None) -> Any:
        """Normal numbers of the test's dtype, or int32 numbers in [0, below)."""
        shape = mtf.convert_to_shape(shape)
        rng = np.random.default_rng(crc32(name.encode()))
        if below is None:
            array = rng.standard_normal(shape.to_integer_list).astype(self.dtype.as_numpy_dtype)
        else:
            array = rng.integers(0, below, shape.to_integer_list, dtype=np.int32)
        self.inputs[name] = mtf.import_tf_tensor(self.mesh, self._tensor(name, array), shape)
        return self.inputs[name]

    def _tensor(self, name: str, array: np.ndarray) -> Any:
        kind = KINDS[crc32(f"kind of {name}".encode()) % len(KINDS)] if self.kind == MIXED else self.kind
        if kind == CONSTANT:
            return tf.constant(array)
        if kind == VARIABLE:
            return tf.Variable(array, trainable=False, use_resource=True).read_value()
        placeholder = tf.placeholder(array.dtype, array.shape)
        self.fed[placeholder] = array
        return placeholder


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of a program: per step and name one array per processor, and per name the logical shape."""

    steps: Sequence[Mapping[str, list[np.ndarray]]]
    shapes: Mapping[str, Any]
    mesh_impl: Any

    @property
    def slices(self) -> Mapping[str, list[np.ndarray]]:
        """The results of the first step."""
        return self.steps[0]


def _with_gradients(feed: Feed, outputs: dict[str, Any], graph: Any) -> dict[str, Any]:
    floating = {name: y for name, y in outputs.items() if y.dtype.is_floating}
    results = dict(outputs)
    if floating:
        weighted = [mtf.reduce_sum(y * feed(f"weights of {name}", y.shape)) for name, y in floating.items()]
        sources = {f"input {name}": x for name, x in feed.inputs.items() if x.dtype.is_floating}
        sources |= {f"variable {v.name}": v.outputs[0] for v in graph.trainable_variables}
        for (name, _), gradient in zip(sources.items(), mtf.gradients([mtf.add_n(weighted)], [*sources.values()])):
            if gradient is not None:
                results[f"gradient of {name}"] = gradient
    return results


def _updates(variables: Mapping[Any, Any], rate: float, momentum: float) -> list[Any]:
    """Steps of the variables, {variable: gradient}, by mtf's own optimizers."""
    if momentum:
        return mtf.optimize.MomentumOptimizer(rate, momentum).apply_grads([*variables.values()], [*variables])
    return [mtf.assign_sub(v, gradient * rate) for v, gradient in variables.items()]


class _Descent:
    """The reference's steps, in NumPy: stock mtf on TensorFlow 2 lets a variable's update race with its reads."""

    def __init__(self, lowering: Any, variables: Sequence[Any], rate: float, momentum: float) -> None:
        self._rate, self._momentum = rate, momentum
        self._velocities = dict.fromkeys(variables, 0.0)
        self._set = {}
        for v in variables:
            (held,) = lowering.variables[v].laid_out_tensor.tensor_list
            placeholder = tf.placeholder(held.dtype.base_dtype, held.shape)
            self._set[v] = (held.assign(placeholder).op, placeholder)

    def step(self, session: Any, values: Mapping[Any, np.ndarray], gradients: Mapping[Any, np.ndarray]) -> None:
        """Mtf's momentum is one step late: the step is that of the velocity before."""
        fed = {}
        for v, (_, placeholder) in self._set.items():
            step = self._rate * gradients[v]
            if self._momentum:
                step, self._velocities[v] = self._velocities[v], step + self._momentum * self._velocities[v]
            fed[placeholder] = values[v] - step
        session.run([assign for assign, _ in self._set.values()], fed)


def assert_nothing_is_kept(graph: Any) -> None:
    """Each tensor that is changed in place has a stateful ancestor: TensorFlow neither folds nor shares it."""
    anew = set()
    for op in graph.get_operations():
        if op.op_def.is_stateful or any(x.op in anew for x in op.inputs):
            anew.add(op)
        if op.type.startswith("Inplace"):
            assert op.inputs[0].op in anew, f"{op.name} changes {op.inputs[0].name}, which TensorFlow may keep"


def run(
    build: Callable[[Feed], dict[str, Any]],
    make_mesh_impl: Callable[[], Any],
    dtype: Any,
    cluster: Any = None,
    *,
    kind: str = MIXED,
    rate: float | None = None,
    momentum: float = 0.0,
    gradients: bool = True,
    exports: bool = True,
    fused: bool = False,
    averages: bool = False,
    optimized: bool = True,
) -> Result:
    """Runs a program on a mesh, of a Cluster's devices if one is given: three steps, with outputs and gradients.

    Args:
      build: the program.
      make_mesh_impl: makes the implementation of the mesh; stock mtf's, for the reference.
      dtype: of the floating-point numbers.
      cluster: whose devices they are; None: those of this process.
      kind: of the inputs.
      rate: of the descent; None: that of the dtype.
      momentum: of the descent.
      gradients: whether there are any, and a descent.
      exports: whether all that is compared is exported too.
      fused: whether devices of one process send messages, which are arranged as those of workers always are.
      averages: whether each step moves the moving averages of batch norms.
      optimized: whether TensorFlow's graph optimizers are in use.
    """
    rate = LEARNING_RATE[dtype] if rate is None else rate
    with tf.Graph().as_default() as tf_graph:
        tf.set_random_seed(SEED)
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        feed = Feed(mesh, dtype, kind)
        outputs = build(feed)
        results = _with_gradients(feed, outputs, graph) if gradients else outputs
        variables = {f"variable {v.name}": v for v in graph.all_variables}
        moved = {v: results[f"gradient of {name}"] for name, v in variables.items() if f"gradient of {name}" in results}
        mesh_impl = make_mesh_impl()
        is_uneven = isinstance(mesh_impl, mtf_hetero.UnevenMeshImpl)
        mesh_impl = _of_graph(mesh_impl, graph) if is_uneven else mesh_impl
        updates = _updates(moved, rate, momentum) if is_uneven and moved else []
        updates += mtf_hetero.layers.batch_norm_updates(graph) if averages else []
        if not is_uneven:
            for op in graph.operations:
                if _convolves_volumes(op):
                    op.lower = functools.partial(_lower_conv3d_by_definition, op)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        slices = {name: lowering.tensors[y].to_laid_out_tensor().tensor_list for name, y in results.items()}
        exported = {f"export of {name}": lowering.export_to_tf_tensor(y) for name, y in results.items() if exports}
        held = {name: lowering.variables[v].laid_out_tensor.tensor_list for name, v in variables.items()}
        descent = None if is_uneven else _Descent(lowering, list(moved), rate, momentum)
        assert_nothing_is_kept(tf_graph)
        step = [lowering.lowered_operation(op) for op in updates]
        if fused or cluster is not None or len(set(mesh_impl.devices)) < mesh_impl.size:
            fetches = [slices, exported, step]
            traffic.arrange(fetches, is_message=lambda *ends: fused or not collectives.share_memory(ends))
        target, config = "" if cluster is None else cluster.target, _config(mesh_impl, cluster, optimized)
        with tf.Session(target, config=config) as session:
            session.run([tf.global_variables_initializer()])
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            steps = []
            for _ in range(STEPS):
                values, whole, _ = session.run([slices, exported, step], feed.fed)
                if descent is not None:
                    before = session.run(held)
                    names = {v: name for name, v in variables.items() if v in moved}
                    gradients_of = {v: values[f"gradient of {name}"][0] for v, name in names.items()}
                    descent.step(session, {v: before[name][0] for v, name in names.items()}, gradients_of)
                after = {f"{name} after the step": value for name, value in session.run(held).items()}
                steps.append({**values, **after, **{name: [array] for name, array in whole.items()}})
        shapes = {name: y.shape for name, y in results.items()}
        shapes |= {f"{name} after the step": v.shape for name, v in variables.items()}
        return Result(steps, shapes, mesh_impl)


def _of_graph(mesh_impl: Any, graph: Any) -> Any:
    """The mesh implementation without rules for dimensions that this program lacks: many programs share a layout."""
    kept = names.keep(mesh_impl.layout, dimension_sizes(graph.operations))
    return mesh_impl if kept is mesh_impl.layout else cpu_mesh_impl(kept)


def _convolves_volumes(op: Any) -> bool:
    """Return whether the operation is a 3D convolution from a large volume to a small one."""
    of_transposed = isinstance(op, mtf.Conv2or3dBackpropInputOperation) and op._is_transpose
    return isinstance(op, mtf.Conv3dOperation) or (of_transposed and op._conv_dimension == 3)


def _lower_conv3d_by_definition(op: Any, lowering: Any) -> None:
    """Convolves what the windows see and no more: where voxels are left over, TensorFlow begins late on some CPUs."""
    image, kernel = op.inputs
    padding, sizes = [(0, 0)], [-1]
    counts = op.outputs[0].shape.to_integer_list[-4:-1]
    for dim, window, stride, count in zip(image.shape.dims[-4:-1], kernel.shape.dims, op._strides[1:], counts):
        seen = (count - 1) * stride + window.size
        before = max(seen - dim.size, 0) // 2 if op._padding == "SAME" else 0
        padding.append((before, max(seen - before - dim.size, 0)))
        sizes.append(seen)

    def convolve(x: Any, w: Any) -> Any:
        flat = tf.reshape(x, [-1, *x.shape.as_list()[-4:]])
        flat = tf.slice(tf.pad(flat, [*padding, (0, 0)]), [0] * 5, [*sizes, -1])
        y = tf.nn.conv3d(flat, w, op._strides, "VALID")
        return tf.reshape(y, op.outputs[0].shape.to_integer_list)

    y = lowering.mesh_impl(op).slicewise(convolve, lowering.tensors[image], lowering.tensors[kernel])
    lowering.set_tensor_lowering(op.outputs[0], y)


def _config(mesh_impl: Any, cluster: Any, optimized: bool) -> Any:
    if cluster is not None:
        return cluster.session_config()
    config = tf.ConfigProto(device_count={"CPU": max(1, mesh_impl.size)}, intra_op_parallelism_threads=1)
    # TensorFlow 2.21's optimizers give random program 4950 a result of the wrong shape on one device
    is_reference = not isinstance(mesh_impl, mtf_hetero.UnevenMeshImpl)
    config.graph_options.rewrite_options.disable_meta_optimizer = is_reference or not optimized
    return config


def one_device(build: Callable[[Feed], dict[str, Any]], dtype: Any = tf.float64, **options: Any) -> Result:
    """The reference: stock Mesh-TensorFlow on one device."""
    stock = mtf.placement_mesh_impl.PlacementMeshImpl
    return run(build, lambda: stock([], [], ["cpu:0"]), dtype, kind=CONSTANT, **options)


def cpu_mesh_impl(layout: mtf_hetero.Layout) -> Any:
    """An uneven mesh on logical devices of one CPU, or on ORACLE_DEVICES."""
    devices = [DEVICES[i % len(DEVICES)] or f"cpu:{i}" for i in range(layout.device_count)]
    return mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)


def assert_same(reference: Result, uneven: Result, tolerance: float) -> None:
    """Compares each processor's slice, and the exported tensors, with the reference, after each step."""
    for number, (expected, found) in enumerate(zip(reference.steps, uneven.steps, strict=True)):
        assert set(found) == set(expected)
        for name, slices in found.items():
            context = f"step {number}: {name}"
            _assert_same_slices(np.asarray(expected[name][0]), slices, name, uneven, context, tolerance)


def _assert_same_slices(
    expected: np.ndarray, slices: Sequence[np.ndarray], name: str, uneven: Result, context: str, tolerance: float
) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0))) if expected.dtype.kind == "f" else 1
    for pnum, actual in enumerate(slices):
        part = expected
        if not name.startswith("export of "):
            begin = uneven.mesh_impl.slice_begin(uneven.shapes[name], pnum)
            size = uneven.mesh_impl.slice_shape(uneven.shapes[name], pnum)
            part = expected[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]
        where = f"{context}, processor {pnum}"
        assert actual.shape == part.shape, where
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(actual, part, rtol=0, atol=tolerance * scale, err_msg=where)
        else:
            np.testing.assert_array_equal(actual, part, err_msg=where)


def check(
    build: Callable[[Feed], dict[str, Any]],
    *layouts: mtf_hetero.Layout,
    dtype: Any = tf.float64,
    tolerance: float | None = None,
    reference: Result | None = None,
    kinds: Sequence[str] = KINDS,
    exports: bool = True,
    averages: bool = False,
) -> None:
    """Asserts that the program gives the same on every layout as on one device, whatever the kind of its inputs.

    Where there are several layouts, they share the kinds: each is run with one at least, and each kind on one.
    TensorFlow's graph optimizers, a fourth of the time, are in use in the first run of each kind.

    Args:
      build: the program.
      *layouts: the layouts.
      dtype: of the floating-point numbers.
      tolerance: by default that of the dtype.
      reference: what is right; None: the program on one device.
      kinds: of inputs; (MIXED,) for one run on each layout, of programs whose operations have tests of their own.
      exports: whether all that is compared is exported too.
      averages: whether each step moves the moving averages of batch norms; the reference is to have them moved.
    """
    reference = one_device(build, dtype, exports=exports) if reference is None else reference
    for number in range(max(len(layouts), len(kinds))):
        layout, kind = layouts[number % len(layouts)], kinds[number % len(kinds)]
        with _naming(layout, kind):
            options = {"kind": kind, "exports": exports, "averages": averages, "optimized": number < len(kinds)}
            uneven = run(build, lambda layout=layout: cpu_mesh_impl(layout), dtype, **options)
            assert_same(reference, uneven, TOLERANCE[dtype] if tolerance is None else tolerance)


@contextlib.contextmanager
def _naming(layout: mtf_hetero.Layout, kind: str) -> Any:
    try:
        yield
    except Exception as error:
        error.add_note(f"on {layout}, with each input a {kind}")
        raise
