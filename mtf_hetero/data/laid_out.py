"""Input for a mesh: each processor gets its own slice of the batch, made on its own host."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cluster.devices import Device
from mtf_hetero.layout import Layout

Batch = tuple[dict[str, tf.Tensor], tf.Tensor]  # features and labels


def host_cpu(device: str) -> str:
    """Return the CPU of a device's host: "/job:worker/task:2/device:CPU:0" for a GPU of that task."""
    return Device.parse(device).host.name


def laid_out_batches(
    make: Callable[..., tf.data.Dataset], layout: Layout, batch: Mapping[str, int], devices: Sequence[str]
) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
    """Make one pipeline for each host and slice of the batch, and share it among the processors that need it.

    Each step must use the tensors of all processors, as training does: then the pipelines advance together. The
    initialisers of their iterators are in the collection TABLE_INITIALIZERS, which a monitored session runs.

    Args:
      make: called with places in the batch, or None for all; returns a tf.data.Dataset of
        (features, labels): `functools.partial(dataset.train_input_fn, batch_size, epochs)`.
      layout: splits the dimensions of the batch.
      batch: {dimension of the batch: size}, {"batch": 200} or {"outer_batch": 8, "batch": 32}; the last varies fastest.
      devices: one per processor, or per group of its slots.

    Returns:
      (features, labels): one tensor [*batch, ...] per processor, in place of each tensor.

    Raises:
      ValueError: the number of devices is not that of the processors.
    """

    def make_slice(begin: Sequence[int], size: Sequence[int]) -> tf.data.Dataset:
        whole = list(size) == list(batch.values())
        return make(places=None if whole else places_in(list(batch.values()), begin, size))

    return deal(make_slice, layout, [mtf.Dimension(name, size) for name, size in batch.items()], len(batch), devices)


def deal(
    make: Callable[[Sequence[int], Sequence[int]], tf.data.Dataset],
    layout: Layout,
    dims: Sequence[mtf.Dimension],
    batch_dims: int,
    devices: Sequence[str],
) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
    """Deal the slices of a batch to the processors, for `laid_out_batches` and `laid_out_volumes`.

    A processor with an empty slice reads the smallest slice and cuts it. Its targets of a volume are still complete.

    Args:
      make: returns a tf.data.Dataset of (features, labels), examples first, from the begin and the size of a slice.
      layout: splits the dimensions.
      dims: mtf.Dimensions of the batch, and of an example if they are split too.
      batch_dims: number of dimensions of the batch.
      devices: one per processor, or per group of its slots.
    """
    if len(devices) != layout.device_count:
        raise ValueError(
            f"{len(devices)} devices are given for the {layout.size} processors of mesh {layout.mesh_text}; "
            "give one per processor, or per group of its slots"
        )
    pipelines: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Batch] = {}
    parts = []
    for pnum, at in enumerate(layout.places):
        device = devices[at]
        begin, size = layout.slice_begin(dims, pnum), layout.slice_shape(dims, pnum)
        read = [max(s, 1) for s in size]
        begin = [min(b, dim.size - r) for b, dim, r in zip(begin, dims, read, strict=True)]
        place = host_cpu(device), tuple(begin), tuple(read)
        with tf.device(place[0]):
            if place not in pipelines:
                pipelines[place] = _next_batch(make(begin, read), read[:batch_dims])
            part = pipelines[place]
            parts.append(part if read == size else _cut_to_empty(part, size, batch_dims))
    features = {name: tuple(part[0][name] for part in parts) for name in parts[0][0]}
    return features, tuple(part[1] for part in parts)


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
