"""Random mtf programs and random legal layouts for them."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtf_hetero import Layout, layers, mtf, tf

MAX_ELEMENTS = 4000
MAX_PROCESSORS = 9


class Program:
    """A chain of random operations, the same for the same seed.

    Args:
      seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.description: list[str] = []

    def __call__(self, feed: Any) -> dict[str, Any]:
        """Builds the program: {name: mtf.Tensor}, as the oracle wants it."""
        self._rng = np.random.default_rng(self.seed)
        self._feed = feed
        self._names = (f"n{i}" for i in itertools.count())
        self.description = []
        rank = int(self._rng.integers(2, 6))
        sizes = self._rng.integers(1, 8, rank).tolist()  # some smaller than a mesh axis
        if self._rng.random() < 0.5:  # a large one, such as a height that strides do not divide
            sizes[int(self._rng.integers(rank))] = self._pick([9, 11, 12, 13])
        x = feed("x", mtf.Shape([self._dim(size) for size in sizes]))
        outputs = {}
        for step in range(int(self._rng.integers(3, 8))):
            grown = self._step(x)
            if grown.size <= MAX_ELEMENTS:
                x = grown
                self.description.append(f"{x.operation.name} {x.shape}")
            if self._rng.random() < 0.2:
                outputs[f"step {step}"] = x
        return {**outputs, "y": x}

    def _dim(self, size: int) -> Any:
        return mtf.Dimension(next(self._names), size)

    def _pick(self, items: Any) -> Any:
        items = list(items)
        return items[int(self._rng.integers(len(items)))]

    def _variable(self, *dims: Any) -> Any:
        return mtf.get_variable(
            self._feed.mesh,
            f"v{next(self._names)}",
            mtf.Shape(list(dims)),
            dtype=self._feed.dtype,
            initializer=tf.random_normal_initializer(stddev=0.5),
        )

    def _step(self, x: Any) -> Any:
        if not x.shape.dims:
            return self._elementwise(x)
        steps = [self._elementwise, self._bias, self._dense, self._rename, self._along, self._along, self._reshape]
        if x.shape.ndims > 1:
            steps += [self._reduce, self._normalise, self._transpose, self._batch_norm]
        if x.shape.ndims >= 3:
            steps += [self._conv, self._conv, self._conv, self._pool, self._grouped, self._upsample]
        return self._pick(steps)(x)

    def _elementwise(self, x: Any) -> Any:
        functions = [
            mtf.relu,
            mtf.leaky_relu,
            mtf.tanh,
            mtf.sigmoid,
            mtf.softplus,
            mtf.elu,
            lambda x: mtf.square(mtf.tanh(x)),
        ]
        return self._pick(functions)(x)

    def _bias(self, x: Any) -> Any:
        dims = [dim for dim in x.shape.dims if self._rng.random() < 0.5]
        v = self._variable(*dims)
        # mtf's gradient of a minimum does not sum over what was broadcast
        return self._pick([lambda: x + v, lambda: x * v, lambda: mtf.minimum(x, mtf.broadcast(v, x.shape))])()

    def _dense(self, x: Any) -> Any:
        reduced, new = self._pick(x.shape.dims), self._dim(int(self._rng.integers(2, 8)))
        w = self._variable(reduced, new)
        dims = [dim for dim in x.shape.dims if dim != reduced]
        dims.insert(int(self._rng.integers(len(dims) + 1)), new)

        def contract(x: Any) -> Any:
            return mtf.einsum([mtf.tanh(x), w], dims)

        return mtf.recompute_grad(contract, [x]) if self._rng.random() < 0.2 else contract(x)

    def _rename(self, x: Any) -> Any:
        return mtf.rename_dimension(x, self._pick(x.shape.dimension_names), next(self._names))

    def _transpose(self, x: Any) -> Any:
        return mtf.transpose(x, mtf.Shape([x.shape.dims[i] for i in self._rng.permutation(x.shape.ndims)]))

    def _reduce(self, x: Any) -> Any:
        return self._pick([mtf.reduce_sum, mtf.reduce_mean, mtf.reduce_max])(x, reduced_dim=self._pick(x.shape.dims))

    def _normalise(self, x: Any) -> Any:
        dim = self._pick(x.shape.dims)
        return self._pick([lambda: mtf.softmax(x, dim), lambda: mtf.log_softmax(x, dim), lambda: mtf.cumsum(x, dim)])()

    def _reshape(self, x: Any) -> Any:
        dims = x.shape.dims
        if len(dims) > 1 and self._rng.random() < 0.5:
            i = int(self._rng.integers(len(dims) - 1))
            merged = self._dim(dims[i].size * dims[i + 1].size)
            return mtf.reshape(x, mtf.Shape([*dims[:i], merged, *dims[i + 2 :]]))
        i = int(self._rng.integers(len(dims)))
        factor = self._pick([n for n in range(1, dims[i].size + 1) if dims[i].size % n == 0])
        parts = [self._dim(factor), self._dim(dims[i].size // factor)]
        return mtf.reshape(x, mtf.Shape([*dims[:i], *parts, *dims[i + 1 :]]))

    def _along(self, x: Any) -> Any:
        dim = self._pick(x.shape.dims)
        n, name = dim.size, dim.name
        offset = int(self._rng.integers(-n - 1, n + 2))
        begin = int(self._rng.integers(n))
        size = int(self._rng.integers(1, n - begin + 1))
        pads = [int(p) for p in self._rng.integers(0, 3, 2)]
        return self._pick(
            [
                lambda: mtf.shift(x, offset, dim, wrap=True),
                lambda: mtf.shift(x, offset, dim, wrap=False),
                lambda: mtf.slice(x, begin, size, name),
                lambda: mtf.pad(x, pads, name),
                lambda: mtf.concat([x, mtf.slice(mtf.tanh(x), begin, size, name)], name),
                lambda: mtf.concat(mtf.split(x, dim, [begin, n - begin])[::-1], name) if begin else x * 2.0,
                lambda: mtf.stack([x, mtf.sigmoid(x), x * 0.5], next(self._names), int(self._rng.integers(2))),
                lambda: mtf.add_n([part * (i + 1.0) for i, part in enumerate(mtf.unstack(x, dim))]),
                lambda: mtf.top_k(x, dim, self._dim(size))[0],
            ]
        )()

    def _with_batch(self, x: Any, spatial: int) -> Any:
        """An image or volume that has a dimension before those of space."""
        return x if x.shape.ndims > spatial + 1 else mtf.reshape(x, mtf.Shape([self._dim(1), *x.shape.dims]))

    def _conv(self, x: Any) -> Any:
        """A convolution, plain or transposed, 2D or 3D, over the dimensions before the last."""
        spatial = 3 if x.shape.ndims >= 4 and self._rng.random() < 0.3 else 2
        x = self._with_batch(x, spatial)
        extents = [dim.size for dim in x.shape.dims[-spatial - 1 : -1]]
        sizes, strides = self._rng.integers(1, 5, spatial).tolist(), self._rng.integers(1, 5, spatial).tolist()
        transposed = self._rng.random() < 0.25
        most = strides if transposed else extents  # for a VALID one; mtf's transposed image has stride times its extent
        valid = self._rng.random() < 0.5 and all(k <= m for k, m in zip(sizes, most))
        window, filters = [self._dim(size) for size in sizes], self._dim(int(self._rng.integers(1, 6)))
        channels = x.shape.dims[-1]
        kernel = self._variable(*window, *((filters, channels) if transposed else (channels, filters)))
        name = f"Conv{spatial}d{'Transpose' if transposed else ''}Operation"
        return getattr(mtf, name)(x, kernel, [1, *strides, 1], "VALID" if valid else "SAME").outputs[0]

    def _grouped(self, x: Any) -> Any:
        """A depthwise convolution, whose groups are the channels, or one in groups that have a name of their own."""
        x = self._with_batch(x, 2)
        *_, height, width, channels = x.shape.dims
        size, strides = self._rng.integers(1, 5, 2).tolist(), self._rng.integers(1, 4, 2).tolist()
        fits = size[0] <= height.size and size[1] <= width.size
        options = {
            "filter_size": size,
            "strides": strides if self._rng.random() < 0.5 else strides[:1] * 2,
            "padding": "VALID" if fits and self._rng.random() < 0.5 else "SAME",
            "filter_initializer": tf.random_normal_initializer(stddev=0.5),
            "variable_dtype": mtf.VariableDType(self._feed.dtype),
            "name": f"grouped_{next(self._names)}",
        }
        groups = self._pick([n for n in range(1, channels.size + 1) if channels.size % n == 0])
        filters = self._dim(groups * int(self._rng.integers(1, 3)))
        if self._rng.random() < 0.5:
            return layers.depthwise_conv2d(x, multiplier=int(self._rng.integers(1, 3)), **options)
        return layers.grouped_conv2d(x, filters, groups=groups, **options)

    def _upsample(self, x: Any) -> Any:
        method = self._pick(["nearest", "bilinear"])
        return layers.upsample(x, self._rng.integers(1, 4, 2).tolist(), method=method, name=next(self._names))

    def _pool(self, x: Any) -> Any:
        """A pool, mtf's own or one whose windows overlap, lie apart or reach beyond the image."""
        x = self._with_batch(x, 2)
        extents = [dim.size for dim in x.shape.dims[-3:-1]]
        # no two elements of a window are alike: of several that are the largest, mtf gives each the whole gradient
        x += self._feed(next(self._names), x.shape)
        if self._rng.random() < 0.3:
            window = [self._pick([k for k in (1, 2, 3) if n % k == 0]) for n in extents]
            return self._pick([mtf.layers.max_pool2d, mtf.layers.avg_pool2d])(x, window)
        size = [int(self._rng.integers(1, min(n, 4) + 1)) for n in extents]
        padding = self._pick(["SAME", "VALID", 1] if min(size) > 1 else ["SAME", "VALID"])
        strides = self._rng.integers(1, 4, 2).tolist()
        return layers.pool(x, kind=self._pick(["max", "avg"]), size=size, strides=strides, padding=padding)

    def _batch_norm(self, x: Any) -> Any:
        name = next(self._names)
        per = [self._pick(x.shape.dims[:-1]).name] if x.shape.ndims > 2 and self._rng.random() < 0.4 else []
        y = layers.batch_norm(x, training=bool(self._rng.random() < 0.8), per=per, name=f"norm_{name}")
        return y + self._feed(next(self._names), x.shape)  # or its means are zero, and rounding decides on the largest


def random_layout(seed: int, graph: Any) -> Layout:
    """A random layout that is legal for every tensor of a graph, over one to three mesh axes.

    Of half of them, some dimensions are given exact sizes, zeros among them; of a third, some devices have slots.
    """
    rng = np.random.default_rng([seed, 1])
    mesh: dict[str, int] = {}
    for axis in ("x", "y", "z")[: rng.integers(1, 4)]:
        mesh[axis] = int(rng.integers(1, min(3, MAX_PROCESSORS // math.prod(mesh.values())) + 1))
    shares = {axis: rng.integers(1, 9, count).tolist() for axis, count in mesh.items()}
    shapes = [tensor.shape for op in graph.operations for tensor in op.outputs]
    whole = set().union(*map(_window_names, graph.operations))
    names = sorted({dim.name for shape in shapes for dim in shape.dims} - whole)
    rules: list[tuple[str, str]] = []
    for name in rng.permutation(names).tolist():
        rule = (name, list(mesh)[int(rng.integers(len(mesh)))])
        layout = Layout(tuple(mesh.items()), [*rules, rule], shares)
        if rng.random() < 0.7 and _is_legal(layout, shapes):
            rules.append(rule)
    slots = _random_slots(seed, mesh) if seed % 3 == 1 else {}
    return _with_empty_slices(seed, Layout(tuple(mesh.items()), rules, shares, (), slots), shapes)


def _random_slots(seed: int, mesh: Mapping[str, int]) -> dict[str, list[int]]:
    rng = np.random.default_rng([seed, 3])
    slots = {}
    for axis, count in mesh.items():
        ends = [end for end in range(1, count) if rng.random() < 0.4]
        slots[axis] = np.diff([0, *ends, count]).tolist()
    return slots


def _with_empty_slices(seed: int, layout: Layout, shapes: list[Any]) -> Layout:
    """The layout, of every second seed with exact sizes of some dimensions where that is legal."""
    rng = np.random.default_rng([seed, 2])
    if rng.random() < 0.5:
        return layout
    extents: dict[str, list[int]] = {}
    for dim in (dim for shape in shapes for dim in shape.dims):
        extents.setdefault(dim.name, []).append(dim.size)
    for name, axis in layout.rules:
        count = dict(layout.mesh_shape)[axis]
        extent = extents[name][int(rng.integers(len(extents[name])))]
        present = rng.permutation(count)[: int(rng.integers(1, min(count, extent) + 1))]
        cuts = np.sort(rng.permutation(np.arange(1, extent))[: len(present) - 1])
        sizes = np.zeros(count, int)
        sizes[present] = np.diff([0, *cuts, extent])
        sized = dataclasses.replace(layout, sizes=[*layout.sizes, (name, sizes.tolist())])
        if rng.random() < 0.6 and _is_legal(sized, shapes):
            layout = sized
    return layout


def _window_names(op: Any) -> set[str]:
    """The dimensions of a convolution's kernel that no layout can split."""
    if isinstance(op, (mtf.Conv2dOperation, mtf.Conv2dTransposeOperation)):
        return set(op.inputs[1].shape.dimension_names[:2])
    if isinstance(op, layers.GroupedConv2dOperation):
        return {"fh", "fw"}
    if isinstance(op, (mtf.Conv3dOperation, mtf.Conv3dTransposeOperation)):
        return set(op.inputs[1].shape.dimension_names[:3])
    return set()


def _is_legal(layout: Layout, shapes: list[Any]) -> bool:
    try:
        for shape in shapes:
            layout.check(shape)
    except ValueError:
        return False
    return True
