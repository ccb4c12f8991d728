"""The variables of an uneven mesh: slices only, no master copy, saved as one logical tensor.

Mesh-TensorFlow makes a full "master" of each variable when the graph is built. It is never initialised here: each
slice's initial value is made on its own device (`variables.initial`), or, where that cannot be, cut out of the
master's, and the master leaves every collection. Of the processors that hold the same slice, the first has the primary
and the others replicas.

* A primary is a global variable with TensorFlow's slice information. So any `tf.train.Saver` writes the primaries of
  one variable as one tensor under the variable's name, and reads each slice from such a tensor, saved on any layout.
* A replica is a local variable, set by its primary's initializer. `tf.local_variables_initializer()`, which a
  MonitoredTrainingSession runs after every initialization and restore, updates it. So does
  `lowering.copy_masters_to_slices()`. A program may run all of these in one call of a session, and in any order.
* The slots of a device share its variables. A processor whose slice is empty has no variable, and one that takes no
  part in what reads a variable uses that of the first one that does.

The variables that an optimizer makes have the dimensions of the weights, and are sliced like them.

A variable that its program keeps out of the global variables is not saved and has no replicas: every slice starts from
the initial value.

A program that feeds initial values feeds those of the slices, which `initial_value_feed` finds. A master's may be fed
where no slice was made without it; elsewhere TensorFlow refuses it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import parallel
from mtf_hetero._support.ops import attribute, create, cut, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import find_users, plan_window, slice_box
from mtf_hetero.mesh import replicas
from mtf_hetero.mesh.collectives import join
from mtf_hetero.mesh.creating import new_variable
from mtf_hetero.mesh.initial import InitialValue
from mtf_hetero.mesh.saving import save_in
from mtf_hetero.mesh.tensors import LaidOutTensor

_FIRST = "_mtf_hetero_slices"  # of a master: the slices that the first lowering made of it


def initial_value_feed(values: Mapping[str, np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
    """Return what to feed to `tf.global_variables_initializer()` so that variables start from arrays, on any layout.

    Args:
      values: {name of a variable: array of its shape}; a variable that is not named starts as it would.

    Returns:
      {tf.Tensor: array}, an entry for each slice.

    Raises:
      ValueError: a name that no global variable has, or an array of another shape.

    Example:
      session.run(tf.global_variables_initializer(), initial_value_feed({"dense/kernel": kernel}))
    """
    feed, present = {}, set()
    for variable in tf.global_variables():
        info = variable._save_slice_info
        name = info.full_name if info else variable.op.name
        if name not in values:
            continue
        present.add(name)
        shape = list(info.full_shape) if info else variable.shape.as_list()
        if list(np.shape(values[name])) != shape:
            raise ValueError(
                f"the initial value of {name!r} has shape {list(np.shape(values[name]))}; give the shape "
                f"of the variable, {shape}"
            )
        box = tuple(slice(b, b + s) for b, s in zip(info.var_offset, info.var_shape, strict=True)) if info else ...
        feed[variable.initial_value] = values[name][box]
    if missing := sorted(set(values) - present):
        raise ValueError(
            f"the graph has no global variable {missing[0]!r}; give the name of a variable, not of a slice"
        )
    return feed


def _take_out_of_collections(variable: tf.Variable) -> list[str]:
    """Remove a variable from all collections of its graph; return their names. Eagerly there are none."""
    keys: list[str] = []
    if tf.executing_eagerly():
        return keys
    for key in variable.graph.get_all_collection_keys():
        collection = variable.graph.get_collection_ref(key)
        others = [item for item in collection if item is not variable]
        if len(others) < len(collection):
            collection[:] = others
            keys.append(key)
    return keys


class _SaveSliceInfo(tf.Variable.SaveSliceInfo):
    """TensorFlow's slice information, which cannot express a scalar. A slice that is the whole is saved as one."""

    @property
    def spec(self) -> str:
        return "" if self.var_shape == self.full_shape else super().spec


def _first_read(slice_: tf.Variable) -> tf.Tensor:
    """Return the read that was made with a variable; eagerly, a new one."""
    return slice_.value() if tf.executing_eagerly() else slice_.graph.as_graph_element(slice_)


class _MeshImpl(Protocol):
    """An UnevenMeshImpl, as far as its variables use it."""

    layout: Layout

    @property
    def devices(self) -> list[str]: ...


class SlicedVariable:
    """One variable of the model: a primary or a replica on every processor.

    Where it was lowered before, that lowering's primaries stay what is saved. A second one on the same devices that
    divides it in the same way has the same slices; on others it has replicas, in slices of its own.

    Args:
      master: the tf.Variable that mtf made for it.
      shape: its mtf.Shape.
      holders: the processors that hold it, as far as they have different slices of it; None: all.
    """

    def __init__(
        self,
        variable: mtf.Variable,
        master: tf.Variable,
        mesh_impl: _MeshImpl,
        shape: mtf.Shape,
        holders: Collection[int] | None = None,
    ) -> None:
        self._devices, self._layout, self._dims = list(mesh_impl.devices), mesh_impl.layout, shape.dims
        processors = range(len(self._devices))
        # Where each processor's slice begins, and its shape
        self._boxes = [
            (tuple(self._layout.slice_begin(shape.dims, pnum)), tuple(self._layout.slice_shape(shape.dims, pnum)))
            for pnum in processors
        ]
        # The processor whose variable each one uses; None: its slice is empty. In an empty variable, all slices are
        self._users = self._find_users(processors if holders is None else holders, is_empty=shape.size == 0)
        self._dtype = variable.slice_dtype
        self._name = master.name.split(":")[0]
        self._copies: list[tf.Operation] = []
        self._primaries: list[tf.Variable] = []  # that start from the initial value by themselves
        self._sources: dict[tuple[int, ...], tf.Variable] = {}  # by where they begin, one of each box
        self.made: dict[int, tf.Variable] = {}  # by processor
        self._first: SlicedVariable | None = getattr(master, _FIRST, None)
        if self._first is None:
            self._make(master)
            setattr(master, _FIRST, self)
        elif (self._devices, self._boxes) == (self._first._devices, self._first._boxes):
            # Another step of the same model, of a smaller batch for instance: who holds the variable stays
            self.made, self._users = self._first.made, self._first._users
            self._copies, self._first = self._first._copies, None
            return
        else:
            self._make_beside(self._first)
        primaries = (self._first or self)._primaries
        if primaries and not tf.executing_eagerly():  # a program may initialize the master, which it knows
            initializers = list(dict.fromkeys(primary.initializer for primary in primaries))
            master._initializer_op = replicas.wait_for(initializers, self._devices[0])

    def _find_users(self, holders: Iterable[int], *, is_empty: bool) -> list[int | None]:
        """Return the processor whose variable each one uses: on its own device if that holds it, else the first."""
        having = {pnum for pnum, (_, size) in enumerate(self._boxes) if is_empty or 0 not in size}
        users = find_users(self._boxes, self._devices, having.intersection(holders))
        return [user if pnum in having else None for pnum, user in enumerate(users)]

    def _make(self, master: tf.Variable) -> None:
        """Make a primary for each box, and replicas of it for the other processors that hold the box."""
        collections = _take_out_of_collections(master)
        is_saved = tf.GraphKeys.GLOBAL_VARIABLES in collections
        value = master.read_value() if tf.executing_eagerly() else master.initial_value
        places: dict[tuple[int, ...], tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
        for pnum in self._makers:
            begin, size = self._boxes[pnum]
            places.setdefault(begin, (self._devices[pnum], begin, size))
        initial = InitialValue(value, self._dtype, places.values())
        reads: dict[tuple[int, ...], replicas.Reads] = {}
        following: dict[tuple[int, ...], list[tf.Variable]] = {}
        for pnum in self._makers:
            (place, size), device = self._boxes[pnum], self._devices[pnum]
            source = self._sources.get(place)
            if is_saved and source is not None:
                if place not in reads:
                    reads[place] = replicas.Reads([source])
                slice_ = self._add(pnum, lambda read=reads[place].of, source=source: read(source))
                following.setdefault(place, []).append(slice_)
            else:
                slice_ = self._add(pnum, lambda b=place, s=size, d=device: initial.part(b, s, d), collections)
                self._sources.setdefault(place, slice_)
                self._primaries.append(slice_)
            slice_._set_save_slice_info(_SaveSliceInfo(self._name, master.shape.as_list(), list(place), list(size)))
            if slice_ is self._sources.get(place) and is_saved:
                save_in(slice_, master.dtype.base_dtype)
        for place, copies in following.items():
            values = [self._sources[place].initial_value] * len(copies)
            self._copies.append(replicas.link([self._sources[place]], copies, values, reads[place]))

    @property
    def _makers(self) -> list[int]:
        """The processors that have a variable of their own, in their order."""
        return sorted({pnum for pnum in self._users if pnum is not None})

    def _make_beside(self, first: "SlicedVariable") -> None:
        """Make replicas, in slices of this layout, of what another lowering made."""
        sources = list(first._sources.values())
        reads = replicas.Reads(sources)
        values = []
        for pnum in self._makers:
            self._add(pnum, lambda pnum=pnum: first._box(self._layout, pnum, reads.of))
            with tf.device(self._devices[pnum]):
                values.append(first._box(self._layout, pnum, lambda source: source.initial_value))
        self._copies.append(replicas.link(sources, list(self.made.values()), values, reads))

    def _add(
        self, pnum: int, initial_value: Callable[[], tf.Tensor], collections: Sequence[str] | None = None
    ) -> tf.Variable:
        """Make a processor's slice: a replica, unless there are collections that it goes to."""
        with tf.device(self._devices[pnum]), tf.name_scope(f"{self._name}/"):
            keys = [tf.GraphKeys.LOCAL_VARIABLES] if collections is None else collections
            self.made[pnum] = new_variable(initial_value(), f"processor_{pnum}", keys)
        return self.made[pnum]

    def read(self, read: Callable[[tf.Variable], tf.Tensor]) -> list[tf.Tensor]:
        """Read each processor's slice; a variable that several use is read once."""
        values = {pnum: read(slice_) for pnum, slice_ in self.made.items()}
        slices = []
        for pnum, user in enumerate(self._users):
            with tf.device(self._devices[pnum]):
                slices.append(zeros(self._boxes[pnum][1], self._dtype) if user is None else values[user])
        return slices

    def _box(self, layout: Layout, pnum: int, read: Callable[[tf.Variable], tf.Tensor] | None = None) -> tf.Tensor:
        """Return the slice of a processor of another layout, put together from the slices of this one.

        Args:
          layout: the other layout.
          pnum: the processor.
          read: reads a source; None: read the slices themselves, as they are now.
        """
        window = plan_window(self._layout, self._dims, slice_box(layout, self._dims, pnum), 0)
        if not window.pieces:
            return zeros(window.size, self._dtype)
        pieces = []
        for piece in window.pieces:
            with tf.device(self._devices[piece.source]):
                if read is None:
                    value = self.made[self._users[piece.source] or 0].value()
                else:
                    value = read(self._sources[self._boxes[piece.source][0]])
                pieces.append(cut(value, piece.begin, piece.size))
        return join(pieces, window.grid)

    @property
    def copies(self) -> list[tf.Operation]:
        """Operations that set each replica to its primary, as far as that has a value."""
        return list(self._copies)

    def copy_back(self) -> list[tf.Operation]:
        """Operations that set the slices of the lowering before to these, where it has slices of its own."""
        copies = []
        if self._first is not None:
            for pnum, slice_ in self._first.made.items():
                with tf.device(self._first._devices[pnum]):
                    copies.append(slice_.assign(self._box(self._first._layout, pnum)).op)
        return copies


def _assign(
    assign_fn: Callable[..., tf.Operation],
    variable: mtf.Variable,
    slice_: tf.Variable,
    value: tf.Tensor,
    read: tf.Tensor,
) -> tf.Operation:
    """Assign by one operation where mtf's own functions read the slice before and after.

    It comes after a read. tf.control_dependencies would give the read an attribute, and TensorFlow warn where a session
    has run it already, as that of another lowering.
    """
    own = {
        mtf.ops.assign_slice: "AssignVariableOp",
        mtf.ops.assign_add_slice: "AssignAddVariableOp",
        mtf.ops.assign_sub_slice: "AssignSubVariableOp",
    }
    if assign_fn not in own or tf.executing_eagerly():
        with tf.control_dependencies([read]):
            return assign_fn(variable, slice_, value)
    kind, dtype = own[assign_fn], variable.slice_dtype
    assign = create(kind, [slice_.handle, tf.cast(value, dtype)], [], kind, {"dtype": attribute(dtype)})
    assign._add_control_input(read.op)
    return assign


def _after(operations: Sequence[tf.Operation]) -> tf.Operation:
    """Return an operation that does nothing, after others. tf.group makes one for each device."""
    with tf.control_dependencies(operations):
        return tf.no_op() if tf.executing_eagerly() else create("NoOp", [], [], "NoOp", {})


class LaidOutVariable:
    """A variable as mtf's lowering uses it: mtf.MeshImpl.LaidOutVariable's interface.

    An mtf.StackedVariable, which stands for several variables of one shape, is a stack of theirs, so that each keeps
    its own name in the checkpoint.
    """

    def __init__(self, variable: mtf.Variable, mesh_impl: _MeshImpl, holders: Collection[int] | None = None) -> None:
        self._variable, self._devices = variable, mesh_impl.devices
        shape, masters = variable.shape, [variable.get_master()]
        self._stacked = isinstance(variable, mtf.StackedVariable)
        if isinstance(variable, mtf.StackedVariable):
            shape, masters = mtf.Shape(shape.dims[1:]), variable._masters
        self._members = [SlicedVariable(variable, master, mesh_impl, shape, holders) for master in masters]
        self.value = self._read(_first_read)
        self._copy_back: tf.Operation | None = None

    @property
    def laid_out_tensor(self) -> LaidOutTensor:
        """A fresh read of every slice; `value` is the read made when the variable was lowered."""
        return self._read(lambda slice_: slice_.value())

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> LaidOutTensor:
        reads = [member.read(read) for member in self._members]
        if not self._stacked:
            return LaidOutTensor(reads[0])
        return LaidOutTensor(parallel(self._devices, lambda *slices: tf.stack(slices), *reads))

    def assign_to_slices(
        self, assign_fn: Callable[[mtf.Variable, tf.Variable, tf.Tensor], tf.Operation], values: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Assign each processor that holds a slice its value, once it has read the slice.

        Args:
          assign_fn: from (mtf.Variable, tf.Variable, tf.Tensor) to a tf.Operation, mtf.assign_slice for instance.
          values: one tf.Tensor per processor.
        """
        ops = []
        for number, member in enumerate(self._members):
            for pnum, slice_ in member.made.items():
                with tf.device(self._devices[pnum]):
                    value = tf.unstack(values[pnum])[number] if self._stacked else values[pnum]
                    ops.append(_assign(assign_fn, self._variable, slice_, value, self.value.tensor_list[pnum]))
        return ops[0] if len(ops) == 1 else _after(ops)

    @property
    def copy_master_to_slices(self) -> tf.Operation:
        """Update the replicas after the primaries were initialized or restored."""
        return _after([copy for member in self._members for copy in member.copies])

    @property
    def copy_slices_to_master(self) -> tf.Operation:
        """Update the saved slices, if those are of an earlier lowering by another layout."""
        if self._copy_back is None:
            self._copy_back = tf.group([copy for member in self._members for copy in member.copy_back()])
        return self._copy_back
