"""Cuts a tf.data pipeline in front of the functions that read and decode its examples, so that workers call them.

    from_tensor_slices(paths).shuffle(1000, seed=1) | .map(read).batch(64).prefetch(2)

This process goes on making what is on the left, in the same order, in batches; a worker makes its own examples of it.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtf_hetero._compat import has_state, tf
from mtf_hetero._support import facts
from mtf_hetero.data.stored import Stored

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_Dataset = tf.compat.v2.data.Dataset
_Make = Callable[..., Sequence[tf.Tensor]]  # what is fed of an example, or of the rows of several, flat -> these
_MOST_CONSTANTS = 2**20  # bytes of a function with its constants: it is part of the graph for each worker
_LEAST_ROW = 1024  # bytes of an example, above which its number is fed in place of it
_PARALLEL = 16  # examples that a worker loads at the same time; TensorFlow's threads bound it too
# Of those that TensorFlow marks otherwise: they have the state of what they call, or none that matters
_STATELESS = facts.CALLS | facts.CONDITIONS | facts.LOOPS | {"Assert", "Placeholder"}
_BATCHES = frozenset({"_BatchDataset", "_ParallelBatchDataset"})
_MAPS = frozenset({"_MapDataset", "_ParallelMapDataset"})

# How a step of a pipeline that does not look into its examples is made again, over other examples
_AGAIN: dict[str, Callable[[tf.data.Dataset, tf.data.Dataset], tf.data.Dataset]] = {
    "_PrefetchDataset": lambda old, below: below.prefetch(int(old._buffer_size)),
    "_OptionsDataset": lambda old, below: below.with_options(old.options()),
    "_RepeatDataset": lambda old, below: below.repeat(old._count),
    "_TakeDataset": lambda old, below: below.take(old._count),
    "_SkipDataset": lambda old, below: below.skip(old._count),
    "_ShardDataset": lambda old, below: below.shard(old._num_shards, old._index),
    "_ShuffleDataset": lambda old, below: below.shuffle(
        old._buffer_size, reshuffle_each_iteration=old._reshuffle_each_iteration
    ),
    **dict.fromkeys(
        _BATCHES, lambda old, below: below.batch(old._batch_size, drop_remainder=bool(old._drop_remainder))
    ),
}


class Loader:
    """Loads examples, in this process or on a worker.

    Args:
      make: makes the examples of what is fed of them; None: that is the examples.
      spec: the structure of a batch, of tf.TensorSpecs.
      stored: the arrays whose row numbers are fed, in place of their rows; None: the rows are fed.
      draws: whether each call draws other random numbers.

    Attributes:
      is_on_workers: whether workers load the examples; False once one of them could not, and this process does.
    """

    def __init__(self, make: _Make | None, spec: object, *, stored: Stored | None = None, draws: bool = False) -> None:
        self._make, self._spec = make, tf.nest.flatten(spec)
        self.stored, self.draws, self.is_on_workers = stored, draws, True
        if make is not None:
            self._function = tf.compat.v2.function(make, autograph=False)

    def load_here(self, fed: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the components of examples, in this process, given the arrays that are fed."""
        rows = fed if self.stored is None else self.stored.take(fed[0])
        if self._make is None:
            return list(rows)
        with tf.init_scope(), tf.device("/cpu:0"):
            return [np.asarray(tensor) for tensor in self._function(*map(tf.constant, rows))]

    def __call__(self, fed: Sequence[tf.Tensor], host: str) -> Sequence[tf.Tensor]:
        """Make operations in TensorFlow's default graph; returns the components of examples, [examples, ...].

        Args:
          fed: components, on the host.
          host: its CPU, on which the operations are placed.
        """
        rows = list(fed) if self.stored is None else self.stored.gather(fed[0], host)
        loaded = rows if self._make is None else self._make(*rows)
        for tensor, spec in zip(loaded, self._spec, strict=True):
            tensor.set_shape([fed[0].shape[0], *spec.shape[1:]])
        return loaded


class Cut(NamedTuple):
    """A pipeline of batches in two parts.

    Attributes:
      below: the batches that this process makes.
      loader: makes the examples of them; None: they are the pipeline's own.
      why: what keeps this process from making less, and what to change; "" if nothing does.
      runs_ahead: whether batches may be made before they are asked for: no Python code is called for them, or the
        pipeline ends with a `prefetch`.
    """

    below: tf.data.Dataset
    loader: Loader | None
    why: str
    runs_ahead: bool


def cut(dataset: tf.data.Dataset, passes: int = 1) -> Cut:
    """Cut a pipeline of batches as far below as possible.

    What lies above the cut are functions of one example (`map`), functions of batches that treat each example alike,
    such as `x / 255`, and steps that do not look into examples: `batch`, `repeat`, `prefetch`, `shuffle` without a
    seed. The functions must give the same result wherever they are called.

    Args:
      dataset: of batches.
      passes: over it that are to come.

    Example:
      >>> dataset = tf.data.Dataset.from_tensor_slices(paths).shuffle(1000, seed=1).map(read).batch(64)
      >>> cut(dataset).below  # the same paths in the same order, in batches of 64
    """
    cutter = _Cutter()
    below, make = cutter.cut(dataset)
    numbers, arrays = _by_number(below)
    stored = Stored(arrays, passes) if arrays else None
    loader = Loader(make, dataset.element_spec, stored=stored, draws=cutter.draws) if make or stored else None
    return Cut(numbers, loader, cutter.why, runs_ahead(dataset))


def runs_ahead(dataset: tf.data.Dataset) -> bool:
    """Return whether batches of a pipeline may be made before they are asked for, as `Cut` says."""
    return _ends_with_prefetch(dataset) or not _calls_python(dataset)


class _Cutter:
    """Cuts one pipeline, and notes what it finds.

    Attributes:
      why: what keeps it from cutting further below.
      draws: whether a function above the cut draws random numbers.
    """

    def __init__(self) -> None:
        self.why, self.draws = "", False

    def cut(self, dataset: tf.data.Dataset, *, is_batched: bool = True) -> tuple[tf.data.Dataset, _Make | None]:
        """Return what is fed of batches, or of examples, and what makes them of it; None: nothing does."""
        dataset, kind = _kind(dataset)
        if kind in _AGAIN and (is_batched or kind not in _BATCHES) and not _is_seeded(dataset):
            below, make = self.cut(dataset._input_dataset, is_batched=is_batched and kind not in _BATCHES)
            if make is None:
                return dataset, None
            return _AGAIN[kind](dataset, below), _by_example(make) if kind in _BATCHES else make
        if kind in _MAPS:
            if is_batched and not (_is_by_row(dataset._map_func.function.graph) or _is_class_weights(dataset)):
                return self._refuse(dataset, "a function of whole batches; call map() before batch()")
            if why := self._why_not(dataset):
                return self._refuse(dataset, why)
            below, make = self.cut(dataset._input_dataset, is_batched=is_batched)
            function = _function(dataset)
            return below, function if make is None else lambda *fed: function(*make(*fed))
        if not is_batched and kind == "_ZipDataset":
            return self._cut_zipped(dataset)
        if not is_batched and ("TensorSlice" in kind or "Range" in kind or "TFRecord" in kind):
            return dataset, None
        return self._refuse(dataset, _describe(dataset))

    def _cut_zipped(self, dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, _Make | None]:
        """Cut each of the pipelines that are read side by side."""
        parts = [self.cut(part, is_batched=False) for part in tf.nest.flatten(dataset._datasets)]
        if all(make is None for _, make in parts):
            return dataset, None
        begins = list(itertools.accumulate((len(_flat(below.element_spec)) for below, _ in parts), initial=0))

        def make_all(*fed: tf.Tensor) -> list[tf.Tensor]:
            pieces = (fed[begin:end] for begin, end in itertools.pairwise(begins))
            made = (piece if make is None else make(*piece) for (_, make), piece in zip(parts, pieces, strict=True))
            return [tensor for part in made for tensor in part]

        return _Dataset.zip(tuple(below for below, _ in parts)), make_all

    def _refuse(self, dataset: tf.data.Dataset, why: str) -> tuple[tf.data.Dataset, None]:
        self.why = self.why or why
        return dataset, None

    def _why_not(self, mapped: tf.data.Dataset) -> str:
        """Return why workers cannot call the function of a `map`; "" if they can."""
        specs = [*_flat(mapped._input_dataset.element_spec), *_flat(mapped.element_spec)]
        if not all(type(spec) is tf.TensorSpec for spec in specs):
            return "examples that are no dense tensors"
        made = _flat(mapped.element_spec)
        if any(spec.shape.rank is None for spec in specs) or any(None in spec.shape.as_list()[1:] for spec in made):
            return "an example whose shape is not known; call set_shape() in map()"
        graph = mapped._map_func.function.graph
        captured = mapped._map_func.function.captured_inputs
        if any(tensor.dtype in (tf.resource, tf.variant) for tensor in captured):
            return "a tf.Variable, or a table, in map(); give it constants"
        nbytes = graph.as_graph_def().ByteSize() + sum(np.asarray(tensor).nbytes for tensor in captured)
        if nbytes > _MOST_CONSTANTS:
            return "a large array in map(); give its rows by from_tensor_slices()"
        for node in list_nodes(graph):
            if node.op in facts.PYTHON:
                return "Python code in map(); write it in TensorFlow"
            if node.op in facts.DRAWS:
                if node.attr["seed"].i or node.attr["seed2"].i:
                    return "random numbers with a seed in map(); draw them by tf.random.stateless_*"
                self.draws = True
            elif node.op not in _STATELESS and has_state(node.op):
                return f"an operation with a state, {node.op}, in map()"
        return ""


def _kind(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, str]:
    """Return a step of a pipeline, as TensorFlow 2 has it, and its class."""
    dataset = getattr(dataset, "_dataset", dataset)
    return dataset, type(dataset).__name__


def _flat(structure: object) -> list[tf.TensorSpec]:
    return tf.nest.flatten(structure)


def _describe(dataset: object) -> str:
    name = type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")
    told = {
        "Shuffle": "shuffle() with a seed after map(); call it before map()",
        "Cache": "cache()",
        "FlatMap": "a generator, or flat_map()",
    }
    return told.get(name, f"a step {name} of the pipeline")


def is_dense(spec: tf.TypeSpec) -> bool:
    """Return whether a component of batches is a dense tensor of which all sizes but the first are known."""
    return type(spec) is tf.TensorSpec and bool(spec.shape.rank) and None not in spec.shape.as_list()[1:]


def _is_seeded(dataset: tf.data.Dataset) -> bool:
    """Return whether another shuffle would give another order than this one."""
    return type(dataset).__name__ == "_ShuffleDataset" and bool(int(dataset._seed) or int(dataset._seed2))


def _is_class_weights(mapped: tf.data.Dataset) -> bool:
    """Return whether a function of batches is Keras's, which gives each example the weight of its class."""
    return getattr(mapped._map_func._func, "__name__", "") == "class_weights_map_fn"


def _is_by_row(graph: "FuncGraph") -> bool:
    """Return whether each row of a function's results depends on the same row of its arguments, and on no other."""
    captured = {inner.name for _, inner in graph.captures}
    rows = {tensor.name for tensor in graph.inputs} - captured
    for op in graph.get_operations():
        if rows.isdisjoint(x.name for x in op.inputs):
            continue
        if len(op.outputs) != 1 or not _keeps_rows(op, [x.name in rows for x in op.inputs]):
            return False
        rows.add(op.outputs[0].name)
    return all(tensor.name in rows for tensor in graph.outputs)


def _keeps_rows(op: tf.Operation, has_rows: Sequence[bool]) -> bool:
    if op.type == "OneHot":
        return op.get_attr("axis") == -1 and not any(has_rows[1:])
    rank = op.outputs[0].shape.rank
    if op.type not in facts.ELEMENTWISE | facts.RENAMING or rank is None:
        return False
    ranks = [x.shape.rank for x in op.inputs]
    return all(
        other is not None and (other == rank if has else other < rank)
        for other, has in zip(ranks, has_rows, strict=True)
    )


def _function(mapped: tf.data.Dataset) -> Callable[..., list[tf.Tensor]]:
    """Return the function of a `map`, flat, which makes its operations anew wherever it is called."""
    graph = mapped._map_func.function.graph
    captured = [np.asarray(tensor) for tensor in mapped._map_func.function.captured_inputs]
    graph_def, results = graph.as_graph_def(), [tensor.name for tensor in graph.outputs]

    def call(*arguments: tf.Tensor) -> list[tf.Tensor]:
        given = [*arguments, *map(tf.constant, captured)]
        mapping = {tensor.name: value for tensor, value in zip(graph.inputs, given, strict=True)}
        return tf.graph_util.import_graph_def(graph_def, mapping, results, name="examples")

    return call


def _by_example(make: _Make) -> _Make:
    """Return what makes examples of rows, several at the same time, one by one."""

    def load(*rows: tf.Tensor) -> Sequence[tf.Tensor]:
        count = rows[0].shape[0]
        examples = _Dataset.from_tensor_slices(rows).map(
            lambda *fed: tuple(make(*fed)), num_parallel_calls=min(count, _PARALLEL), deterministic=True
        )
        return examples.batch(count).get_single_element()

    return load


def _by_number(dataset: tf.data.Dataset, batches: int = 1) -> tuple[tf.data.Dataset, list[np.ndarray]]:
    """Return a pipeline of the numbers of rows in place of rows, in the same order, and the arrays; none: not so.

    Args:
      dataset: of rows in so many batches of each other.
      batches: 0 or 1.
    """
    dataset, kind = _kind(dataset)
    batches -= kind in _BATCHES
    if kind == "_TensorSliceDataset" and not batches:
        if not all(type(spec) is tf.TensorSpec and spec.dtype != tf.string for spec in _flat(dataset.element_spec)):
            return dataset, []
        arrays = [np.asarray(tensor) for tensor in dataset._tensors]
        rows = len(arrays[0])
        is_worth_it = sum(array.nbytes for array in arrays) >= _LEAST_ROW * rows
        return (_Dataset.range(rows), arrays) if is_worth_it else (dataset, [])
    if kind not in _AGAIN or _is_seeded(dataset) or batches < 0:
        return dataset, []
    numbers, arrays = _by_number(dataset._input_dataset, batches)
    return (_AGAIN[kind](dataset, numbers), arrays) if arrays else (dataset, [])


def _ends_with_prefetch(dataset: tf.data.Dataset) -> bool:
    dataset, kind = _kind(dataset)
    return kind == "_PrefetchDataset" or (kind == "_OptionsDataset" and _ends_with_prefetch(dataset._input_dataset))


def _calls_python(dataset: tf.data.Dataset) -> bool:
    """Return whether a pipeline calls a Python function for its elements."""
    kinds = {node.op for function in dataset._functions() for node in list_nodes(function.function.graph)}
    return not kinds.isdisjoint(facts.PYTHON) or any(map(_calls_python, dataset._inputs()))


def list_nodes(graph: tf.Graph) -> Iterator[tf.NodeDef]:
    """Yield the nodes of a graph, and of the functions that it calls."""
    graph_def = graph.as_graph_def()
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def
