"""The state of a training in this process's memory, to continue on other slices or to write a checkpoint.

A State has the values of a checkpoint, in the slices of the devices: no array holds a complete variable. The Saver of
a graph with other slices loads a State by feeding the results of its RestoreV2 operations.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import graphs


@dataclasses.dataclass(frozen=True, eq=False)
class _Slice:
    """One slice of a logical tensor.

    Args:
      name: of the logical tensor.
      spec: TensorFlow's text, such as "4 6 0,2:0,6" for the first two rows of a 4 x 6 matrix; "" for a complete tensor.
    """

    name: str
    spec: str

    @functools.cached_property
    def _parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        *full, extents = self.spec.split(" ")
        begin, size = zip(*(map(int, extent.split(",")) for extent in extents.split(":")), strict=True)
        return tuple(map(int, full)), begin, size

    def box(self, full_shape: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return where the slice begins, and its shape."""
        return self._parts[1:] if self.spec else ([0] * len(full_shape), full_shape)

    def full_shape(self, value: np.ndarray) -> Sequence[int]:
        """Return the shape of the logical tensor, of which `value` is this slice."""
        return self._parts[0] if self.spec else np.shape(value)


class State:
    """Values of the global variables of a session.

    Args:
      pieces: {name of a logical variable: its slices and their values}.

    Example:
      >>> state = State.of(session)
      >>> with other_graph.as_default(), tf.Session() as other_session:
      ...     state.load(other_saver, other_session)
    """

    def __init__(self, pieces: Mapping[str, Sequence[tuple[_Slice, np.ndarray]]]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, session: tf.Session) -> "State":
        """Copy the present values of a session, between two steps."""
        variables = _variables(session.graph)
        values = session.run([session.graph.as_graph_element(variable) for variable in variables])
        return cls.from_slices(variables, values)

    @classmethod
    def from_values(cls, graph: tf.Graph, values: Mapping[str, np.ndarray]) -> "State":
        """Make a state of values by the names of the operations of a graph's variables."""
        variables = _variables(graph)
        return cls.from_slices(variables, [values[variable.op.name] for variable in variables])

    @classmethod
    def from_slices(cls, variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> "State":
        """Make a state of the values of variables, each of which is one slice."""
        pieces: dict[str, list[tuple[_Slice, np.ndarray]]] = {}
        for variable, value in zip(variables, values, strict=True):
            info, saved_dtype = variable._save_slice_info, getattr(variable, "_saved_dtype", None)
            if saved_dtype is not None:
                value = value.astype(saved_dtype.as_numpy_dtype)
            elif variable.dtype._is_ref_dtype:  # without a copy, the array would change with the variable
                value = np.array(value)
            slice_ = _Slice(info.full_name, info.spec) if info else _Slice(variable.op.name, "")
            pieces.setdefault(slice_.name, []).append((slice_, value))
        return cls(pieces)

    def load(self, saver: tf.train.Saver, session: tf.Session) -> None:
        """Give a session this state, as if the Saver restored a checkpoint of it.

        Args:
          saver: of the session's graph, which may have other slices.
          session: its variables have no values yet.

        Raises:
          ValueError: the graph has a variable that this state lacks.
        """
        restore = session.graph.get_operation_by_name(saver.saver_def.restore_op_name)
        session.run(restore, {tensor: self._value(slice_) for slice_, tensor in _restored_slices(restore)})

    def value(self, name: str) -> np.ndarray:
        """Return a logical variable."""
        return self._value(_Slice(name, ""))

    @property
    def names(self) -> Collection[str]:
        """The names of the logical variables."""
        return self._pieces.keys()

    def write(self, path: str) -> None:
        """Write the files of a checkpoint, without a session of the training."""
        slices, values = zip(*(piece for pieces in self._pieces.values() for piece in pieces), strict=True)
        with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            tensors = [tf.placeholder(_dtype(value), np.shape(value)) for value in values]
            save = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=[slice_.name for slice_ in slices],
                shape_and_slices=[slice_.spec for slice_ in slices],
                tensors=tensors,
            )
            session.run(save, dict(zip(tensors, values, strict=True)))

    def _value(self, slice_: _Slice) -> np.ndarray:
        """Return a slice, assembled from the overlapping slices; without a copy if it equals one."""
        if slice_.name not in self._pieces:
            raise ValueError(
                f"the state of the training has no variable {slice_.name!r}; continue with the model that it began with"
            )
        pieces = self._pieces[slice_.name]
        for piece, value in pieces:
            if piece.spec == slice_.spec:
                return value
        full_shape = pieces[0][0].full_shape(pieces[0][1])
        begin, size = slice_.box(full_shape)
        result = np.empty(size, pieces[0][1].dtype)
        for piece, value in pieces:
            other, other_size = piece.box(full_shape)
            low, high = np.maximum(begin, other), np.minimum(np.add(begin, size), np.add(other, other_size))
            if np.all(low < high):
                result[_between(low - begin, high - begin)] = value[_between(low - other, high - other)]
        return result


def size_bytes(graph: tf.Graph) -> int:
    """Return the size of the state of a graph's session, from the known shapes."""
    return sum((v.shape.num_elements() or 0) * v.dtype.size for v in _variables(graph) if v.shape.rank is not None)


def _variables(graph: tf.Graph) -> list[tf.Variable]:
    return graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)


def _restored_slices(restore: tf.Operation) -> Iterator[tuple[_Slice, tf.Tensor]]:
    """Yield each slice that a Saver reads, with its tensor."""
    for op in graphs.ancestors([restore]):
        if op.type == "RestoreV2":
            names, specs = (tf.get_static_value(op.inputs[place]) for place in (1, 2))
            for name, spec, tensor in zip(names, specs, op.outputs, strict=True):
                yield _Slice(name.decode(), spec.decode()), tensor


def _between(low: np.ndarray, high: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in zip(low, high, strict=True))


def _dtype(value: Any) -> tf.DType:
    dtype = np.asarray(value).dtype
    return tf.string if dtype.kind in "OS" else tf.as_dtype(dtype)
