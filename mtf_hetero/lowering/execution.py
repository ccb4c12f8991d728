"""Carries out the rules of operations with TensorFlow."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Protocol

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import Processor, call_each, is_cpu
from mtf_hetero._support.ops import concat, identity, zeros
from mtf_hetero.layout import CannotSplitError, UnevenShapeError, blocks
from mtf_hetero.layout.blocks import Box, Interval, Move
from mtf_hetero.mesh import collectives
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor, LazySum, Slices
from mtf_hetero.ops.backend import BackendOf, Function, KindOf, Like, SumOf

Tensors = list[tf.Tensor]  # one per processor


class Target(Protocol):
    """A Lowering, as far as an Execution uses it."""

    sent_pieces: dict[Hashable, tf.Tensor]

    @property
    def tensors(self) -> Mapping[mtf.Tensor, Slices]: ...

    def set_tensor_lowering(self, tensor: mtf.Tensor, laid_out_tensor: Slices) -> None: ...

    def add_counter(self, key: str, value: int) -> None: ...


def mtf_lower(op: mtf.Operation, lowering: Target) -> None:
    """Lower an operation as mtf does.

    Raises:
      CannotSplitError: mtf cannot do it with unequal slices.
    """
    try:
        type(op).lower(op, lowering)
    except UnevenShapeError as error:
        raise CannotSplitError(f"{type(op).__name__} {op.name!r} cannot be split unevenly: {error}") from error


class Execution(BackendOf[tf.Tensor]):
    """Makes the tensors of TensorFlow that a rule describes.

    Args:
      mesh_impl: the UnevenMeshImpl of the mesh.
    """

    def __init__(self, lowering: Target, mesh_impl: UnevenMeshImpl) -> None:
        super().__init__(mesh_impl.layout)
        self._lowering, self._mesh_impl, self._devices = lowering, mesh_impl, mesh_impl.devices
        self.on_cpus = all(map(is_cpu, mesh_impl.devices))

    def laid_out(self, tensor: mtf.Tensor) -> Tensors | SumOf[tf.Tensor]:
        x = self._lowering.tensors[tensor]
        return x if isinstance(x, LazySum) else x.to_laid_out_tensor().tensor_list

    def set(self, tensor: mtf.Tensor, laid_out: Tensors | LazySum) -> None:
        self._lowering.set_tensor_lowering(tensor, LaidOutTensor(laid_out) if isinstance(laid_out, list) else laid_out)

    def make(
        self,
        output: mtf.Tensor | Like,
        function: Function,
        reads: Sequence[Sequence[tf.Tensor]],
        kind_of: KindOf | None = None,
    ) -> Tensors:
        if kind_of is None:
            return call_each(self._devices, function, reads)
        calls = []
        for pnum, (size, own) in enumerate(zip(self.layout.slice_shapes(output.shape), reads, strict=True)):
            calls.append((Processor(pnum, (*size, kind_of(pnum)), self._devices[pnum]), *own))
        return call_each(self._devices, function, calls)

    def make_all(
        self,
        outputs: Sequence[mtf.Tensor | Like],
        function: Function,
        reads: Sequence[Sequence[tf.Tensor]],
        kind_of: KindOf | None = None,
    ) -> list[Tensors]:
        results = self.make(outputs[0], function, reads, kind_of)
        return [list(slices) for slices in zip(*results, strict=True)]

    def mtf_lower(self, op: mtf.Operation) -> None:
        mtf_lower(op, self._lowering)

    def outstanding(
        self, output: mtf.Tensor, partial: Tensors, axes: Sequence[int], absent: Collection[int] = ()
    ) -> LazySum:
        name = f"allreduce/{list(axes)}/{type(output.operation).__name__}"
        addends = LaidOutTensor(partial, absent)
        return LazySum(self._mesh_impl, addends, axes, lambda: self.count(name, output.shape))

    def derived(
        self,
        source: LazySum,
        partial: Tensors,
        absent: Collection[int],
        move: Callable[[], Tensors | None] | None = None,
    ) -> LazySum:
        addends = LaidOutTensor(partial, absent)
        return LazySum(self._mesh_impl, addends, source.axes, source.add_counter_fn, move or (lambda: None))

    def allreduce(
        self, xs: Tensors, axes: Sequence[int], reduction: str = "SUM", absent: Collection[int] = ()
    ) -> Tensors:
        return self._mesh_impl.allreduce(LaidOutTensor(xs, absent), axes, reduction).tensor_list

    def join(self, xs: Tensors, axes: Sequence[int], absent: Collection[int], function: Function) -> Tensors:
        return self._mesh_impl.join(LaidOutTensor(xs, absent), axes, function).tensor_list

    def reduce_scatter(self, total: LazySum, moves: Sequence[Move | None]) -> list[tf.Tensor | None]:
        addends = LaidOutTensor(total.partial, total.absent)
        parts = dict(self._mesh_impl.reduce_scatter(addends, total.axes, moves))
        return [parts[pnum] for pnum in self.processors]

    def move(self, xs: Tensors, moves: Sequence[Move]) -> Tensors:
        sent_pieces = sum(
            mtf.list_product(piece.size)
            for pnum, plan in enumerate(moves)
            for piece in plan.pieces
            if piece.source != pnum
        )
        if sent_pieces:
            self._lowering.add_counter("reshard/reshape_op", sent_pieces)
        return collectives.move(xs, self._devices, moves, wire_dtype=self._mesh_impl.wire_dtype)

    def fetch(self, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval] | None]) -> list[tf.Tensor | None]:
        windows = blocks.plan_windows(self.layout, tensor.shape.dims, boxes)
        return collectives.fetch(self.slices(tensor), self._devices, windows, wire_dtype=self._mesh_impl.wire_dtype)

    def concat(self, output: mtf.Tensor, pieces: Sequence[Sequence[tf.Tensor]], axis: int) -> Tensors:
        def join(pnum: int, *own: tf.Tensor) -> tf.Tensor:
            return concat(own, axis) if own else zeros(self.layout.slice_shape(output.shape, pnum), output.dtype)

        return self.make(output, join, pieces, lambda pnum: None)

    def halos(
        self, tensor: mtf.Tensor, box_of: Callable[[int], Sequence[Interval]]
    ) -> list[list[tuple[Box, tf.Tensor]]]:
        dims, slices = tensor.shape.dims, self.slices(tensor)
        windows = [blocks.plan_window(self.layout, dims, box_of(pnum), pnum) for pnum in self.processors]
        received = collectives.receive(
            slices, self._devices, windows, self._mesh_impl.wire_dtype, self._lowering.sent_pieces
        )
        return [[(blocks.place(self.layout, dims, piece), value) for piece, value in pieces] for pieces in received]

    def wait(self, output: mtf.Tensor, xs: Tensors, others: Tensors) -> Tensors:
        return self.local(output, _wait, xs, others)

    def count(self, name: str, shape: mtf.Shape, unique: str = "") -> None:
        self._lowering.add_counter(name, self._mesh_impl.laid_out_size(shape))
        if unique:
            self._lowering.add_counter(unique, shape.size)


def _wait(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([other]):
        return identity(x)
