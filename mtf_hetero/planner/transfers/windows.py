"""Rules of operations of which a processor needs a box that is not its slice: reshape, slice, convolution, pool, ..."""

from collections.abc import Sequence

from mtf_hetero import blocks, layers
from mtf_hetero._compat import mtf
from mtf_hetero.layers.normalization import accumulator_of, is_native_shape
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import batch_norm, reshape, rounds
from mtf_hetero.lowering.boxes import parts_of
from mtf_hetero.lowering.conv_boxes import CONVOLUTIONS, Geometry, roles_of
from mtf_hetero.lowering.pool import Places, gradient_inputs, windows_of
from mtf_hetero.planner.sample import Sample
from mtf_hetero.planner.transfers.rules import register, set_output, slice_by_slice
from mtf_hetero.planner.transfers.sending import allreduce, fetch_boxes, halos, join, move, reduce_scatter
from mtf_hetero.planner.transfers.sketch import Sketch, Sum, Value, Values, made

_MOST = 2**13  # reshapes whose moves are kept
_kept: dict[tuple, Sequence[blocks.Move]] = {}


def _plan_moves(op: mtf.Operation, layout: Layout) -> Sequence[blocks.Move]:
    """As `reshape.plan_moves`; kept, for a network repeats its layers, and a search asks for the same again."""
    shapes = [op.inputs[0].shape, op.outputs[0].shape]
    divisions = tuple(tuple((layout.axis_of(dim), layout.split(dim.name, dim.size)) for dim in x) for x in shapes)
    key = layout.mesh_shape, layout.crowds if isinstance(layout, Sample) else (), divisions
    if key not in _kept:
        if len(_kept) >= _MOST:
            _kept.clear()
        _kept[key] = reshape.plan_moves(op, layout)
    return _kept[key]


class _MovedSum(Sum):
    """A reshaped sum that is still outstanding, as `mtf_hetero.lowering.reshape` has it."""

    def __init__(self, source: Sum, moves: Sequence, sketch: Sketch) -> None:
        partial = move(sketch, source.partial, moves)
        super().__init__(partial, source.axes, source.operation, source.reduce, source.absent)
        self._source, self._moves, self._sketch = source, moves, sketch

    def make(self) -> Values:
        if self.made is None and not reshape.adds_up_moved(self._moves, is_made=self._source.made is not None):
            self.made = move(self._sketch, self._source.make(), self._moves)
        return super().make()


def _is_empty(x: Value, y: Value, made: Sequence[int]) -> bool:
    return 0 in x.shape or 0 in y.shape or 0 in made


@register(mtf.ReshapeOperation)
def _reshape(op: mtf.Operation, sketch: Sketch) -> None:
    x = sketch.laid_out(op.inputs[0])
    if reshape.lie_alike(sketch.layout, op.inputs[0].shape, op.outputs[0].shape):
        sketch.set(op.outputs[0], x)
        return
    moves = _plan_moves(op, sketch.layout)
    if isinstance(x, Sum):
        way = reshape.way_of(op, sketch.layout, moves, x.axes, is_made=x.made is not None)
        if way is reshape.Way.KEEP:
            sketch.set(op.outputs[0], _MovedSum(x, moves, sketch))
            return
        if way is reshape.Way.SCATTER:
            set_output(op, sketch, _present(reduce_scatter(sketch, x, moves), op, sketch))
            return
    set_output(op, sketch, move(sketch, made(x), moves))


def _present(values: Sequence[Value | None], op: mtf.Operation, sketch: Sketch) -> Values:
    """The values; zeros for what is None."""
    (output,) = op.outputs
    return [
        sketch.value(pnum, sketch.layout.slice_shape(output.shape, pnum), output.dtype) if x is None else x
        for pnum, x in enumerate(values)
    ]


@register(layers.CutOperation)
def _cut(op: mtf.Operation, sketch: Sketch) -> None:
    boxes, shape = rounds.boxes_of(op, sketch.layout), op.inputs[0].shape
    fetched = fetch_boxes(sketch, sketch.slices(op.inputs[0]), shape.dims, boxes)
    set_output(op, sketch, _present(fetched, op, sketch))


@register(layers.PlaceOperation)
def _place(op: mtf.Operation, sketch: Sketch) -> None:
    x = sketch.laid_out(op.inputs[0])
    if not isinstance(x, Sum) or not rounds.is_scattered(op, sketch.layout, x.axes, is_made=x.made is not None):
        _cut(op, sketch)
        return
    _, moves = rounds.plan_parts(op, sketch.layout)
    parts = _present(reduce_scatter(sketch, x, moves), op, sketch)
    set_output(op, sketch, [_grown(part, op.outputs[0], pnum, sketch) for pnum, part in enumerate(parts)])


def _grown(x: Value, output: mtf.Tensor, pnum: int, sketch: Sketch) -> Value:
    """A processor's slice of a tensor, by zeros around a part of it."""
    shape = tuple(sketch.layout.slice_shape(output.shape, pnum))
    return x if x.shape == shape else sketch.value(pnum, shape, x.dtype, [x])


@register(mtf.SliceOperation, mtf.PadOperation, mtf.SplitOperation, mtf.ShiftOperation, mtf.ConcatOperation)
def _joined(op: mtf.Operation, sketch: Sketch) -> None:
    """A single part is handed on as it is."""
    for output, pieces in _parts(op, sketch):
        sketch.set(output, [_put_together(output, own, pnum, sketch) for pnum, own in enumerate(pieces)])


def _put_together(output: mtf.Tensor, pieces: Sequence[Value], pnum: int, sketch: Sketch) -> Value:
    if len(pieces) == 1:
        return pieces[0]
    return sketch.value(pnum, sketch.layout.slice_shape(output.shape, pnum), output.dtype, pieces)


@register(mtf.StackOperation, mtf.UnstackOperation, mtf.TopKOperation)
def _made_of_parts(op: mtf.Operation, sketch: Sketch) -> None:
    parts = _parts(op, sketch)
    if isinstance(op, mtf.TopKOperation):
        parts = [(output, parts[0][1]) for output in op.outputs]
    for output, pieces in parts:
        shapes = [sketch.layout.slice_shape(output.shape, pnum) for pnum in sketch.processors]
        both = enumerate(zip(shapes, pieces, strict=True))
        sketch.set(output, [sketch.value(pnum, shape, output.dtype, own) for pnum, (shape, own) in both])


def _parts(op: mtf.Operation, sketch: Sketch) -> list[tuple[mtf.Tensor, list[Values]]]:
    """For each output, the parts that each processor has of it."""
    results = []
    for output, parts in zip(op.outputs, parts_of(op, sketch.layout), strict=False):
        fetched = [fetch_boxes(sketch, sketch.slices(x), x.shape.dims, boxes) for x, boxes in parts]
        own = [[x for x in values if x is not None] for values in zip(*fetched, strict=True)]
        results.append((output, own))
    return results


@register(*CONVOLUTIONS)
def _convolution(op: mtf.Operation, sketch: Sketch) -> None:
    layout, (output,) = sketch.layout, op.outputs
    geometry = Geometry(op, layout)
    _, image, other = roles_of(op)
    xs, others = sketch.slices(image), sketch.slices(other)
    if geometry.is_space_whole:
        shapes = layout.slice_shapes(output.shape)
        both = enumerate(zip(xs, others, shapes, strict=True))
        values = [sketch.value(p, to, output.dtype, [] if _is_empty(x, y, to) else [x, y]) for p, (x, y, to) in both]
        set_output(op, sketch, values, geometry.summed_dims)
        return
    pieces = halos(sketch, xs, image.shape.dims, geometry.needed)
    values = []
    for pnum in sketch.processors:
        reads = [piece for box, piece in pieces[pnum] if geometry.reached(geometry.of_space(box), pnum) is not None]
        is_empty = 0 in xs[pnum].shape or 0 in others[pnum].shape or 0 in layout.slice_shape(output.shape, pnum)
        if geometry.reached(geometry.held(pnum), pnum) is not None and not is_empty:
            reads.append(xs[pnum])
        if reads:
            reads.append(others[pnum])
        values.append(sketch.value(pnum, layout.slice_shape(output.shape, pnum), output.dtype, reads))
    set_output(op, sketch, values, geometry.summed_dims)


@register(layers.PoolOperation, mtf.PoolOperation)
def _pool(op: mtf.Operation, sketch: Sketch) -> None:
    (x,), (y,) = op.inputs, op.outputs
    places = Places(sketch.layout, windows_of(op), x.shape, y.shape)
    xs = sketch.slices(x)
    pieces = halos(sketch, xs, x.shape.dims, places.seen_by)
    values = []
    for pnum in sketch.processors:
        shape = sketch.layout.slice_shape(y.shape, pnum)
        reads = [piece for box, piece in pieces[pnum] if places.reached_windows(places.of_space(box), pnum) is not None]
        if not pieces[pnum] or places.sees_own(pnum):
            reads.append(xs[pnum])
        values.append(sketch.value(pnum, shape, y.dtype, [] if 0 in shape else reads))
    set_output(op, sketch, values)


@register(layers.PoolGradientOperation, mtf.PoolBackPropOperation)
def _pool_gradient(op: mtf.Operation, sketch: Sketch) -> None:
    (dy, x, y), (dx,) = gradient_inputs(op), op.outputs
    windows = windows_of(op)
    places = Places(sketch.layout, windows, dx.shape, dy.shape)
    if windows.kind == "max":
        covering, seen = zip(*places.boxes_of_maxima(), strict=True)
        parts = [
            fetch_boxes(sketch, sketch.slices(t), t.shape.dims, boxes)
            for t, boxes in ((dy, covering), (x, seen), (y, covering))
        ]
        reads = [[part for part in own if part is not None] for own in zip(*parts, strict=True)]
    else:
        dys = sketch.slices(dy)
        pieces = halos(sketch, dys, dy.shape.dims, places.covering)
        reads = [_reads_of_average(places, dys[pnum], pieces[pnum], pnum) for pnum in sketch.processors]
    shapes = [sketch.layout.slice_shape(dx.shape, pnum) for pnum in sketch.processors]
    both = enumerate(zip(shapes, reads, strict=True))
    set_output(op, sketch, [sketch.value(pnum, shape, dx.dtype, own) for pnum, (shape, own) in both])


def _reads_of_average(places: Places, dy: Value, pieces: Sequence, pnum: int) -> Values:
    """What a processor's slice of the gradient of an average is made of."""
    reads = [piece for box, piece in pieces if places.reached_pixels(places.of_space(box), pnum) is not None]
    is_empty = 0 in places.layout.slice_shape(places.pixels_shape, pnum)
    return [*reads, dy] if places.sees_own(pnum) and not is_empty else reads


def _is_native(op: mtf.Operation, sketch: Sketch) -> bool:
    """Whether TensorFlow's fused operation does it, on CPUs: whose outputs all come of all inputs."""
    if not batch_norm.has_whole_channels(op, sketch.layout):
        return False
    return all(is_native_shape(x.shape, x.dtype) for x in sketch.slices(op.inputs[0]))


def _pairs(sketch: Sketch, groups: mtf.Shape, *inputs: Values) -> Values:
    """Two numbers per group of each processor, made of its slices."""
    dtype = accumulator_of(inputs[0][0].dtype)
    return [
        sketch.value(pnum, (2, *sketch.layout.slice_shape(groups, pnum)), dtype, [x[pnum] for x in inputs])
        for pnum in sketch.processors
    ]


def _joint_moments(op: mtf.Operation, sketch: Sketch) -> Values:
    own = _pairs(sketch, op.outputs[-1].shape, sketch.slices(op.inputs[0]))
    return join(sketch, own, batch_norm.split_axes(op, sketch.layout), batch_norm.absent(op, sketch.layout))


@register(layers.MomentsOperation)
def _moments(op: mtf.Operation, sketch: Sketch) -> None:
    """Each processor sends its moments to who joins them."""
    moments = _joint_moments(op, sketch)
    for output in op.outputs:
        sketch.set(output, sketch.local_of(output.shape, moments[0].dtype, moments))


@register(layers.BatchNormOperation)
def _batch_norm(op: mtf.Operation, sketch: Sketch) -> None:
    """The same, and each processor normalises its slice."""
    if _is_native(op, sketch):
        slice_by_slice(op, sketch)
        return
    x, scale, offset = (sketch.slices(t) for t in op.inputs)
    y, *outputs = op.outputs
    moments = _joint_moments(op, sketch)
    sketch.set(y, sketch.local(y, x, moments, scale, offset))
    for output in outputs:
        sketch.set(output, sketch.local_of(output.shape, moments[0].dtype, moments))


@register(layers.BatchNormGradientOperation)
def _batch_norm_gradient(op: mtf.Operation, sketch: Sketch) -> None:
    """Both sums are made at once."""
    if _is_native(op, sketch):
        slice_by_slice(op, sketch)
        return
    inputs = [sketch.slices(t) for t in op.inputs]
    dx, *outputs = op.outputs
    sums = _pairs(sketch, outputs[0].shape, *inputs[:-1])
    axes, absent = batch_norm.split_axes(op, sketch.layout), batch_norm.absent(op, sketch.layout)
    sums = allreduce(sketch, sums, axes, op.name, absent)
    sketch.set(dx, sketch.local(dx, *inputs, sums))
    for output in outputs:
        sketch.set(output, sketch.local_of(output.shape, sums[0].dtype, sums))
