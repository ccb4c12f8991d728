"""Batches that need not be in this process: what is fed of them is, and workers make the rest."""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.cutting import Cut, Loader, cut, is_dense

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_Inputs = TypeVar("_Inputs")
AHEAD = 2  # batches that are loaded while a step runs


class Part:
    """A component of a batch, in place of its array: it has its shape [examples, ...] and type, perhaps no values."""

    def __init__(self, batch: "Batch", number: int, shape: tf.TensorShape, dtype: tf.DType) -> None:
        self.batch, self.number, self.shape, self.dtype = batch, number, shape, dtype

    @property
    def nbytes(self) -> float:
        """Its share of the bytes that this process keeps of the batch."""
        return self.batch.nbytes / len(self.batch)

    def __array__(self, dtype: "DTypeLike | None" = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.batch.values()[self.number], dtype)


class Batch:
    """A batch, as it is fed.

    Args:
      fed: arrays [examples, ...].
      spec: tf.TensorSpecs of the components, in a structure.
      loader: makes the components of them; None: they are the components.
      drawn: what was drawn after this one up to now, the next one first.
      why: what keeps workers from making it, "" if nothing does.
    """

    def __init__(
        self,
        fed: Sequence[np.ndarray],
        spec: object,
        loader: Loader | None,
        drawn: Sequence[object] = (),
        why: str = "",
    ) -> None:
        self.why = why
        self.fed, self.loader, self._spec, self._drawn = list(fed), loader, spec, drawn
        self.examples: int = fed[0].shape[0]
        self._values = self.fed if loader is None else None

    @property
    def is_whole(self) -> bool:
        """Return whether all components are here, and fed; else they are made of what is fed."""
        return self._values is not None

    def is_like(self, other: "Batch") -> bool:
        """Return whether what is fed of another batch has the same shapes."""
        return [array.shape for array in self.fed] == [array.shape for array in other.fed]

    @property
    def coming(self) -> "list[Batch]":
        """The batches that were drawn after this one up to now."""
        return [batch for batch in self._drawn if isinstance(batch, Batch)]

    def values(self) -> list[np.ndarray]:
        """Return all components. They are the same from now on, and are what is fed."""
        if self._values is None:
            assert self.loader is not None
            self._values = self.loader.load_here(self.fed)
        return self._values

    def parts(self) -> object:
        """Return a Part for each component, in their structure."""
        specs = tf.nest.flatten(self._spec)
        if self.loader is None:
            shapes = [tf.TensorShape(array.shape) for array in self.fed]
        else:
            shapes = [tf.TensorShape([self.examples, *spec.shape[1:]]) for spec in specs]
        parts = [Part(self, n, shape, spec.dtype) for n, (shape, spec) in enumerate(zip(shapes, specs, strict=True))]
        return tf.nest.pack_sequence_as(self._spec, parts)

    def __len__(self) -> int:
        return len(tf.nest.flatten(self._spec))

    @property
    def nbytes(self) -> int:
        """Bytes that this process keeps of it."""
        arrays = self.fed if self._values is None or self._values is self.fed else [*self.fed, *self._values]
        return sum(array.nbytes for array in arrays)


class Batches:
    """The batches of a pipeline, as structures of Parts. An iterator.

    Args:
      dataset: the pipeline.
      found: where it is cut.
      ahead: returns how many batches are drawn before they are asked for, where that changes nothing.

    Attributes:
      element_spec: of the pipeline.
    """

    def __init__(self, dataset: tf.data.Dataset, found: Cut, ahead: Callable[[], int] = lambda: AHEAD) -> None:
        self._dataset, self._cut = dataset, found
        self.element_spec = dataset.element_spec
        self._fed = iter(found.below)
        self._ahead = ahead if found.runs_ahead else lambda: 0
        self._drawn: collections.deque[Batch | Exception] = collections.deque()

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        while len(self._drawn) <= self._ahead() and not (self._drawn and isinstance(self._drawn[-1], Exception)):
            self._drawn.append(self._draw())
        batch = self._drawn[0]
        if isinstance(batch, Exception):
            raise batch
        self._drawn.popleft()
        return batch.parts()

    def _draw(self) -> Batch | Exception:
        """Return the next batch, or the error with which the pipeline ends, which is raised in its turn."""
        try:
            fed = next(self._fed)
        except (StopIteration, tf.errors.OpError) as error:
            return error
        arrays = [np.asarray(tensor) for tensor in tf.nest.flatten(fed)]
        return Batch(arrays, self.element_spec, self._cut.loader, self._drawn, self._cut.why)

    def exhausted(self) -> Iterator[object]:
        """Return an iterator of TensorFlow with the same specification that has no batch."""
        return iter(self._dataset.take(0))


class Pipeline:
    """A pipeline of batches, each pass over which gives structures of Parts."""

    def __init__(self, dataset: tf.data.Dataset, found: Cut, ahead: Callable[[], int] = lambda: AHEAD) -> None:
        self._dataset, self._cut, self._ahead = dataset, found, ahead

    def __iter__(self) -> Batches:
        return Batches(self._dataset, self._cut, self._ahead)


def batches(dataset: tf.data.Dataset, passes: int = 1) -> Pipeline:
    """Have workers read their own examples of a pipeline, for the steps of `mtf_hetero.function`.

    What is read by a function of one example, `map(read).batch(64)`, is read on the workers, each of which needs the
    same files at the same paths; this process draws the paths in the same order. Functions of whole batches, Python
    code, and random numbers with a seed are called in this process, which then sends each worker its part, while the
    step before runs. Without workers, it is all made here.

    Args:
      dataset: of batches, as dense tensors.
      passes: over it that are to come; arrays are sent to the workers once if that is less than batch by batch.

    Returns:
      An iterable. Each batch has the structure of the pipeline's, and stands for it as an argument of a step: it is
      read when it is needed. `np.asarray` of a component reads it in this process.

    Raises:
      ValueError: the batches are no dense tensors.

    Example:
      >>> for images, labels in mtf_hetero.batches(dataset):
      ...     loss = divided(images, labels)
    """
    for spec in tf.nest.flatten(dataset.element_spec):
        if not is_dense(spec):
            raise ValueError(
                f"a component of a batch is {spec}; give dense tensors whose sizes but the first are known"
            )
    return Pipeline(dataset, cut(dataset, passes))


def values(inputs: _Inputs) -> _Inputs:
    """Return inputs with the arrays of their Parts in place of these."""
    return tf.nest.map_structure(lambda x: np.asarray(x) if isinstance(x, Part) else x, inputs)


def batches_in(inputs: object) -> list[Batch]:
    """Return the batches that Parts of inputs stand for, each once."""
    parts = (x for x in tf.nest.flatten(inputs, expand_composites=True) if isinstance(x, Part))
    return list({id(part.batch): part.batch for part in parts}.values())
