"""Input for a mesh: each processor gets its own slice of the batch, made on its own host."""

from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import Layout

BATCH = "batch"


def host_of(device: str) -> str:
    """The CPU of the host that a device belongs to, "/job:worker/task:2/device:CPU:0" for a GPU of that task."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()


def laid_out_batches(
    make: Callable[..., Any], layout: Layout, batch_size: int, devices: Sequence[str]
) -> tuple[dict[str, tuple[Any, ...]], tuple[Any, ...]]:
    """Makes one pipeline for each host and slice of the batch, and shares it among the processors that need it.

    The pipelines advance together as long as each step uses the tensors of all processors, as training does. The
    initialisers of their iterators go to the collection TABLE_INITIALIZERS, which a monitored session runs.

    Args:
      make: called with batch_slice=(begin, size), or None for the whole batch; returns a tf.data.Dataset of (features,
        labels): `functools.partial(dataset.train_input_fn, batch_size, epochs)`.
      layout: how the dimension "batch" is split.
      batch_size: images in the whole batch.
      devices: one per processor.

    Returns:
      (features, labels): one tensor per processor, in place of each tensor.

    Raises:
      ValueError: the number of devices is not that of the processors, or the batch has fewer images than slices.
    """
    if len(devices) != layout.size:
        raise ValueError(
            f"{len(devices)} devices are given for the {layout.size} processors of mesh {layout.mesh_text}; "
            "give one per processor"
        )
    shape = [mtf.Dimension(BATCH, batch_size)]
    pipelines: dict[Any, Any] = {}
    parts = []
    for pnum, device in enumerate(devices):
        (begin,), (size,) = layout.slice_begin(shape, pnum), layout.slice_shape(shape, pnum)
        place = host_of(device), None if size == batch_size else (begin, size)
        if place not in pipelines:
            pipelines[place] = _next_batch(make, *place)
        parts.append(pipelines[place])
    features = {name: tuple(part[0][name] for part in parts) for name in parts[0][0]}
    return features, tuple(part[1] for part in parts)


def _next_batch(make: Callable[..., Any], host: str, batch_slice: tuple[int, int] | None) -> Any:
    with tf.device(host):
        iterator = tf.data.make_initializable_iterator(make(batch_slice=batch_slice))
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()
