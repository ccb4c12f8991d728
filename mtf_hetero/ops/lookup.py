"""Lookups of rows in tables: `mtf.gather` without its one-hot tensor, which is as long as the table.

A processor that holds the whole table gathers its rows. Where the rows are split, each processor gathers from its own
part, with zeros for all other rows, and an all-reduce adds up the parts. The gradient sums the rows of each id.
"""

import contextlib
import functools
from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import Processor, is_cpu
from mtf_hetero._support.ops import constant, reshape, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.mesh.collectives import present_processors
from mtf_hetero.ops.backend import Backend, absent_from, has_nothing
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.traits import Traits
from mtf_hetero.ops.whole import lower_slices


def lookup(table: mtf.Tensor, ids: mtf.Tensor, dim: mtf.Dimension, *, name: str = "lookup") -> mtf.Tensor:
    """Look up rows of a table, as tf.gather does.

    The step raises tf.errors.InvalidArgumentError for an id that is not in [0, dim.size). On a GPU, TensorFlow's gather
    gives zeros instead; where a layout splits `dim`, a check raises the error on every device.

    Args:
      table: mtf.Tensor of numbers, with the dimension `dim`.
      ids: mtf.Tensor of integers, with any dimensions that the table does not have.
      dim: the dimension that counts the table's rows.
      name: the operation's name.

    Returns:
      mtf.Tensor [dimensions of `ids`, dimensions of `table` except `dim`].

    Raises:
      ValueError: the table lacks `dim` or shares a dimension with the ids, the ids are not integers, or the table does
        not hold numbers.

    Example:
      >>> lookup(table, ids, words).shape  # table: [words=100, channels=8], ids: [batch=2, length=5]
      Shape[batch=2, length=5, channels=8]
    """
    if dim not in table.shape.dims:
        raise ValueError(
            f"lookup {name!r}: the table is {table.shape.to_string}, without the dimension {dim.name}={dim.size}; give "
            "one of its dimensions"
        )
    if not ids.dtype.is_integer:
        raise ValueError(f"lookup {name!r}: ids are of type {ids.dtype.name}; cast them to tf.int32 or tf.int64")
    if not (table.dtype.is_floating or table.dtype.is_integer):
        raise ValueError(f"lookup {name!r}: the table is of type {table.dtype.name}; cast it to numbers")
    shared = set(ids.shape.dimension_names) & set(table.shape.dimension_names)
    if shared:
        raise ValueError(
            f"lookup {name!r}: ids and table both have a dimension {min(shared)!r}; rename the dimension of the ids"
        )
    if table.shape.dims[0] != dim:
        table = mtf.transpose(table, mtf.Shape([dim, *(d for d in table.shape.dims if d != dim)]))
    if ids.dtype not in (tf.int32, tf.int64):
        ids = mtf.cast(ids, tf.int32)
    return LookupOperation(table, ids, name).outputs[0]


class LookupOperation(mtf.Operation):
    """Looks up the rows of a table that some ids name.

    Args:
      table: mtf.Tensor [rows, ...].
      ids: mtf.Tensor of int32 or int64.
    """

    def __init__(self, table: mtf.Tensor, ids: mtf.Tensor, name: str) -> None:
        super().__init__([table, ids], name=name)
        self._outputs = [mtf.Tensor(self, mtf.Shape([*ids.shape.dims, *table.shape.dims[1:]]), table.dtype)]

    @property
    def rows(self) -> mtf.Dimension:
        """The dimension that counts the rows of the table."""
        return self.inputs[0].shape.dims[0]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor | None]:
        table, ids = self.inputs
        return [LookupGradientOperation(grad_ys[0], ids, table.shape, f"{self.name}/gradient").outputs[0], None]

    def lower(self, lowering: mtf.Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self.rows)
        if axis is None:
            lower_slices(self, lowering, gather)
            return

        def look_up(table: tf.Tensor, ids: tf.Tensor, coordinate: int | tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([self.check(ids)]):
                return gather_local(table, ids, coordinate * table.shape.as_list()[0])

        lower_slices(self, lowering, look_up, mesh_impl.laid_out_pcoord(axis), summed=[self.rows])

    def check(self, ids: tf.Tensor) -> tf.Operation:
        """Make an operation that raises tf.errors.InvalidArgumentError, with the id, if an id has no row."""
        size = constant(self.rows.size, ids.dtype)
        axes = constant(list(range(ids.shape.rank)))
        least, most = tf.reduce_min(ids, axes), tf.reduce_max(ids, axes)
        is_right = tf.logical_and(least >= constant(0, ids.dtype), most < size)
        wrong = tf.where_v2(most < size, least, most)
        return tf.raw_ops.Assert(
            condition=is_right, data=["id", wrong, f"is not in [0, {self.rows.size}) of lookup {self.name}"]
        )


class LookupGradientOperation(mtf.Operation):
    """Sums the rows of each id: the gradient to the table of a LookupOperation.

    Args:
      rows: mtf.Tensor, dimensions of the ids, then those of a row.
      ids: mtf.Tensor of int32 or int64.
      shape: mtf.Shape of the table.
      splits_ids: whether a layout may split the ids; the sums are then all-reduced.
    """

    def __init__(
        self, rows: mtf.Tensor, ids: mtf.Tensor, shape: mtf.Shape, name: str, *, splits_ids: bool = True
    ) -> None:
        super().__init__([rows, ids], name=name)
        self._outputs = [mtf.Tensor(self, shape, rows.dtype)]
        self._splittable_dims, self._unsplittable_dims = self._initialize_splittable_and_unsplittable_dims(
            "splittable", [] if splits_ids else ids.shape.dimension_names
        )

    @property
    def rows(self) -> mtf.Dimension:
        """The dimension that counts the rows of the table."""
        return self.outputs[0].shape.dims[0]

    def lower(self, lowering: mtf.Lowering) -> None:
        mesh_impl, (_, ids), (output,) = lowering.mesh_impl(self), self.inputs, self.outputs
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self.rows)
        count = mesh_impl.slice_shape(output.shape)[0]

        def add(dy: tf.Tensor, ids: tf.Tensor, coordinate: int | tf.Tensor) -> tf.Tensor:
            return add_rows(dy, ids, 0 if axis is None else coordinate * count, count)

        coordinates = mesh_impl.laid_out_pcoord(axis) if axis is not None else mesh_impl.laid_out_pnum()
        lower_slices(self, lowering, add, coordinates, summed=ids.shape.dims)


def _item_bytes(op: LookupOperation) -> list[int]:
    """Return the bytes per element that are moved: a lookup reads as much of its table as it writes."""
    table, ids, output = (tensor.dtype.size for tensor in (*op.inputs, *op.outputs))
    return [0, ids, table + output]


def gather(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Gather rows of a whole table."""
    return tf.gather(table, ids, axis=constant(0))


def _local(ids: tf.Tensor, begin: int | tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the ids counted from the first row of a part of a table, and which of them have their row there."""
    local = ids - (constant(begin, ids.dtype) if isinstance(begin, int) else tf.cast(begin, ids.dtype))
    is_local = tf.logical_and(local >= constant(0, ids.dtype), local < constant(count, ids.dtype))
    return local, is_local


def gather_local(part: tf.Tensor, ids: tf.Tensor, begin: int | tf.Tensor) -> tf.Tensor:
    """Gather rows from a part of a table, with zeros for all rows that lie elsewhere.

    Args:
      part: tf.Tensor [rows, ...], of one row or more.
      ids: in the whole table.
      begin: the id of the part's first row.
    """
    local, is_local = _local(ids, begin, part.shape.as_list()[0])
    rows = gather(part, tf.where_v2(is_local, local, constant(0, local.dtype)))
    mask = reshape(is_local, [*ids.shape.as_list(), *[1] * (part.shape.rank - 1)])
    return tf.where_v2(mask, rows, constant(0, rows.dtype))


def add_rows(dy: tf.Tensor, ids: tf.Tensor, begin: int | tf.Tensor, count: int) -> tf.Tensor:
    """Sum the rows of each id in [begin, begin + count), and skip all other ids.

    Numbers of half precision are summed in float32.

    Args:
      dy: tf.Tensor [dimensions of ids, dimensions of a row].
      ids: in the whole table.
      begin: the first id.
      count: the number of ids.

    Returns:
      tf.Tensor [count, dimensions of a row].
    """
    local, is_local = _local(ids, begin, count)
    number = mtf.list_product(ids.shape.as_list())
    rows = reshape(dy, [number, *dy.shape.as_list()[ids.shape.rank :]])
    is_half = dy.dtype.is_floating and dy.dtype.size < tf.float32.size
    sums = tf.raw_ops.UnsortedSegmentSum(
        data=tf.cast(rows, tf.float32) if is_half else rows,
        segment_ids=reshape(tf.where_v2(is_local, local, constant(-1, local.dtype)), [number]),
        num_segments=constant(count),
    )
    return tf.cast(sums, dy.dtype) if is_half else sums


def _checkers(op: LookupOperation, layout: Layout) -> set[int]:
    """Choose the processors that check the ids: one of each group that has the same ids and splits the rows."""
    axis, absent = layout.axis_of(op.rows), absent_from(layout, [op.rows])
    if axis is None:
        return set()
    groups = mtf.processor_groups(mtf.Shape(layout.mesh_shape), [axis])
    first = (present_processors(group, absent)[0] for group in groups)
    return {pnum for pnum in first if not has_nothing(layout, pnum, op.outputs[0].shape)}


@register(
    LookupOperation,
    traits=Traits(is_layer=True, rows=lambda op: op.rows, leaves_sums=True, item_bytes=_item_bytes),
)
def look_up(op: LookupOperation, backend: Backend) -> None:
    """Gather rows. If they are split, no processor's gather can find a wrong id, so that a check looks for it."""
    (table, _), (output,), layout = op.inputs, op.outputs, backend.layout
    is_split, checkers = layout.axis_of(op.rows) is not None, functools.cache(lambda: _checkers(op, layout))

    def gather_slice(pnum: Processor, *operands: tf.Tensor) -> tf.Tensor:
        if not operands:
            return zeros(layout.slice_shape(output.shape, pnum), output.dtype)
        part, ids = operands
        if not is_split:
            return gather(part, ids)
        with tf.control_dependencies([_check(op, ids, pnum.device)] if pnum in checkers() else []):
            return gather_local(part, ids, layout.slice_begin(table.shape, pnum)[0])

    def result_key(pnum: int) -> tuple[int, bool]:
        return layout.slice_begin(table.shape, pnum)[0], pnum in checkers()

    reads = backend.own_slices(op, table.shape, output.shape)
    backend.set_sum(output, backend.make(output, gather_slice, reads, result_key), [op.rows])


def _check(op: LookupOperation, ids: tf.Tensor, device: str) -> tf.Operation:
    """Check the ids on the CPU of the device's process, for a GPU holds no strings."""
    with contextlib.nullcontext() if is_cpu(device) else tf.device("/device:CPU:0"):
        return op.check(ids)


@register(LookupGradientOperation, traits=Traits(rows=lambda op: op.rows, leaves_sums=True))
def look_up_gradient(op: LookupGradientOperation, backend: Backend) -> None:
    """Sum the rows of each id, first on each processor, then over the mesh axes that split the ids."""
    (dy, ids), (output,), layout = op.inputs, op.outputs, backend.layout

    def add(pnum: int, *operands: tf.Tensor) -> tf.Tensor:
        shape = layout.slice_shape(output.shape, pnum)
        if not operands:
            return zeros(shape, output.dtype)
        rows, ids = operands
        return add_rows(rows, ids, layout.slice_begin(output.shape, pnum)[0], shape[0])

    reads = backend.own_slices(op, dy.shape, output.shape)
    partial = backend.make(output, add, reads, lambda pnum: layout.slice_begin(output.shape, pnum)[0])
    backend.set_sum(output, partial, ids.shape.dims)
