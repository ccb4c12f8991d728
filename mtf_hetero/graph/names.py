"""The names of an mtf graph's dimensions: how large each is, which go together, and which are never split together."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping

from mtf_hetero._compat import mtf
from mtf_hetero.graph.walk import within
from mtf_hetero.layout.blocks import aligned
from mtf_hetero.ops.traits import find_images, find_traits


def dimension_names(op: mtf.Operation) -> set[str]:
    """Return the names of an operation's dimensions."""
    return {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.dimension_names}


def names_in_variables(graph: mtf.Graph) -> set[str]:
    """Return the names of all variables' dimensions."""
    return {name for variable in graph.all_variables for name in variable.shape.dimension_names}


def dimension_sizes(operations: Iterable[mtf.Operation]) -> dict[str, list[int]]:
    """Map each name to the sizes with which it occurs, in the order of the operations."""
    sizes: dict[str, dict[int, None]] = {}
    for op in operations:
        for tensor in (*op.inputs, *op.outputs):  # the inputs of a graph's part are nobody's outputs
            for dim in tensor.shape.dims:
                sizes.setdefault(dim.name, {})[dim.size] = None
    return {name: list(of_name) for name, of_name in sizes.items()}


def unsplittable(operations: Iterable[mtf.Operation]) -> set[str]:
    """Return the names that an operation, inside loops too, needs whole.

    Of a convolution's or pool's height, width and depth mtf says so, but their halos are exchanged.
    """
    return {
        name
        for op in within(operations)
        for name in op.unsplittable_dims.difference(*spaces(op))  # pyright: ignore
    }


def extents(operations: Iterable[mtf.Operation]) -> dict[str, set[int]]:
    """Map each name that may be split to its sizes, in the graph's order."""
    operations = list(operations)
    whole = unsplittable(operations)
    return {n: set(sizes) for n, sizes in dimension_sizes(operations).items() if n not in whole and max(sizes) > 1}


def spaces(op: mtf.Operation) -> list[list[str]]:
    """Return the names of the dimensions over which windows pass, of each image of a convolution or pool."""
    images = find_images(op)
    if images is None:
        return []
    return [[dim.name for dim in images.space(image)] for image in (images.large, images.small)]


def conflicts(operations: Iterable[mtf.Operation]) -> Mapping[str, set[str]]:
    """Map each name to those that share a tensor or a lookup with it: they cannot be split over its mesh axis."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for op in within(operations):
        rows = find_traits(op).rows  # no tensor shows that the rows and the ids cannot be split over one axis
        for y in op.outputs:
            names = {*y.shape.dimension_names, *([] if rows is None else [rows(op).name])}
            for one, other in itertools.permutations(names, 2):
                found[one].add(other)
    return found


def families(operations: Iterable[mtf.Operation], extents: Mapping[str, set[int]]) -> list[tuple[str, ...]]:
    """Group the names that reshapes give to one dimension."""
    leader = {name: name for name in extents}

    def first(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for old, new in renamed(operations):
        if old in leader and new in leader:
            leader[first(new)] = first(old)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name in extents:
        found[first(name)].append(name)
    return [tuple(family) for family in found.values()]


class Renames:
    """The names that reshapes give to a dimension, one after the other.

    Args:
      operations: among which the reshapes are.
    """

    def __init__(self, operations: Iterable[mtf.Operation]) -> None:
        self._old_names: dict[str, set[str]] = collections.defaultdict(set)
        for old, new in renamed(operations):
            self._old_names[new].add(old)

    def path(self, name: str, origins: set[str]) -> list[str] | None:
        """Return the names that a dimension had, from `name` back to one of `origins`, which ends the path; or None."""
        paths = collections.deque([[name]])
        seen = {name}
        while paths:
            path = paths.popleft()
            if path[-1] in origins:
                return path
            for old in sorted(self._old_names.get(path[-1], ())):
                if old not in seen:
                    seen.add(old)
                    paths.append([*path, old])
        return None

    def later(self, origin: str) -> Iterator[list[str]]:
        """Yield the path of each name that a dimension is given later, from that name back to its own."""
        for new in self._old_names:
            path = self.path(new, {origin})
            if path is not None and new != origin:
                yield path

    def later_names(self, origin: str) -> list[str]:
        """List a dimension's name, and those that it is given later."""
        return [origin, *(path[0] for path in self.later(origin))]


def renamed(operations: Iterable[mtf.Operation]) -> Iterator[tuple[str, str]]:
    """Yield the old and the new name of each dimension that a reshape renames."""
    for op in operations:
        if isinstance(op, mtf.ReshapeOperation):
            yield from aligned(op.inputs[0].shape.dims, op.outputs[0].shape.dims)
