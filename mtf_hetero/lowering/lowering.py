"""Lowering: a subclass of mtf.Lowering that knows unequal slices."""

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero._support.alike import forget_numbers
from mtf_hetero._support.names import listing
from mtf_hetero._support.ops import zeros
from mtf_hetero.cluster.local_session import expect_devices
from mtf_hetero.graph import merging, within
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.graph.residents import Residents
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import names, native
from mtf_hetero.lowering.execution import Execution, mtf_lower
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor, Slices
from mtf_hetero.mesh.variables import LaidOutVariable
from mtf_hetero.ops import registry
from mtf_hetero.ops.halo import opaque


def _find_lowering(op: mtf.Operation) -> registry.Rule[Any, "Lowering"]:
    return registry.find_rule(op, registry.LOWERINGS) or mtf_lower


def _leave_out(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Lower nothing."""


class _Tensors(dict[mtf.Tensor, Slices]):
    """{mtf.Tensor: its slices}. An operation that was left out is lowered when its output is asked for.

    Args:
      tensors: what is there at first.
      lower: lowers an operation that was left out.
    """

    def __init__(self, tensors: Mapping[mtf.Tensor, Slices], lower: Callable[[mtf.Operation], None]) -> None:
        super().__init__(tensors)
        self._lower = lower

    def __missing__(self, tensor: mtf.Tensor) -> Slices:
        self._lower(tensor.operation)
        return self[tensor]


class Lowering(mtf.Lowering):
    """Lower an mtf graph to a TensorFlow graph.

    Operations on a mesh whose implementation is an UnevenMeshImpl are lowered by the rules of this package; those on
    any other mesh as mtf does. Lowering changes no class of mtf: a rule takes the place of `lower` on the instances of
    this graph's operations while the graph is lowered.

    Args:
      mesh_to_impl: {mtf.Mesh: mtf.MeshImpl}.
      autostack: whether mtf may stack small variables of the other meshes. Those of an uneven mesh are not stacked.
      log_file: optional file to which sizes of variables and counters are logged.
      given: slices of tensors that are not computed; their operations are left out.

    Raises:
      NotImplementedError: the layout splits a dimension that an operation needs whole.
      ValueError: a layout that splits two dimensions of one tensor over one mesh axis, exact sizes of a dimension that
        fit none of the graph's tensors, or a rule whose dimension is nearly the name of one of the graph's. Other rules
        without effect are logged as a warning. Or the default session lacks a device; so does each later session of
        the graph that lacks one, when it is made.
    """

    variables: dict[mtf.Variable, LaidOutVariable]

    def __init__(
        self,
        graph: mtf.Graph,
        mesh_to_impl: Mapping[mtf.Mesh, mtf.MeshImpl],
        autostack: bool = True,
        log_file: str | None = None,
        *,
        given: Mapping[mtf.Tensor, LaidOutTensor] = types.MappingProxyType({}),
    ) -> None:
        self._stack_variables, self._given = autostack, given
        self.sent_pieces: dict[Hashable, tf.Tensor] = {}  # pieces of slices that went to other processors
        self.keys: dict[mtf.Operation, LaidOutTensor] = {}  # of random operations in loops, each processor's copy
        self._backends: dict[mtf.Mesh, Execution] = {}
        # The number of the present turn of each loop that is being lowered, on each processor
        self.turns: list[LaidOutTensor] = []
        forget_numbers()
        # mtf calls autostack just before its lowering loop, and that is where the rules go in.
        try:
            with garbage.without_collection():
                super().__init__(graph, mesh_to_impl, autostack=True, log_file=log_file)
        finally:
            for op in within(graph.operations):
                vars(op).pop("lower", None)
        expect_devices(device for impl in mesh_to_impl.values() for device in getattr(impl, "devices", ()))

    def autostack(self) -> None:
        """Stack variables if asked to, then put the rules in place."""
        layouts = {mesh: impl.layout for mesh, impl in self.mesh_to_impl.items() if isinstance(impl, UnevenMeshImpl)}
        if self._stack_variables and any(v.mesh not in layouts for v in self.graph.all_variables):
            super().autostack()
        operations = [op for op in within(self.graph.operations) if op.mesh in layouts]
        _check_shapes(operations, layouts)
        _warn_about_replicated(operations, layouts)
        _check_names(operations, layouts)
        self._residents = {
            mesh: Residents([op for op in operations if op.mesh is mesh], layout) for mesh, layout in layouts.items()
        }
        gradients, self._unneeded = merging.plan(operations)
        lowerings = {op: registry.lower_by(native.gradient_rule(gradient)) for op, gradient in gradients.items()}
        lowerings |= dict.fromkeys(self._unneeded, _leave_out)
        lowerings |= {tensor.operation: self._give for tensor in self._given}
        for op in operations:
            op.lower = functools.partial(lowerings.get(op) or _find_lowering(op), op)

    def _give(self, op: mtf.Operation, lowering: mtf.Lowering) -> None:
        self.set_tensor_lowering(op.outputs[0], self._given[op.outputs[0]])

    def holders(self, variable: mtf.Variable) -> frozenset[int]:
        """Return the processors that hold a variable."""
        return self._residents[variable.mesh].holders(variable)

    def backend(self, op: mtf.Operation) -> Execution:
        """Return the backend that carries out the rules of the operation's mesh."""
        if op.mesh not in self._backends:
            self._backends[op.mesh] = Execution(self, self.uneven(op))
        return self._backends[op.mesh]

    def uneven(self, op: mtf.Operation) -> UnevenMeshImpl:
        """Return the implementation of an operation's mesh, which is uneven: the operation has a rule."""
        mesh_impl = self.mesh_impl(op)
        assert isinstance(mesh_impl, UnevenMeshImpl)
        return mesh_impl

    @contextlib.contextmanager
    def in_turn(self, number: LaidOutTensor) -> Iterator[None]:
        """Lower a loop's operations, in which `number` is that of the turn: a LaidOutTensor."""
        self.turns.append(number)
        try:
            yield
        finally:
            self.turns.pop()

    @property
    def tensors(self) -> dict[mtf.Tensor, Slices]:
        """{mtf.Tensor: its slices}."""
        return self._tensors

    @tensors.setter
    def tensors(self, tensors: Mapping[mtf.Tensor, Slices]) -> None:
        self._tensors = _Tensors(tensors, self._lower_unneeded)

    def _lower_unneeded(self, op: mtf.Operation) -> None:
        """Lower an operation that was left out because no other needs it.

        Raises:
          KeyError: it was not left out.
        """
        self._unneeded.remove(op)
        with tf.name_scope(op.name):
            _find_lowering(op)(op, self)

    def set_tensor_lowering(self, tensor: mtf.Tensor, laid_out_tensor: Slices) -> None:
        """Set the slices of a tensor: those that `Residents` says are another processor's.

        The empty ones depend on nothing, so that nothing is read or computed for them. They are hidden from
        TensorFlow's graph optimizers: the arithmetic optimizer of TensorFlow 2.21 takes an empty constant for ones, and
        divides by its size when something is multiplied by it.
        """
        mesh_impl = self.mesh_impl(tensor)
        if not isinstance(mesh_impl, UnevenMeshImpl) or not mesh_impl.layout.emptied:
            super().set_tensor_lowering(tensor, laid_out_tensor)
            return
        sources = self._residents[tensor.mesh].sources(tensor)
        if sources is not None and isinstance(laid_out_tensor, LaidOutTensor):
            own = laid_out_tensor.tensor_list
            laid_out_tensor = LaidOutTensor([own[source] for source in sources], laid_out_tensor.absent)
        super().set_tensor_lowering(tensor, laid_out_tensor)
        slices = _slices(laid_out_tensor)
        for pnum, slice_ in enumerate(slices):
            shape = slice_.shape.as_list()
            if 0 in shape:
                with tf.device(mesh_impl.devices[pnum]):
                    slices[pnum] = opaque(zeros(shape, slice_.dtype))

    def verify_slice_shapes(self, tensor: mtf.Tensor, laid_out_tensor: Slices) -> None:
        """Check every processor's slice, not only the first."""
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


def _slices(laid_out_tensor: Slices) -> list[tf.Tensor]:
    """Return each processor's slice of a tensor, or of the addends of a sum."""
    if isinstance(laid_out_tensor, mtf.LazyAllreduceSum):
        return laid_out_tensor.laid_out_input.tensor_list
    return laid_out_tensor.to_laid_out_tensor().tensor_list


def _check_shapes(operations: Iterable[mtf.Operation], layouts: Mapping[mtf.Mesh, Layout]) -> None:
    """Raise ValueError where a layout cannot split a tensor of the graph."""
    for op in operations:
        for tensor in op.outputs:
            try:
                layouts[op.mesh].check(tensor.shape)
            except ValueError as error:
                raise ValueError(f"{type(op).__name__} {op.name!r}: {error}") from error


def _warn_about_replicated(operations: Iterable[mtf.Operation], layouts: Mapping[mtf.Mesh, Layout]) -> None:
    replicated_dims = {
        (dim, axis, layout)
        for op in operations
        for layout in [layouts[op.mesh]]
        for tensor in op.outputs
        for dim in tensor.shape.dims
        if layout.is_kept_whole(dim) and (axis := layout.axis_name_of(dim.name)) is not None
    }
    for dim, axis, layout in sorted(replicated_dims, key=lambda item: tuple(item[0])):
        tf.logging.warning(
            "dimension %r of size %d is replicated on the %d processors of mesh axis %r: it is too small to give each "
            "processor one unit",
            dim.name,
            dim.size,
            dict(layout.mesh_shape)[axis],
            axis,
        )


def _check_names(operations: Iterable[mtf.Operation], layouts: Mapping[mtf.Mesh, Layout]) -> None:
    """Raise ValueError for dimensions or sizes that the graph lacks; warn of rules without effect."""
    of_mesh: dict[mtf.Mesh, list[mtf.Operation]] = {}
    for op in operations:
        of_mesh.setdefault(op.mesh, []).append(op)
    for mesh, its_operations in of_mesh.items():
        layout, extents = layouts[mesh], dimension_sizes(its_operations)
        _check_sizes_occur(layout, extents)
        if idle := names.check_shared(layout, extents):
            tf.logging.warning(
                "layout rules %s have no effect: no tensor of the graph has the dimension, or mesh %s has no such axis",
                ";".join(idle),
                layout.mesh_text,
            )


def _check_sizes_occur(layout: Layout, extents: Mapping[str, Collection[int]]) -> None:
    for dim, sizes in layout.sizes:
        dim_sizes = extents.get(dim, ())
        if sum(sizes) not in dim_sizes:
            where = f"has size {' or '.join(map(str, sorted(dim_sizes)))}" if dim_sizes else "does not occur"
            there = "" if dim_sizes else f"; the dimensions are {listing(dim, extents)}"
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(sizes)}, {sum(sizes)} in all, but the dimension {where} in the "
                f"graph; give sizes that add up to the size of the dimension{there}"
            )
