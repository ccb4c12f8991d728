"""UnevenMeshImpl: mtf's PlacementMeshImpl, with slices in proportion to what each device can do."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, overload

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import Processor, parallel
from mtf_hetero._support.ops import constant, cut, identity, reshape
from mtf_hetero.layout import Layout, UnevenShapeError
from mtf_hetero.layout.blocks import Move
from mtf_hetero.layout.convert import MeshShapeLike, RulesLike, WeightsLike
from mtf_hetero.mesh import collectives, random_numbers, variables
from mtf_hetero.mesh.tensors import LaidOutTensor, LazySum, Slices


class _Rules(mtf.LayoutRules):
    """The rules of a Layout, as mtf asks for them."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.rules)
        self._layout = layout

    def tensor_dimension_to_mesh_axis(self, tensor_dimension: mtf.Dimension, mesh_shape: mtf.Shape) -> int | None:
        """Ask the Layout, which keeps a dimension whole that is too small for its axis."""
        return self._layout.axis_of(tensor_dimension)


_Base = mtf.placement_mesh_impl.PlacementMeshImpl


class UnevenMeshImpl(_Base):
    """A mesh of explicitly placed processors whose slices need not be equal.

    Args:
      shape: mesh axes and their sizes, "all:3" or an mtf.Shape.
      layout: which tensor dimension is split over which mesh axis, "filters:all" or an mtf.LayoutRules.
      devices: one TensorFlow device per processor, the last mesh axis varying fastest. One that is named several times
        has as many slots, as of a Layout: its processors share their variables, and compute in turn.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      sizes: {tensor dimension: exact size of each slice, which may be zero}; wins over the shares.
      wire_dtype: a type, tf.bfloat16 for instance, to which floating-point numbers are rounded where they are sent from
        one device's memory to another's: half the bytes, and results that depend on the layout. None: nothing is.
      slots: {mesh axis: number of slots of each device along the axis}, where `devices` names each device once.

    Raises:
      ValueError: a share, size or device count that does not fit the mesh, or a wire_dtype that is no floating type.

    Example:
      mesh_impl = UnevenMeshImpl("all:3", "filters:all", ["gpu:0", "gpu:1", "cpu:0"], shares={"all": [70, 25, 5]})
      lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
    """

    LaidOutTensor = LaidOutTensor
    LaidOutVariable: type[variables.LaidOutVariable] = variables.LaidOutVariable

    def __init__(
        self,
        shape: MeshShapeLike,
        layout: RulesLike,
        devices: Sequence[str],
        shares: WeightsLike[float] | None = None,
        sizes: WeightsLike[int] | None = None,
        wire_dtype: tf.DType | None = None,
        slots: WeightsLike[int] | None = None,
    ) -> None:
        self.layout = Layout(shape, layout, shares, sizes, slots)
        if isinstance(devices, str) or len(devices) != self.layout.device_count:
            what = f"{self.layout.size} processors"
            if slots:
                what += f", slots of {self.layout.device_count} devices"
            raise ValueError(
                f"devices are {devices!r}, but the mesh {self.layout.mesh_text} has {what}; give one device per "
                f"{'processor, or per group of its slots' if slots else 'processor'}"
            )
        self.wire_dtype = None if wire_dtype is None else tf.as_dtype(wire_dtype)
        if self.wire_dtype is not None and not self.wire_dtype.is_floating:
            raise ValueError(
                f"wire_dtype is {wire_dtype!r}; it must be a floating-point type such as tf.bfloat16, or None"
            )
        of_processors = [devices[place] for place in self.layout.places]
        super().__init__(mtf.Shape(self.layout.mesh_shape), _Rules(self.layout), of_processors)

    @classmethod
    def from_layout(
        cls, layout: Layout, devices: Sequence[str], wire_dtype: tf.DType | None = None
    ) -> "UnevenMeshImpl":
        """Return an implementation of the mesh that `layout` describes."""
        shares, sizes, slots = dict(layout.shares), dict(layout.sizes), dict(layout.slots)
        return cls(layout.mesh_shape, layout.rules, devices, shares, sizes, wire_dtype, slots)

    def tensor_layout(self, arg: mtf.Tensor | mtf.Shape) -> mtf.TensorLayout:
        shape = arg.shape if isinstance(arg, mtf.Tensor) else arg
        self.layout.check(shape)
        return super().tensor_layout(shape)

    def slice_shape(self, tensor_shape: mtf.Shape, pnum: int | None = None) -> list[int]:
        """Shape of processor `pnum`'s slice of a tensor; without `pnum`, the shape that all slices have.

        Raises:
          UnevenShapeError: no `pnum`, and the slices differ.
        """
        return self.layout.slice_shape(tensor_shape, pnum)

    def slice_begin(self, tensor_shape: mtf.Shape, pnum: int) -> list[int]:
        """Return the index at which processor `pnum`'s slice of a tensor begins."""
        return self.layout.slice_begin(tensor_shape, pnum)

    def slice_size(self, tensor_shape: mtf.Shape) -> int:
        """Return the number of elements of the largest slice."""
        return max(mtf.list_product(self.slice_shape(tensor_shape, pnum)) for pnum in range(self.size))

    def laid_out_size(self, tensor_shape: mtf.Shape) -> int:
        """Return the number of elements of all slices together."""
        return sum(mtf.list_product(self.slice_shape(tensor_shape, pnum)) for pnum in range(self.size))

    @overload
    def slicewise(self, fn: Callable[..., tuple[tf.Tensor, ...]], *inputs: object) -> tuple[LaidOutTensor, ...]: ...

    @overload
    def slicewise(self, fn: Callable[..., tf.Tensor], *inputs: object) -> LaidOutTensor: ...

    def slicewise(
        self, fn: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]], *inputs: object
    ) -> LaidOutTensor | tuple[LaidOutTensor, ...]:
        """Apply a function to all slices; it is called once for processors whose slices are alike."""
        laid_out = super().LaidOutTensor
        tensors = [
            x.tensor_list if isinstance(x, laid_out) else [x] * self.size
            for x in mtf.convert_args_to_laid_out_tensors(inputs)
        ]
        results = parallel(self.devices, fn, *tensors)
        several = [result for result in results if isinstance(result, tuple)]
        if several:
            return tuple(LaidOutTensor(list(slices)) for slices in zip(*several, strict=True))
        return LaidOutTensor([result for result in results if not isinstance(result, tuple)])

    def processors(
        self, tensor_shape: mtf.Shape, kind_of: Callable[[int], Hashable] = lambda pnum: None
    ) -> LaidOutTensor:
        """Return the processors' numbers, for a function that `slicewise` calls once for a processor of one kind.

        Args:
          tensor_shape: of the function's result; processors of one kind have slices of the same shape.
          kind_of: from the number of a processor to all else that decides what the function makes of it, to compare.
        """
        kinds = [(*self.slice_shape(tensor_shape, pnum), kind_of(pnum)) for pnum in range(self.size)]
        return LaidOutTensor([Processor(pnum, kind) for pnum, kind in enumerate(kinds)])

    def slicewise_delay_allreduce(self, fn: Callable[..., tf.Tensor], *inputs: Slices) -> Slices:
        """Apply a function as mtf does. A processor that is absent from all sums is absent from the result."""
        if not mtf.ops.compatible_lazy_allreduce_sums(inputs):
            return self.slicewise(fn, *inputs)
        addends = [x.laid_out_input for x in inputs]
        absent = [x.absent if isinstance(x, LaidOutTensor) else frozenset() for x in addends]
        slices = self.slicewise(fn, *addends).tensor_list
        common = LaidOutTensor(slices, frozenset.intersection(*absent))
        return LazySum(self, common, inputs[0].mesh_axes, inputs[0].add_counter_fn)

    def allreduce(self, x: Slices, mesh_axes: Sequence[int], reduction_fn_string: str) -> LaidOutTensor:
        """Reduce over some mesh axes, for every processor; one that is absent from a sum sends nothing to it."""
        laid_out = x.to_laid_out_tensor()
        if not mesh_axes:
            return laid_out
        shares = self.layout.weights_within(mesh_axes)
        absent = laid_out.absent if reduction_fn_string == "SUM" else frozenset()
        results = list(laid_out.tensor_list)
        known: dict[tuple[object, ...], list[tf.Tensor]] = {}  # groups of slots of the same devices have the same sums
        for group in mtf.processor_groups(self.shape, mesh_axes):
            xs, devices = [laid_out.tensor_list[pnum] for pnum in group], [self.devices[pnum] for pnum in group]
            key = *map(id, xs), *devices
            if key not in known:
                known[key] = collectives.allreduce(
                    xs,
                    devices,
                    reduction_fn_string,
                    shares=shares,
                    wire_dtype=self.wire_dtype,
                    absent=collectives.absent_within(absent, group),
                )
            for pnum, y in zip(group, known[key], strict=True):
                results[pnum] = y
        return LaidOutTensor(results)

    def join(
        self,
        x: LaidOutTensor,
        mesh_axes: Sequence[int],
        function: Callable[[Sequence[int], Sequence[tf.Tensor]], tf.Tensor],
    ) -> LaidOutTensor:
        """Apply a function to all slices over some mesh axes, and give every processor the same bits.

        Two devices send each other their slices, and both compute it. Of more, the first computes it for all of them,
        with the fewest messages. An absent one has the tensor of the first that is present, as in `allreduce`.

        Args:
          x: a LaidOutTensor.
          mesh_axes: indices of mesh axes.
          function: from the numbers of the processors that are not absent, and their slices, to one tensor.
        """
        results: list[tf.Tensor] = list(x.tensor_list)
        for group in mtf.processor_groups(self.shape, mesh_axes):
            present = collectives.present_processors(group, x.absent)
            using = list(collectives.group_by_device(self.devices, present))
            slices, joint = [x.tensor_list[pnum] for pnum in present], {}
            elements, item_bytes = slices[0].shape.num_elements(), slices[0].dtype.size
            in_memory = collectives.share_memory(using)
            way = collectives.way_to_reduce(elements, item_bytes, len(using), in_memory=in_memory)
            for device in using:
                with tf.device(device):
                    if joint and way is not collectives.Way.EXCHANGE:
                        joint[device] = identity(joint[using[0]])
                    else:
                        joint[device] = function(present, slices)
            for pnum in group:
                results[pnum] = joint.get(self.devices[pnum], joint[using[0]])
        return LaidOutTensor(results)

    def reduce_scatter(
        self, x: LaidOutTensor, mesh_axes: Sequence[int], moves: Sequence[Move | None]
    ) -> Iterator[tuple[int, tf.Tensor | None]]:
        """Give every processor its part of a sum over some mesh axes.

        Args:
          x: a LaidOutTensor, the addends.
          mesh_axes: indices of mesh axes.
          moves: of each processor, as in `collectives.reduce_scatter`.

        Yields:
          The number of each processor, and its tensor or None.
        """
        for group in mtf.processor_groups(self.shape, mesh_axes):
            parts = collectives.reduce_scatter(
                [x.tensor_list[pnum] for pnum in group],
                [self.devices[pnum] for pnum in group],
                [moves[pnum] for pnum in group],
                wire_dtype=self.wire_dtype,
                absent=collectives.absent_within(x.absent, group),
            )
            yield from zip(group, parts, strict=True)

    def _check_even(self, mesh_axis: int, operation: str) -> None:
        axis, count = self.layout.mesh_shape[mesh_axis]
        shares = dict(self.layout.shares).get(axis, (1,))
        sized = [dim for dim, _ in self.layout.sizes if self.layout.axis_of(dim) == mesh_axis]
        if count > 1 and (sized or len(set(shares)) > 1):
            raise UnevenShapeError(
                f"{operation} over mesh axis {axis!r} needs the name of a dimension: this axis is split unevenly"
            )

    def allsplit(
        self, x: Slices, mesh_axis: int, split_axis: int, which: LaidOutTensor | None = None
    ) -> _Base.LaidOutTensor:
        self._check_even(mesh_axis, "allsplit")
        return super().allsplit(x, mesh_axis, split_axis, which)

    def alltoall(self, x: Slices, mesh_axis: int, split_axis: int, concat_axis: int) -> _Base.LaidOutTensor:
        self._check_even(mesh_axis, "alltoall")
        return super().alltoall(x, mesh_axis, split_axis, concat_axis)

    def receive(self, x: Slices, mesh_axis: int, source_pcoord: Sequence[int | None]) -> _Base.LaidOutTensor:
        self._check_even(mesh_axis, "receive")
        return super().receive(x, mesh_axis, source_pcoord)

    def broadcast_impl(self, old_slices: Slices, old_shape: mtf.Shape, new_shape: mtf.Shape) -> LaidOutTensor:
        function = functools.partial(broadcast_slice, self.layout, old_shape, new_shape)
        return self.slicewise(function, self.processors(new_shape), old_slices)

    def make_slices(self, tf_tensor: tf.Tensor, tensor_shape: mtf.Shape) -> list[tf.Tensor]:
        """Cut a whole tensor into one slice per processor, on the device that holds it."""
        with tf.device(tf_tensor.device):
            boxes = [
                (tuple(self.slice_begin(tensor_shape, pnum)), tuple(self.slice_shape(tensor_shape, pnum)))
                for pnum in range(self.size)
            ]
            slices = {box: cut(tf_tensor, *box) for box in dict.fromkeys(boxes)}
        return [slices[box] for box in boxes]

    def random_key(self, seed: int | None) -> LaidOutTensor:
        """Draw a key for `random`, another one at every step; returns each processor's copy.

        Args:
          seed: operation-level seed, or None for one that differs from run to run.
        """
        with tf.device(self.devices[0]):
            key = random_numbers.draw_key(seed)
        return self.slicewise(tf.identity, key)

    def random(
        self,
        shape: mtf.Shape,
        tf_fn: Callable[..., tf.Tensor],
        kwargs: Mapping[str, Any],
        seed: int | None = None,
        key: LaidOutTensor | tf.Tensor | None = None,
        turns: Sequence[LaidOutTensor] = (),
    ) -> LaidOutTensor:
        """Random numbers that do not depend on the layout, of which each processor makes its own.

        Args:
          shape: mtf.Shape of the whole tensor.
          tf_fn: tf.random.uniform, tf.random.normal or tf.random.truncated_normal, of floating-point numbers, or of
            int32 for the first; of anything else the whole tensor is made in one place.
          kwargs: keyword arguments of tf_fn.
          seed: operation-level seed, or None for one that differs from run to run.
          key: of `random_key`, drawn before the outermost loop around the operation; None: draw one here.
          turns: LaidOutTensors, int64 [], the number of the present turn of each loop, the outermost first. Each
            combination of numbers gives other random numbers, and always the same ones.
        """
        kwargs = {name: value for name, value in kwargs.items() if name not in ("name", "seed")}
        if not random_numbers.is_known(tf_fn, tf.as_dtype(kwargs.get("dtype", tf.float32))):
            with tf.device(self.devices[0]):
                tensor = tf_fn(shape.to_integer_list, seed=seed, **kwargs)
            return LaidOutTensor(self.make_slices(tensor, shape))
        if key is None:
            with tf.device(self.devices[0]):
                key = random_numbers.draw_key(seed)

        def draw(pnum: int, key: tf.Tensor, *turns: tf.Tensor) -> tf.Tensor:
            for turn in turns:
                key = random_numbers.split_key(key, turn)
            begin, size = self.slice_begin(shape, pnum), self.slice_shape(shape, pnum)
            return random_numbers.draw(tf_fn, kwargs, key, shape.to_integer_list, begin, size)

        return self.slicewise(draw, self.laid_out_pnum(), key, *turns)


def broadcast_slice(layout: Layout, old_shape: mtf.Shape, new_shape: mtf.Shape, pnum: int, x: tf.Tensor) -> tf.Tensor:
    """Return a processor's slice of a tensor, broadcast to more dimensions.

    Example:
      A bias [filters] for an output [batch, filters], on a processor with 8 examples and 42 filters: its slice [42]
      becomes [1, 42], and then [8, 42].
    """
    old_dims = [d for d in new_shape.dims if d in old_shape.dims]
    if old_dims != old_shape.dims:
        x = tf.transpose(x, constant([old_shape.dims.index(d) for d in old_dims]))
    slice_shape = layout.slice_shape(new_shape, pnum)
    expanded = [s if d in old_dims else 1 for d, s in zip(new_shape.dims, slice_shape, strict=True)]
    return tf.raw_ops.BroadcastTo(input=reshape(x, expanded), shape=constant(slice_shape))
