"""Keras's iterator over the batches of an epoch: it says where it is, and batches need not be in this process."""

import collections
import contextlib
import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.data.batches import AHEAD, Pipeline
from mtf_hetero.data.cutting import Cut, Loader, cut, is_dense, runs_ahead
from mtf_hetero.data.stored import Stored

LEFT = "iterators left behind"  # name of a thread


class _Adapter(Protocol):
    """The user's data, as Keras has them."""

    def get_tf_dataset(self) -> tf.data.Dataset:
        """Return the pipeline of batches."""
        ...


class Position(NamedTuple):
    """A place in a pass of Keras's loop over its data.

    Args:
      batches: the iterator that the next step gets.
      done: number of steps of this pass.
      total: number of steps of a pass; None: only its end shows it.
      runs_ahead: returns whether batches may be drawn before they are asked for.
    """

    batches: object
    done: int
    total: int | None
    runs_ahead: Callable[[], bool]


class Ahead:
    """The batches of an iterator, some of which may be drawn before they are asked for.

    Args:
      batches: the iterator.

    Attributes:
      last: the batch that was asked for last.
    """

    def __init__(self, batches: object) -> None:
        assert isinstance(batches, Iterator)
        self.batches, self.last = batches, None
        self._drawn: collections.deque[object] = collections.deque()

    def __iter__(self) -> "Ahead":
        return self

    def __next__(self) -> object:
        batch = self._drawn.popleft() if self._drawn else next(self.batches)
        if isinstance(batch, Exception):
            raise batch
        self.last = batch
        return batch

    def draw(self, count: int) -> list[object]:
        """Return so many of the next batches, or fewer before an end or an error, which then comes in its turn."""
        try:
            while len(self._drawn) < count:
                self._drawn.append(next(self.batches))
        except Exception as error:
            self._drawn.append(error)
        return [batch for batch in self._drawn if not isinstance(batch, Exception)]


class Left:
    """Iterators that passes over the data have left behind, which are freed in a thread.

    TensorFlow ends the thread that tunes a pipeline when it frees its iterator, and waits for it. That thread may not
    notice before the end of its pause, which is up to as long as the pass took, and up to a minute. It was so for 6 of
    17 iterators on two busy cores (TensorFlow 2.21).
    """

    def __init__(self) -> None:
        self._held: dict[str, list[object]] = {}

    def hold(self, kind: str, *held: object) -> None:
        """Keep objects that hold iterators of a kind of passes."""
        self._held.setdefault(kind, []).extend(held)

    def free(self, kind: str) -> None:
        """Free those of a kind: once Keras has the first batch of the next pass, they are the last references."""
        if kind in self._held:
            threads.begin(self._held.pop(kind).clear, LEFT)

    def free_all(self) -> None:
        """Free all, after Keras's loop."""
        for kind in list(self._held):
            self.free(kind)


@contextlib.contextmanager
def with_parts(
    is_wanted: Callable[[], bool], epochs: int, ahead: Callable[[], int], note: Callable[[Position], object]
) -> Iterator[None]:
    """Have Keras's loop iterate over structures of Parts, and say where it is.

    Args:
      is_wanted: whether an iterator that is made now is for the steps that are taken on devices of workers.
      epochs: that are to come.
      ahead: returns how many batches the devices are to have when the first step of a call begins.
      note: called before each step; returns the iterator that the step gets.
    """
    trainer = vars(importlib.import_module("keras.src.backend.tensorflow.trainer"))
    before = trainer["TFEpochIterator"]

    class EpochIterator(before):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            dataset: tf.data.Dataset = super()._get_iterator()
            self._runs_ahead = functools.cache(lambda: _runs_ahead(dataset))
            found = _cut(dataset, self.data_adapter, epochs) if is_wanted() else None
            if found is not None:
                self._distributed_dataset: object = Pipeline(dataset, found, lambda: max(AHEAD, ahead()))

        def _enumerate_iterator(self) -> Iterator[tuple[int, int, object]]:
            for first, last, batches in super()._enumerate_iterator():
                yield first, last, note(Position(batches, first, self.num_batches, self._runs_ahead))

    trainer["TFEpochIterator"] = EpochIterator
    try:
        yield
    finally:
        trainer["TFEpochIterator"] = before


def _runs_ahead(dataset: object) -> bool:
    return isinstance(dataset, tf.compat.v2.data.Dataset) and runs_ahead(dataset)


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
