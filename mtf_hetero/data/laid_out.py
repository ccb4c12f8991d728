"""Input for a mesh: each processor gets its own slice of the batch, made on its own host."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cluster.devices import Device
from mtf_hetero.data.examples import Slab
from mtf_hetero.layout import Layout

Batch = tuple[dict[str, tf.Tensor], tf.Tensor]  # features and labels


def host_cpu(device: str) -> str:
    """Return the CPU of a device's host: "/job:worker/task:2/device:CPU:0" for a GPU of that task."""
    return Device.parse(device).host.name


def laid_out_batches(
    make: Callable[..., tf.data.Dataset],
    layout: Layout,
    batch: Mapping[str, int],
    devices: Sequence[str],
    image: Mapping[str, int] = MappingProxyType({}),
) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
    """Make one pipeline for each host and slab of the batch, and share it among the processors that need it.

    Each step must use the tensors of all processors, as training does: then the pipelines advance together. The
    initialisers of their iterators are in the collection TABLE_INITIALIZERS, which a monitored session runs.

    A processor with an empty slab reads the smallest slab and cuts it. Its targets of a volume are still complete.

    Args:
      make: called with slab=...; returns a tf.data.Dataset of (features, labels):
        `functools.partial(dataset.train_input_fn, batch_size, epochs)`.
      layout: splits the dimensions of the batch, and of an image.
      batch: {dimension of the batch: size}, {"batch": 200} or {"outer_batch": 8, "batch": 32}; the last varies fastest.
      devices: one per processor, or per group of its slots.
      image: {dimension of an image or volume: size}, the channels last, if they are split too; none: each slab has
        complete images.

    Returns:
      (features, labels): one tensor [*batch, ...] per processor, in place of each tensor.

    Raises:
      ValueError: the number of devices is not that of the processors, or the layout does not fit the sizes.
    """
    dims, extents = [mtf.Dimension(*dim) for dim in (*batch.items(), *image.items())], list(batch.values())
    batch_dims = len(batch)
    layout.check(dims)
    if len(devices) != layout.device_count:
        raise ValueError(
            f"{len(devices)} devices are given for the {layout.size} processors of mesh {layout.mesh_text}; "
            "give one per processor, or per group of its slots"
        )
    pipelines: dict[tuple[str, Slab], Batch] = {}
    parts = []
    for pnum, at in enumerate(layout.places):
        begin, size = layout.slice_begin(dims, pnum), layout.slice_shape(dims, pnum)
        read = [max(s, 1) for s in size]
        begin = [min(b, dim.size - r) for b, dim, r in zip(begin, dims, read, strict=True)]
        is_whole = read[:batch_dims] == extents
        places = None if is_whole else places_in(extents, begin[:batch_dims], read[:batch_dims])
        slab = Slab(places, tuple(begin[batch_dims:]) or None, tuple(read[batch_dims:]) or None)
        host = host_cpu(devices[at])
        with tf.device(host):
            if (host, slab) not in pipelines:
                pipelines[host, slab] = _next_batch(make(slab=slab), read[:batch_dims])
            part = pipelines[host, slab]
            parts.append(part if read == size else _cut_to_empty(part, size, batch_dims))
    features = {name: tuple(part[0][name] for part in parts) for name in parts[0][0]}
    return features, tuple(part[1] for part in parts)


def laid_out_volumes(
    make: Callable[..., tf.data.Dataset], layout: Layout, shape: mtf.Shape, devices: Sequence[str]
) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
    """Call `laid_out_batches` with the shape of a batch of volumes, [*batch, depth, height, width, channels]."""
    sizes = [(dim.name, dim.size) for dim in mtf.Shape(shape)]
    return laid_out_batches(make, layout, dict(sizes[:-4]), devices, dict(sizes[-4:]))


def places_in(extents: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major indices of a box.

    Example:
      >>> places_in([2, 3], [0, 1], [2, 2])
      (1, 2, 4, 5)
    """
    box = tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))
    return tuple(np.arange(math.prod(extents)).reshape(extents)[box].ravel().tolist())


def _cut_to_empty(part: Batch, size: Sequence[int], batch_dims: int) -> Batch:
    """Cut a slice to an empty one: images and their labels along all dimensions, except channels of labels.

    Tensors with fewer dimensions, the weights and a volume's targets, are cut along the examples only.
    """

    def cut_one(t: tf.Tensor) -> tf.Tensor:
        dims = size if len(t.shape) >= len(size) - 1 else size[:batch_dims]
        return t[tuple(slice(0, s) for s in dims[: t.shape.rank])]

    return tf.nest.map_structure(cut_one, part)


def _next_batch(dataset: tf.data.Dataset, sizes: Sequence[int]) -> Batch:
    """Return the next batch of a dataset, with its first dimension reshaped to these."""
    iterator = tf.data.make_initializable_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch = iterator.get_next()
    if len(sizes) == 1:
        return batch
    return tf.nest.map_structure(lambda t: tf.reshape(t, [*sizes, *t.shape.as_list()[1:]]), batch)
