"""Input for a mesh: each processor gets its own slice of the batch, made on its own host."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import Layout


def host_of(device: str) -> str:
    """The CPU of the host that a device belongs to, "/job:worker/task:2/device:CPU:0" for a GPU of that task."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()


def laid_out_batches(
    make: Callable[..., Any], layout: Layout, batch: Mapping[str, int], devices: Sequence[str]
) -> tuple[dict[str, tuple[Any, ...]], tuple[Any, ...]]:
    """Makes one pipeline for each host and slice of the batch, and shares it among the processors that need it.

    The pipelines advance together as long as each step uses the tensors of all processors, as training does. The
    initialisers of their iterators go to the collection TABLE_INITIALIZERS, which a monitored session runs.

    Args:
      make: called with the places in the batch that are wanted, or None for all; returns a tf.data.Dataset of
        (features, labels): `functools.partial(dataset.train_input_fn, batch_size, epochs)`.
      layout: how the dimensions of the batch are split.
      batch: {dimension of the batch: size}, {"batch": 200} or {"outer_batch": 8, "batch": 32}; the last varies fastest.
      devices: one per processor.

    Returns:
      (features, labels): one tensor [*batch, ...] per processor, in place of each tensor.

    Raises:
      ValueError: the number of devices is not that of the processors, or the batch has fewer images than slices.
    """
    if len(devices) != layout.size:
        raise ValueError(
            f"{len(devices)} devices are given for the {layout.size} processors of mesh {layout.mesh_text}; "
            "give one per processor"
        )
    shape = [mtf.Dimension(name, size) for name, size in batch.items()]
    pipelines: dict[Any, Any] = {}
    parts = []
    for pnum, device in enumerate(devices):
        begins, sizes = layout.slice_begin(shape, pnum), layout.slice_shape(shape, pnum)
        place = host_of(device), tuple(begins), tuple(sizes)
        if place not in pipelines:
            wanted = None if sizes == list(batch.values()) else _places(begins, sizes, list(batch.values()))
            pipelines[place] = _next_batch(make, place[0], wanted, sizes)
        parts.append(pipelines[place])
    features = {name: tuple(part[0][name] for part in parts) for name in parts[0][0]}
    return features, tuple(part[1] for part in parts)


def _places(begins: Sequence[int], sizes: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """Row-major indices of a box."""
    places = []
    for index in itertools.product(*(range(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))):
        place = 0
        for i, extent in zip(index, extents, strict=True):
            place = place * extent + i
        places.append(place)
    return tuple(places)


def _next_batch(make: Callable[..., Any], host: str, places: Sequence[int] | None, sizes: Sequence[int]) -> Any:
    with tf.device(host):
        iterator = tf.data.make_initializable_iterator(make(places=places))
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        batch = iterator.get_next()
        if len(sizes) == 1:
            return batch
        return tf.nest.map_structure(lambda t: tf.reshape(t, [*sizes, *t.shape.as_list()[1:]]), batch)
