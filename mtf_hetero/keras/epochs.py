"""Keras's iterator over the batches of an epoch, with batches that need not be in this process."""

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.batches import AHEAD, Pipeline
from mtf_hetero.data.cutting import Cut, Loader, cut, is_dense
from mtf_hetero.data.stored import Stored


class _Adapter(Protocol):
    """The user's data, as Keras has them."""

    def get_tf_dataset(self) -> tf.data.Dataset:
        """Return the pipeline of batches."""
        ...


@contextlib.contextmanager
def with_parts(is_wanted: Callable[[], bool], epochs: int, steps_in_a_row: int) -> Iterator[None]:
    """Have Keras's loop iterate over structures of Parts.

    Args:
      is_wanted: whether an iterator that is made now is for the steps that are taken on devices.
      epochs: that are to come.
      steps_in_a_row: whose batches the devices are to have when the first one begins.
    """
    trainer = vars(importlib.import_module("keras.src.backend.tensorflow.trainer"))
    before = trainer["TFEpochIterator"]

    class EpochIterator(before):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            if not is_wanted():
                return
            dataset: tf.data.Dataset = super()._get_iterator()
            found = _cut(dataset, self.data_adapter, epochs)
            if found is not None:
                self._distributed_dataset: object = Pipeline(dataset, found, max(AHEAD, steps_in_a_row))

    trainer["TFEpochIterator"] = EpochIterator
    try:
        yield
    finally:
        trainer["TFEpochIterator"] = before


def _cut(dataset: tf.data.Dataset, adapter: _Adapter, epochs: int) -> Cut | None:
    """Return where Keras's pipeline is cut; None: not at all, because only a batch shows its sizes.

    Args:
      dataset: the pipeline.
      adapter: what Keras made it of.
      epochs: that are to come.
    """
    if not isinstance(dataset, tf.compat.v2.data.Dataset):
        return None
    if not all(map(is_dense, tf.nest.flatten(dataset.element_spec))):
        return None
    if type(adapter).__name__ == "ArrayDataAdapter":
        return _cut_arrays(dataset, adapter, epochs)
    return cut(dataset, epochs)


def _cut_arrays(dataset: tf.data.Dataset, adapter: _Adapter, epochs: int) -> Cut:
    """Cut Keras's pipeline of arrays: the numbers of the rows, in the same order, are fed."""
    arrays = [np.asarray(tensor) for tensor in _find_tensors(dataset)]
    numbers = copy.copy(adapter)
    vars(numbers)["_inputs"] = (np.arange(arrays[0].shape[0], dtype=np.int64),)
    loader = Loader(None, dataset.element_spec, stored=Stored(arrays, epochs))
    return Cut(numbers.get_tf_dataset(), loader, "", runs_ahead=True)


def _find_tensors(dataset: tf.data.Dataset) -> list[tf.Tensor]:
    """Return the arrays in a pipeline of Keras, as it has them."""
    if type(dataset).__name__ == "_TensorDataset":
        return dataset._tensors
    found = [tensors for part in dataset._inputs() if (tensors := _find_tensors(part))]
    return found[0] if found else []
