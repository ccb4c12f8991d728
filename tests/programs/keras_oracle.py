"""The oracle of mtf_hetero.keras: Keras itself, by tf.GradientTape on one device.

A model's outputs, the gradients of its inputs and weights, and all its weights after each of three steps of gradient
descent are compared with those of its builder, on each processor's slice.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import keras
import numpy as np
import oracle

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.keras import Builder, build
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.rules import Rules

BATCH = 5
KINDS = {  # of layouts: the dimensions that each splits, by name or by their place in a weight, from the end
    "batch": ("batch",),
    "outputs": (-1,),
    "inputs": (-2, -3),
    "space": ("height", "length", "depth"),
    "width": ("width", "channels"),
}
SHARES = {3: [4, 2, 1], 2: [5, 2]}


@contextlib.contextmanager
def floatx(dtype: Any) -> Iterator[None]:
    """Makes models of a type."""
    before = keras.config.floatx()
    keras.config.set_floatx(dtype.name)
    keras.config.set_dtype_policy(dtype.name)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)


def randomised(model: Any, seed: int = 0) -> Any:
    """The model, with weights of which none is zero or one by chance."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if not variable.dtype.startswith("float"):
            continue
        value = rng.standard_normal(variable.shape)
        if "variance" in variable.name:
            value = 0.5 + value**2
        elif variable.name == "gamma":
            value = 1 + 0.2 * value
        elif variable.name in ("kernel", "embeddings") or "kernel" in variable.name:
            value *= (2 / max(1, np.prod(variable.shape[:-1]))) ** 0.5
        else:
            value *= 0.3
        variable.assign(value)
    return model


def _array(name: str, shape: Sequence[int], dtype: str, below: int | None) -> np.ndarray:
    """Return the tensor that oracle.Feed makes for a name."""
    rng = np.random.default_rng(crc32(name.encode()))
    if below is not None:
        return rng.integers(0, below, shape, dtype=np.int32)
    return rng.standard_normal(shape).astype(dtype)


def _shapes(model: Any) -> list[list[int]]:
    return [[BATCH, *x.shape[1:]] for x in model.inputs]


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


def expected(
    model: Any, builder: Builder, names: dict[int, str], *, training: bool, below: int | None, dtype: Any
) -> oracle.Result:
    """Return Keras's values after three steps, by the names of oracle.run."""
    arrays = [_array(f"input{i}", shape, dtype.name, below) for i, shape in enumerate(_shapes(model))]
    inputs = [tf.convert_to_tensor(array) for array in arrays]
    floating = [i for i, array in enumerate(arrays) if array.dtype.kind == "f"]
    kept, steps = [v.numpy() for v in model.variables], []
    weights = [v for v in model.trainable_variables if id(v) in names]
    for _ in range(oracle.STEPS):
        with tf.GradientTape() as tape:
            tape.watch([inputs[i] for i in floating])
            outputs = _listed(model(inputs if len(inputs) > 1 else inputs[0], training=training))
            factors = [_array(f"weights of output{i}", y.shape, dtype.name, None) for i, y in enumerate(outputs)]
            loss = sum(tf.reduce_sum(y * factor) for y, factor in zip(outputs, factors, strict=True))
        sources = [*[inputs[i] for i in floating], *[v.value for v in weights]]
        gradients = tape.gradient(loss, sources)
        values = {f"output{i}": y.numpy() for i, y in enumerate(outputs)}
        values |= {f"gradient of input weights of output{i}": y.numpy() for i, y in enumerate(outputs)}
        for i, gradient in zip(floating, gradients, strict=False):
            if gradient is not None:
                values[f"gradient of input input{i}"] = np.asarray(gradient)
        for variable, gradient in zip(weights, gradients[len(floating) :], strict=True):
            if gradient is not None:
                gradient = tf.convert_to_tensor(gradient)
                name = names[id(variable)]
                values[f"gradient of variable {name}"] = builder.variables[name].to_mtf(gradient.numpy())
                variable.assign_sub(gradient * oracle.LEARNING_RATE[dtype])
        for name, weight in builder.variables.items():
            values[f"variable {name} after the step"] = weight.to_mtf(weight.variable.numpy())
        steps.append({name: [value] for name, value in values.items()})
    for variable, value in zip(model.variables, kept, strict=True):
        variable.assign(value)
    return oracle.Result(steps, {}, None)


def program(
    builder: Builder, *, training: bool, below: int | None = None, is_staged: bool = False
) -> Callable[[oracle.Feed], dict[str, Any]]:
    """The model as a program of the oracle."""

    def build_program(feed: oracle.Feed) -> dict[str, Any]:
        inputs = []
        for i, shape in enumerate(_shapes(builder.model)):
            space = {2: ["channels"], 3: ["length", "channels"], 4: ["height", "width", "channels"]}
            local = space.get(len(shape), ["depth", "height", "width", "channels"])
            dims = [mtf.Dimension(name, n) for name, n in zip(["batch", *local], shape, strict=True)]
            inputs.append(feed(f"input{i}", dims, below=below))
        options = {"training": training, "is_staged": is_staged}
        outputs = _listed(builder(inputs if len(inputs) > 1 else inputs[0], **options))
        return {f"output{i}": y for i, y in enumerate(outputs)}

    return build_program


def make_graph(build_program: Callable[[oracle.Feed], dict[str, Any]], dtype: Any) -> Any:
    """The mtf graph of a program, with its gradients."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        feed = oracle.Feed(mtf.Mesh(graph, "mesh"), dtype)
        oracle._with_gradients(feed, build_program(feed), graph)
        return graph


def make_layout(graph: Any, kind: str, *, count: int = 3, axis: str = "all") -> Layout | None:
    """A layout that splits all dimensions of a kind that can be split together, unevenly; None where there are none."""
    rules = Rules(graph, f"{axis}:{count}", {axis: SHARES[count]}, axis)
    shapes = [y.shape.dimension_names for op in graph.operations for y in op.outputs]
    weights = [v.outputs[0].shape.dimension_names for v in graph.all_variables]
    for wanted in KINDS[kind]:
        if isinstance(wanted, str):
            names = {wanted} & {name for shape in shapes for name in shape}
        else:
            found = dict.fromkeys(shape[wanted] for shape in weights if len(shape) >= -wanted)
            names = [name for name in found if not re.search(r"depthwise\w*/kernel/[01]$", name)]  # the window
        for name in names:
            if rules.allow([name]):
                rules.add([name])
    return rules.layout() if rules.names else None


def make_layouts(graph: Any, kinds: Sequence[str] = tuple(KINDS)) -> list[Layout]:
    """One device, and a layout of each kind that there is."""
    return [Layout("all:1", ()), *(layout for kind in kinds if (layout := make_layout(graph, kind)) is not None)]


def check(
    model: Any,
    *,
    training: bool = False,
    dtype: Any = tf.float32,
    below: int | None = None,
    tolerance: float | None = None,
    layouts: Callable[[Any], Sequence[Layout]] = make_layouts,
    is_staged: bool = False,
) -> Builder:
    """Asserts that the builder of a model gives what Keras gives, on one device and on uneven layouts.

    Args:
      model: the keras.Model.
      training: as of the model.
      dtype: of the model's numbers.
      below: of inputs that are whole numbers, what they are smaller than.
      tolerance: by default the oracle's.
      layouts: from the mtf graph to the layouts.
      is_staged: whether the batch has another name in each stage.
    """
    builder = build(randomised(model))
    run = program(builder, training=training, below=below, is_staged=is_staged)
    graph = make_graph(run, dtype)
    names = {id(weight.variable): name for name, weight in builder.variables.items()}
    reference = expected(model, builder, names, training=training, below=below, dtype=dtype)
    oracle.check(
        run, *layouts(graph), dtype=dtype, tolerance=tolerance, reference=reference, averages=training, **oracle.ONCE
    )
    return builder


def inferred(builder, images, recipe=None, *, training: bool | None = False):
    """Return a builder's results, on one device or in the layout of a recipe."""
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        dims = [mtf.Dimension(name, size) for name, size in zip(("batch", "height", "width", "channels"), images.shape)]
        outputs = builder(mtf.import_tf_tensor(mesh, tf.constant(images), mtf.Shape(dims)), training=training)
        layout = Layout("all:1", ())
        if recipe is not None:
            layout = LAYOUTS[recipe](graph, mesh_shape="all:3", shares={"all": [4, 2, 1]})
        lowering = mtf_hetero.Lowering(graph, {mesh: oracle.cpu_mesh_impl(layout)})
        exported = lowering.export_to_tf_tensor(outputs)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            session.run(tf.global_variables_initializer())
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            return session.run(exported)
