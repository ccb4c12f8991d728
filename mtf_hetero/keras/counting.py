"""The number of steps of a training or a test, by the arguments of model.fit or model.evaluate."""

from collections.abc import Mapping
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.keras._keras import keras

_BATCH_SIZE = 32  # of model.fit, where none is given


def count_steps(data: object, options: Mapping[str, Any]) -> int | None:
    """Return the number of steps; None if only its end shows it.

    Args:
      data: `x` of model.fit, model.evaluate or model.predict.
      options: their arguments that decide it: epochs, initial_epoch, batch_size, steps_per_epoch, steps and
        validation_split, where they are given.
    """
    per_epoch = options.get("steps_per_epoch", options.get("steps"))
    if per_epoch is None:
        split = options.get("validation_split")
        per_epoch = _batches(data, options.get("batch_size") or _BATCH_SIZE, split if isinstance(split, float) else 0.0)
    if per_epoch is None:
        return None
    return max(options.get("epochs", 1) - (options.get("initial_epoch") or 0), 0) * per_epoch


def _batches(data: object, batch_size: int, validation_split: float) -> int | None:
    """Return the number of batches of an epoch."""
    if isinstance(data, tf.data.Dataset | tf.compat.v2.data.Dataset):
        count = int(data.cardinality())
        return count if count >= 0 else None
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    arrays = keras.tree.flatten(data)
    if not arrays or not all(hasattr(array, "shape") and len(array.shape) for array in arrays):
        return None
    examples = int(arrays[0].shape[0] * (1.0 - validation_split))
    return -(-examples // batch_size)
