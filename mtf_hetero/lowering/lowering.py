"""Lowering: a subclass of mtf.Lowering that knows unequal slices."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero._support.alike import forget_numbers
from mtf_hetero._support.names import listing
from mtf_hetero.cluster import expect_devices
from mtf_hetero.layout import Layout, UnevenShapeError
from mtf_hetero.lowering import names, native, registry
from mtf_hetero.lowering.halo import opaque
from mtf_hetero.lowering.loop import operations_within
from mtf_hetero.mesh_impl import UnevenMeshImpl


def _lower_as_mtf_does(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """mtf's own lowering; what it cannot do with unequal slices is said with operation, dimension and axis."""
    try:
        type(op).lower(op, lowering)
    except UnevenShapeError as error:
        raise NotImplementedError(f"{type(op).__name__} {op.name!r} cannot be split unevenly: {error}") from error


def _rule_of(op: mtf.Operation) -> registry.Rule:
    return registry.rule_of(op) or _lower_as_mtf_does


def _leave_out(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Lowers nothing."""


class _Tensors(dict):
    """{mtf.Tensor: its slices}. What was left out is lowered when it is asked for after all.

    Args:
      tensors: what is there at first.
      lower: lowers an operation that was left out.
    """

    def __init__(self, tensors: Mapping[Any, Any], lower: Callable[[mtf.Operation], None]) -> None:
        super().__init__(tensors)
        self._lower = lower

    def __missing__(self, tensor: mtf.Tensor) -> Any:
        self._lower(tensor.operation)
        return self[tensor]


class Lowering(mtf.Lowering):
    """Lowers an mtf graph to a TensorFlow graph.

    Operations on a mesh whose implementation is an UnevenMeshImpl are lowered by the rules of this package; those on
    any other mesh as mtf does. Lowering changes no class of mtf: a rule takes the place of `lower` on the instances of
    this graph's operations while the graph is lowered.

    Args:
      graph: mtf.Graph.
      mesh_to_impl: {mtf.Mesh: mtf.MeshImpl}.
      autostack: whether mtf may stack small variables of the other meshes. Those of an uneven mesh are not stacked.
      log_file: optional file to which sizes of variables and counters are logged.

    Raises:
      NotImplementedError: the layout splits a dimension that an operation needs whole.
      ValueError: a layout that splits two dimensions of one tensor over one mesh axis, exact sizes of a dimension that
        fit none of the graph's tensors, or a rule whose dimension is nearly the name of one of the graph's. Other rules
        without effect are logged as a warning. Or the default session lacks a device; so does each later session of
        the graph that lacks one, when it is made.
    """

    def __init__(
        self,
        graph: mtf.Graph,
        mesh_to_impl: Mapping[mtf.Mesh, mtf.MeshImpl],
        autostack: bool = True,
        log_file: str | None = None,
    ) -> None:
        self._stack_variables = autostack
        self.sent: dict[Any, Any] = {}  # pieces of slices that went to other processors
        self.keys: dict[mtf.Operation, Any] = {}  # of random operations in loops, each processor's copy
        self.turns: list[Any] = []  # number of the present turn of each loop that is being lowered, on each processor
        forget_numbers()
        # mtf calls autostack just before its lowering loop, and that is where the rules go in.
        try:
            with garbage.uncollected():
                super().__init__(graph, mesh_to_impl, autostack=True, log_file=log_file)
        finally:
            for op in operations_within(graph.operations):
                vars(op).pop("lower", None)
        expect_devices(device for impl in mesh_to_impl.values() for device in getattr(impl, "devices", ()))

    def autostack(self) -> None:
        """Stacks variables where asked to, then puts the rules in place."""
        uneven = {mesh for mesh, impl in self.mesh_to_impl.items() if isinstance(impl, UnevenMeshImpl)}
        if self._stack_variables and any(v.mesh not in uneven for v in self.graph.all_variables):
            super().autostack()
        operations = [op for op in operations_within(self.graph.operations) if op.mesh in uneven]
        _check_shapes(operations, self.mesh_to_impl)
        _say_what_is_kept_whole(operations, self.mesh_to_impl)
        _check_names(operations, self.mesh_to_impl)
        rules, self._unneeded = native.plan(operations)
        for op in operations:
            rule = _leave_out if op in self._unneeded else rules.get(op) or _rule_of(op)
            op.lower = functools.partial(rule, op)

    @contextlib.contextmanager
    def in_turn(self, number: Any) -> Iterator[None]:
        """Lower a loop's operations, in which `number` is that of the turn: a LaidOutTensor."""
        self.turns.append(number)
        try:
            yield
        finally:
            self.turns.pop()

    @property
    def tensors(self) -> dict[Any, Any]:
        """{mtf.Tensor: its slices}."""
        return self._tensors

    @tensors.setter
    def tensors(self, tensors: Mapping[Any, Any]) -> None:
        self._tensors = _Tensors(tensors, self._lower_unneeded)

    def _lower_unneeded(self, op: mtf.Operation) -> None:
        """Lowers an operation that was left out because no other needs it.

        Raises:
          KeyError: it was not left out.
        """
        self._unneeded.remove(op)
        with tf.name_scope(op.name):
            _rule_of(op)(op, self)

    def set_tensor_lowering(self, tensor: mtf.Tensor, laid_out_tensor: Any) -> None:
        """Takes the slices of a tensor, and hides those that are empty from TensorFlow's graph optimizers.

        The arithmetic optimizer of TensorFlow 2.21 takes an empty constant for ones, and divides by its size when
        something is multiplied by it.
        """
        super().set_tensor_lowering(tensor, laid_out_tensor)
        mesh_impl = self.mesh_impl(tensor)
        if isinstance(mesh_impl, UnevenMeshImpl) and any(0 in sizes for _, sizes in mesh_impl.layout.sizes):
            slices = _slices(laid_out_tensor)
            for pnum, slice_ in enumerate(slices):
                if 0 in slice_.shape.as_list():
                    with tf.device(mesh_impl.devices[pnum]):
                        slices[pnum] = opaque(slice_)

    def verify_slice_shapes(self, tensor: mtf.Tensor, laid_out_tensor: Any) -> None:
        """Checks every processor's slice, not only the first."""
        mesh_impl = self.mesh_impl(tensor)
        if not isinstance(mesh_impl, UnevenMeshImpl):
            super().verify_slice_shapes(tensor, laid_out_tensor)
            return
        for pnum, slice_ in enumerate(_slices(laid_out_tensor)):
            correct = mesh_impl.slice_shape(tensor.shape, pnum)
            if slice_.shape.as_list() != correct:
                raise ValueError(
                    f"{tensor.operation.name}: the slice of {tensor.shape} on processor {pnum} should have shape "
                    f"{correct}, but has {slice_.shape.as_list()}"
                )


def _slices(laid_out_tensor: Any) -> list[tf.Tensor]:
    """Each processor's slice of a tensor, or of what is summed to make it."""
    lazy = isinstance(laid_out_tensor, mtf.LazyAllreduceSum)
    return (laid_out_tensor.laid_out_input if lazy else laid_out_tensor.to_laid_out_tensor()).tensor_list


def _check_shapes(operations: Iterable[mtf.Operation], mesh_to_impl: Mapping[mtf.Mesh, mtf.MeshImpl]) -> None:
    """Raises where the layout cannot divide a tensor of the graph, whether or not an operation would find out."""
    for op in operations:
        layout = mesh_to_impl[op.mesh].layout
        for tensor in op.outputs:
            try:
                layout.check(tensor.shape)
            except ValueError as error:
                raise ValueError(f"{type(op).__name__} {op.name!r}: {error}") from error


def _say_what_is_kept_whole(operations: Iterable[mtf.Operation], mesh_to_impl: Mapping[mtf.Mesh, mtf.MeshImpl]) -> None:
    kept = {
        (dim, layout.axis_name_of(dim.name), layout)
        for op in operations
        for layout in [mesh_to_impl[op.mesh].layout]
        for tensor in op.outputs
        for dim in tensor.shape.dims
        if layout.is_kept_whole(dim)
    }
    for dim, axis, layout in sorted(kept, key=lambda item: tuple(item[0])):
        count = dict(layout.mesh_shape)[axis]
        tf.logging.warning(
            "dimension %r of size %d is replicated on the %d processors of mesh axis %r: it is too small to give each "
            "processor one unit",
            dim.name,
            dim.size,
            count,
            axis,
        )


def _check_names(operations: Iterable[mtf.Operation], mesh_to_impl: Mapping[mtf.Mesh, mtf.MeshImpl]) -> None:
    """Raises where a layout names dimensions, or sizes of them, by mistake; warns of rules without effect."""
    extents: dict[Any, dict[str, set[int]]] = {}
    for op in operations:
        of_mesh = extents.setdefault(op.mesh, {})
        for tensor in (*op.inputs, *op.outputs):  # where a part of a graph is lowered, its inputs are nobody's outputs
            for dim in tensor.shape.dims:
                of_mesh.setdefault(dim.name, set()).add(dim.size)
    for mesh, of_mesh in extents.items():
        layout = mesh_to_impl[mesh].layout
        _check_sizes_occur(layout, of_mesh)
        if idle := names.check_shared(layout, of_mesh):
            tf.logging.warning(
                "layout rules %s have no effect: no tensor of the graph has the dimension, or mesh %s has no such axis",
                ";".join(idle),
                layout.mesh_text,
            )


def _check_sizes_occur(layout: Layout, extents: Mapping[str, set[int]]) -> None:
    for dim, sizes in layout.sizes:
        known = extents.get(dim, set())
        if sum(sizes) not in known:
            where = f"has size {' or '.join(map(str, sorted(known)))}" if known else "does not occur"
            there = "" if known else f"; the dimensions are {listing(dim, extents)}"
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(sizes)}, {sum(sizes)} in all, but the dimension {where} in the "
                f"graph; give sizes that add up to the size of the dimension{there}"
            )
