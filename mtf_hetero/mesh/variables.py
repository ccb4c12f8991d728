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
* An empty slice has nothing to save or to restore. It is a local variable, set with the first primary.

The variables that an optimizer makes have the dimensions of the weights, and are sliced like them.

A variable that its program keeps out of the global variables is not saved and has no replicas: every slice starts from
the initial value.

A program that feeds initial values feeds those of the slices, which `initial_value_feed` finds. A master's may be fed
where no slice was made without it; elsewhere TensorFlow refuses it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mtf_hetero._compat import mtf, tf, wrap_variable
from mtf_hetero._support.ops import attribute, create, cut, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import plan_window, slice_box
from mtf_hetero.mesh import replicas
from mtf_hetero.mesh.collectives import join
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


def _new_variable(initial_value: tf.Tensor, name: str, collections: Sequence[str]) -> tf.Variable:
    """Make a variable that is not trainable, on the current device; outside functions and loops, as tf.Variable does.

    tf.Variable takes five times as long.
    """
    if tf.executing_eagerly():
        return tf.Variable(initial_value, trainable=False, name=name, use_resource=True)
    graph, dtype, shape = tf.get_default_graph(), initial_value.dtype, initial_value.shape
    is_within = graph.building_function or graph._get_control_flow_context() is not None
    with tf.init_scope() if is_within else tf.control_dependencies(None):
        name = tf.get_default_graph().unique_name(name)
        kind = {"dtype": attribute(dtype)}
        form = {**kind, "shape": attribute(shape), "shared_name": attribute(name)}
        (handle,) = create("VarHandleOp", [], [tf.resource], f"{name}/", form).outputs
        assign = create("AssignVariableOp", [handle, initial_value], [], f"{name}/Assign/", kind)
        (read,) = create("ReadVariableOp", [handle], [dtype], f"{name}/Read/ReadVariableOp/", kind).outputs
    variable = wrap_variable(
        variable_name=handle.name,
        initial_value_name=initial_value.name,
        initializer_name=assign.name,
        snapshot_name=read.name,
        is_resource=True,
        trainable=False,
    )
    graph.add_to_collections(collections, variable)
    return variable


def get_variable(mesh: mtf.Mesh, name: str, shape: mtf.Shape, **options: Any) -> mtf.Tensor:
    """Call mtf.get_variable in a third of its time, for a master that no session checks for initialization.

    Args:
      mesh: mtf.Mesh.
      name: the variable's.
      shape: its mtf.Shape.
      **options: as of mtf.get_variable; the initializer returns a tf.Tensor.
    """
    with tf.variable_creator_scope(create_master):
        return mtf.get_variable(mesh, name, shape, **options)


def create_master(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Create a variable of the fewest operations, for tf.variable_creator_scope; its initializer makes a tf.Tensor."""
    if tf.executing_eagerly() or options.get("variable_def") is not None:  # of operations that are there
        return next_creator(**options)
    name = options["name"]
    with tf.name_scope(f"{name}/Initializer/"):
        initial_value = options["initial_value"]()
    collections = [tf.GraphKeys.GLOBAL_VARIABLES, *([tf.GraphKeys.TRAINABLE_VARIABLES] if options["trainable"] else [])]
    return _new_variable(initial_value, name, options.get("collections") or collections)


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
    """

    def __init__(self, variable: mtf.Variable, master: tf.Variable, mesh_impl: _MeshImpl, shape: mtf.Shape) -> None:
        self._devices, self._layout, self._dims = list(mesh_impl.devices), mesh_impl.layout, shape.dims
        self._dtype = variable.slice_dtype
        self._name = master.name.split(":")[0]
        self._copies: list[tf.Operation] = []
        self._primaries: list[tf.Variable] = []  # that start from the initial value by themselves
        self._sources: dict[tuple[int, ...], tf.Variable] = {}  # by where they begin, one of each box
        self.slices: list[tf.Variable] = []
        self._first: SlicedVariable | None = getattr(master, _FIRST, None)
        if self._first is None:
            self._make(master)
            setattr(master, _FIRST, self)
        elif (self._devices, self._boxes) == (self._first._devices, self._first._boxes):
            self.slices, self._copies, self._first = self._first.slices, self._first._copies, None
            return
        else:
            self._make_beside(self._first)
        primaries = (self._first or self)._primaries
        if primaries and not tf.executing_eagerly():  # a program may initialize the master, which it knows
            initializers = list(dict.fromkeys(primary.initializer for primary in primaries))
            master._initializer_op = replicas.wait_for(initializers, self._devices[0])

    def _make(self, master: tf.Variable) -> None:
        """Make a primary for each box, and replicas of it for the other processors that have the box."""
        collections = _take_out_of_collections(master)
        is_saved = tf.GraphKeys.GLOBAL_VARIABLES in collections
        value = master.read_value() if tf.executing_eagerly() else master.initial_value
        boxes = self._boxes
        is_empty = 0 in master.shape.as_list()  # then the empty slices are primaries and replicas as others are
        places: dict[tuple[int, ...], tuple[str, list[int], list[int]]] = {}
        for device, (begin, size) in zip(self._devices, boxes, strict=True):
            if is_empty or 0 not in size:
                places.setdefault(tuple(begin), (device, begin, size))
        initial = InitialValue(value, self._dtype, places.values())
        reads: dict[tuple[int, ...], replicas.Reads] = {}
        following: dict[tuple[int, ...], list[tf.Variable]] = {}
        empty: list[tf.Variable] = []
        for pnum, (device, (begin, size)) in enumerate(zip(self._devices, boxes, strict=True)):
            place, source = tuple(begin), self._sources.get(tuple(begin))
            if 0 in size and not is_empty:
                slice_ = self._add(pnum, lambda s=size: zeros(s, self._dtype), None if is_saved else collections)
                empty += [slice_] if is_saved else []
            elif is_saved and source is not None:
                if place not in reads:
                    reads[place] = replicas.Reads([source])
                slice_ = self._add(pnum, lambda read=reads[place].of, source=source: read(source))
                following.setdefault(place, []).append(slice_)
            else:
                slice_ = self._add(pnum, lambda b=begin, s=size, d=device: initial.part(b, s, d), collections)
                self._sources.setdefault(place, slice_)
                self._primaries.append(slice_)
            slice_._set_save_slice_info(_SaveSliceInfo(self._name, master.shape.as_list(), begin, size))
            if slice_ is self._sources.get(place) and is_saved:
                save_in(slice_, master.dtype.base_dtype)
        for place, copies in following.items():
            values = [self._sources[place].initial_value] * len(copies)
            self._copies.append(replicas.link([self._sources[place]], copies, values, reads[place]))
        if empty:
            self._copies += [slice_.initializer for slice_ in empty]
            replicas.set_with(self._primaries[0], empty)

    def _make_beside(self, first: "SlicedVariable") -> None:
        """Make replicas, in slices of this layout, of what another lowering made."""
        sources = list(first._sources.values())
        reads = replicas.Reads(sources)
        for pnum in range(len(self._devices)):
            self._add(pnum, lambda pnum=pnum: first._box(self._layout, pnum, reads.of))
        values = []
        for pnum, device in enumerate(self._devices):
            with tf.device(device):
                values.append(first._box(self._layout, pnum, lambda source: source.initial_value))
        self._copies.append(replicas.link(sources, self.slices, values, reads))

    @property
    def _boxes(self) -> list[tuple[list[int], list[int]]]:
        """Return where each processor's slice begins, and its shape."""
        return [
            (self._layout.slice_begin(self._dims, pnum), self._layout.slice_shape(self._dims, pnum))
            for pnum in range(len(self._devices))
        ]

    def _add(
        self, pnum: int, initial_value: Callable[[], tf.Tensor], collections: Sequence[str] | None = None
    ) -> tf.Variable:
        """Make a processor's slice: a replica, or an empty one, unless there are collections that it goes to."""
        with tf.device(self._devices[pnum]), tf.name_scope(f"{self._name}/"):
            keys = [tf.GraphKeys.LOCAL_VARIABLES] if collections is None else collections
            slice_ = _new_variable(initial_value(), f"processor_{pnum}", keys)
        self.slices.append(slice_)
        return slice_

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
                    value = self.slices[piece.source].value()
                else:
                    value = read(self._sources[tuple(self._layout.slice_begin(self._dims, piece.source))])
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
            for pnum, (device, slice_) in enumerate(zip(self._first._devices, self._first.slices, strict=True)):
                with tf.device(device):
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

    def __init__(self, variable: mtf.Variable, mesh_impl: _MeshImpl) -> None:
        self._variable, self._devices = variable, mesh_impl.devices
        shape, masters = variable.shape, [variable.get_master()]
        self._stacked = isinstance(variable, mtf.StackedVariable)
        if isinstance(variable, mtf.StackedVariable):
            shape, masters = mtf.Shape(shape.dims[1:]), variable._masters
        self._members = [SlicedVariable(variable, master, mesh_impl, shape) for master in masters]
        self.value = self._read(_first_read)
        self._copy_back: tf.Operation | None = None

    @property
    def laid_out_tensor(self) -> LaidOutTensor:
        """A fresh read of every slice; `value` is the read made when the variable was lowered."""
        return self._read(lambda slice_: slice_.value())

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> LaidOutTensor:
        if not self._stacked:
            (member,) = self._members
            return LaidOutTensor([read(slice_) for slice_ in member.slices])
        reads = mtf.parallel(
            self._devices,
            lambda *slices: tf.stack([read(slice_) for slice_ in slices]),
            *[member.slices for member in self._members],
        )
        return LaidOutTensor(reads)

    def assign_to_slices(
        self, assign_fn: Callable[[mtf.Variable, tf.Variable, tf.Tensor], tf.Operation], values: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Assign one value per processor, once every processor has read the variable.

        Args:
          assign_fn: from (mtf.Variable, tf.Variable, tf.Tensor) to a tf.Operation, mtf.assign_slice for instance.
          values: one tf.Tensor per processor.
        """
        ops = []
        for pnum, (device, value) in enumerate(zip(self._devices, values, strict=True)):
            with tf.device(device):
                parts = tf.unstack(value) if self._stacked else [value]
                ops += [
                    _assign(assign_fn, self._variable, member.slices[pnum], part, self.value.tensor_list[pnum])
                    for member, part in zip(self._members, parts, strict=True)
                ]
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
