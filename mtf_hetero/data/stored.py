"""Arrays that each worker gets once, a piece at a time, so that a batch of them is a list of row numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import graph_cache

MOST_BYTES = 2**30  # of arrays that a worker keeps
_LEAST_PIECE = 2**20  # bytes, below which a call costs more than what it sends


Piece = tuple[list[tf.Operation], Mapping[tf.Tensor, object]]  # what a session runs, and is fed


class _Copies(NamedTuple):
    """The copies of a graph's hosts, and what fills them."""

    begin: tf.Tensor
    rows: list[tf.Tensor]
    handles: dict[str, list[tf.Tensor]]
    makes: list[tf.Operation]
    writes: list[tf.Operation]


class Stored:
    """Arrays with an example in each row.

    Args:
      arrays: [examples, ...] each.
      passes: over the examples that are to come.
    """

    def __init__(self, arrays: Sequence[np.ndarray], passes: int) -> None:
        self.arrays, self._passes = list(arrays), passes
        self._rows: int = arrays[0].shape[0]
        self._nbytes = sum(array.nbytes for array in arrays)

    def take(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return rows of each array."""
        return [array[numbers] for array in self.arrays]

    def gather(self, numbers: tf.Tensor, host: str) -> list[tf.Tensor]:
        """Make the operations that take rows from a host's copies, in TensorFlow's default graph.

        Args:
          numbers: of the rows, on the host.
          host: its CPU.
        """
        copies = self._copies(tf.get_default_graph())
        if host not in copies.handles:
            self._add(copies, host)
        rows = []
        for array, handle in zip(self.arrays, copies.handles[host], strict=True):
            taken = tf.raw_ops.ResourceGather(resource=handle, indices=numbers, dtype=array.dtype)
            taken.set_shape([numbers.shape[0], *array.shape[1:]])
            rows.append(taken)
        return rows

    def _copies(self, graph: tf.Graph) -> _Copies:
        of_graph = graph_cache(graph, "stored")
        if self not in of_graph:
            with graph.as_default(), tf.device("/cpu:0"):
                rows = [tf.placeholder(array.dtype, [None, *array.shape[1:]]) for array in self.arrays]
                of_graph[self] = _Copies(tf.placeholder(tf.int64, []), rows, {}, [], [])
        return of_graph[self]

    def _add(self, copies: _Copies, host: str) -> None:
        """Make a host's copies, and the operations that fill them."""
        copies.handles[host] = []
        for array, rows in zip(self.arrays, copies.rows, strict=True):
            with tf.device(host):
                name = tf.get_default_graph().unique_name("stored")
                handle = tf.raw_ops.VarHandleOp(dtype=array.dtype, shape=array.shape, shared_name=name)
                made = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(array.shape, array.dtype))
                numbers = copies.begin + tf.range(tf.shape(rows, out_type=tf.int64)[0], dtype=tf.int64)
                written = tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=numbers, updates=rows)
            copies.handles[host].append(handle)
            copies.makes.append(made)
            copies.writes.append(written)

    def pieces(self, graph: tf.Graph, least_bytes: int) -> Iterator[Piece]:
        """Yield what a session runs, and is fed, so that all hosts have the arrays; nothing if they are better fed.

        Args:
          graph: of the session.
          least_bytes: of a piece, unless it is the last one.
        """
        copies = self._copies(graph)
        rows = math.ceil(self._rows * max(least_bytes, _LEAST_PIECE) / max(self._nbytes, 1))
        for begin in range(0, self._rows, rows):
            piece = {rows_: array[begin : begin + rows] for rows_, array in zip(copies.rows, self.arrays, strict=True)}
            if begin == 0:
                yield list(copies.makes), {}
            yield list(copies.writes), {copies.begin: begin} | piece

    def pays(self, graph: tf.Graph) -> bool:
        """Return whether to send the arrays costs less than to send the rows of each batch, and whether they fit."""
        return self._nbytes <= MOST_BYTES and self._passes > len(self._copies(graph).handles)
