"""mtf programs of volumes: CosmoFlow, its convolutional part, and a 3D U-Net, in steps whose depth is partitioned."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

import mtf_hetero.layers
from benchmarks.frameworks.steps import Step, lower_step, slices
from mtf_hetero import Layout, UnevenMeshImpl, mtf, tf
from mtf_hetero.cli.train import program
from mtf_hetero.cost import trace
from mtf_hetero.data import laid_out_volumes, load_volumes
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.mesh import traffic
from mtf_hetero.models import MODELS, cosmoflow, layers
from mtf_hetero.ops.traits import find_images

NAMES = ("batch", *layers.VOLUME, "channels")
CHANNELS = 4
OUTPUTS = 4
AXIS = "depth"
_CLASSES = 3
_LEARNING_RATE = 0.01
_RADIANS = (0.9, 0.7, 1.1, 1.3, 0.5)  # from one index to the next, per dimension of the generated volumes
# An eighth of the paper's filters
_UNET = {"down": ((4, 8), (8, 16), (16, 32)), "bottom": (32, 64), "up": ((8, 8), (16, 16), (32, 32))}

Loss = Callable[[Any, Any], Any]  # from volumes and targets, or None, to the loss


def _convolutional_part(config: cosmoflow.Config) -> Loss:
    """CosmoFlow without its head, of any depth: as many pools as a cube of that height has."""

    def loss(volumes: Any, targets: Any) -> Any:
        del targets
        x, pools = volumes, (volumes.shape.dims[-3].size // 2).bit_length() - 2
        for number, filters in enumerate(config.filters, 1):
            x = layers.conv(
                x,
                filters,
                size=3,
                rank=3,
                strides=2 if number == config.strided else 1,
                name=f"conv{number}",
                initializer=layers.glorot_uniform,
                activation=layers.leaky_relu,
            )
            if number <= pools:
                x = layers.pool(x, kind="avg", size=(3,) * 3, strides=2, padding=1, name=f"pool{number}")
        return mtf.reduce_mean(mtf.square(x))

    return loss


def _cosmoflow(volumes: Any, targets: Any) -> Any:
    """Return the whole network, without dropout, so that losses can be compared."""
    y = MODELS["cosmoflow"].build(volumes, training=True, dropout=0.0)
    return mtf.reduce_mean(mtf.square(y if targets is None else y - targets))


def _unet3d(volumes: Any, targets: Any) -> Any:
    """Mean cross entropy over the voxels."""
    logits = MODELS["unet3d"].build(volumes, training=True, **_UNET)
    classes = logits.shape.dims[-1]
    hot = mtf.one_hot(targets, classes, dtype=logits.dtype)
    return mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, hot, classes))


NETWORKS: Mapping[str, Loss] = MappingProxyType(
    {
        "conv": _convolutional_part(cosmoflow.COSMOFLOW),
        "cosmoflow": _cosmoflow,
        "unet3d": _unet3d,
        "toy": _convolutional_part(cosmoflow.Config(filters=(2, 4), strided=2)),
    }
)
_LABELLED = ("unet3d",)


def _shape(extents: Sequence[int], batch_size: int) -> Any:
    """Return the mtf.Shape of a batch of volumes."""
    sizes = (batch_size, *extents, CHANNELS)
    return mtf.Shape([mtf.Dimension(name, size) for name, size in zip(NAMES, sizes, strict=True)])


def _import(mesh: Any, value: Any, shape: Any) -> Any:
    if isinstance(value, tuple):
        return mtf.import_laid_out_tensor(mesh, UnevenMeshImpl.LaidOutTensor(list(value)), shape)
    return mtf.import_tf_tensor(mesh, value, shape)


def build_training(
    network: str, extents: Sequence[int], batch_size: int = 1, volumes: Any = None, targets: Any = None
) -> Any:
    """Return a training step by SGD of a network of NETWORKS, in TensorFlow's default graph.

    Args:
      network: its name.
      extents: (depth, height, width) of a volume.
      batch_size: volumes per step.
      volumes: slices of them, one per processor; None: zeros, for a graph that is only looked at.
      targets: slices of targets [batch, outputs] or labels [batch, depth, height, width]; None: none, or zeros where
        the network needs labels.
    """
    shape = _shape(extents, batch_size)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    if volumes is None:
        volumes = tf.zeros(shape.to_integer_list)
        targets = tf.zeros(shape.to_integer_list[:-1], tf.int32) if network in _LABELLED else None
    x = _import(mesh, volumes, shape)
    if targets is not None:
        wanted = shape.dims[:-1] if network in _LABELLED else [shape.dims[0], mtf.Dimension("outputs", OUTPUTS)]
        targets = _import(mesh, targets, mtf.Shape(wanted))
    loss = NETWORKS[network](x, targets)
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = mtf.optimize.SgdOptimizer(_LEARNING_RATE).apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(graph)
    return program.Built(graph, mesh, loss, loss=loss, updates=tuple(updates))


def plan(
    network: str,
    extents: Sequence[int],
    batch_size: int,
    count: int,
    shares: Sequence[float] | None = None,
    groups: int = 1,
) -> Layout:
    """Return the layout of the volumes on a number of processors: by depth, as layouts.spatial decides for each layer.

    With several groups of so many, each has its part of the batch.
    """
    if count == 1:
        return Layout(f"{AXIS}:1", "")
    mesh_shape = f"{AXIS}:{count}" if groups == 1 else f"batch:{groups};{AXIS}:{count}"
    with tf.Graph().as_default():
        graph = build_training(network, extents, batch_size).graph
        return LAYOUTS["spatial"](graph, mesh_shape=mesh_shape, shares=shares and {AXIS: shares})


def build_step(
    network: str,
    extents: Sequence[int],
    *,
    devices: Sequence[str],
    batch_size: int = 1,
    shares: Sequence[float] | None = None,
    directory: str | None = None,
    epochs: int = 1,
    seed: int = 0,
) -> Step:
    """Build a step of a network of NETWORKS in TensorFlow's default graph, on devices that share the depth.

    Each worker reads its slab of a set in a directory, so often and in the order of a seed; without a directory it
    generates a pattern once, and keeps it.
    """
    layout, shape = plan(network, extents, batch_size, len(devices), shares), _shape(extents, batch_size)
    mesh_impl = UnevenMeshImpl.from_layout(layout, devices)
    if directory is None:
        volumes, targets = _generated(network, shape, mesh_impl)
    else:
        make = functools.partial(load_volumes(directory).train_input_fn, batch_size, epochs, seed)
        features, targets = laid_out_volumes(make, layout, shape, devices)
        volumes = features["image"]
    return lower_step(build_training(network, extents, batch_size, volumes, targets), layout, devices)


def _generated(network: str, shape: Any, mesh_impl: Any) -> tuple[tuple[Any, ...], Any]:
    """Slices of a pattern, and of labels where the network needs them: local variables of each worker."""

    def volume(begin: Sequence[int], size: Sequence[int]) -> Any:
        return _local_variable(_pattern(begin, size))

    def label(begin: Sequence[int], size: Sequence[int]) -> Any:
        return _local_variable(tf.cast(_pattern(begin, size)[..., 0] > 0, tf.int32))

    labels = slices(mesh_impl, shape, label) if network in _LABELLED else ()
    return tuple(slices(mesh_impl, shape, volume)), tuple(labels) or None


def _local_variable(value: Any) -> Any:
    """Return the value that a local variable keeps."""
    collections = [tf.GraphKeys.LOCAL_VARIABLES]
    return tf.Variable(value, trainable=False, collections=collections, use_resource=True).read_value()


def _pattern(begin: Sequence[int], size: Sequence[int]) -> Any:
    """Return a product of waves: a voxel has the same number whichever processor has it."""
    x = tf.constant(4.0)
    for axis, (first, count) in enumerate(zip(begin, size, strict=True)):
        wave = np.cos(_RADIANS[axis] * np.arange(first, first + count)).astype(np.float32)
        x *= tf.constant(wave.reshape([-1 if other == axis else 1 for other in range(len(size))]))
    return x


def initial_values(step: Step, seed: int) -> dict[str, np.ndarray]:
    """Glorot's initial values of all kernels, the same for every layout; what else there is starts the same anyway."""
    rng, values = np.random.default_rng(seed), {}
    for master in step.masters:
        shape = master.shape.as_list()
        if len(shape) > 1:
            limit = math.sqrt(6 / (math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1]))
            values[master.op.name] = rng.uniform(-limit, limit, shape).astype(np.float32)
    return values


def _halo_test(step: Step) -> Callable[[traffic.Send], bool]:
    """Return whether a send has halos of volumes, and not weights or their gradients."""
    graph_operations = step.built.graph.operations
    volumes = next(op for op in graph_operations if isinstance(op, mtf.ImportLaidOutTensorOperation)).outputs[0]
    batch_size = volumes.shape.dims[0].size
    windowed = {op.name for op in graph_operations if find_images(op)}

    def is_halo(send: traffic.Send) -> bool:
        return send.consumer in windowed and len(send.shape) == len(NAMES) and send.shape[0] == batch_size

    return is_halo


def exchanged(step: Step) -> list[dict[str, int]]:
    """Per processor: the bytes of halos that it receives in a step."""
    is_halo = _halo_test(step)
    halos = [send for send in step.sends() if not send.in_memory and is_halo(send)]
    return [{"halo_bytes": sum(send.bytes for send in halos if send.target == device)} for device in step.devices]


def overlap(step: Step, events: Sequence[trace.Event]) -> list[dict[str, float]]:
    """Per processor: seconds of a traced step with halos on their way to it, with convolutions, and with both."""
    is_halo = _halo_test(step)
    halos = (send for send in step.sends() if not send.in_memory and is_halo(send))
    names = {send.tensor_name.partition(":")[0] for send in halos}
    seconds = []
    for device in step.devices:
        of_device = [event for event in events if event.device.replace("/replica:0", "") == device]
        arriving = [event for event in of_device if event.kind == trace.RECEIVED and event.name in names]
        convolving = [event for event in of_device if event.work == "convolution"]
        halo, convolution, either = map(trace.covered, (arriving, convolving, [*arriving, *convolving]))
        both = halo + convolution - either
        seconds.append({"halo_seconds": halo, "convolution_seconds": convolution, "both_seconds": both})
    return seconds
