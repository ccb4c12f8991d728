"""Names of axes: which are the same dimension. An axis is a product of dimensions; of none if its size is 1.

So a reshape moves nothing: [14, 6, 8] to [84, 8] says that the axis of 84 is a product of the dimensions of 14 and 6. A
fact about an axis holds for all axes that were found to be alike: dimensions are unified, and divided into factors
where a reshape asks for it. Pure.
"""

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Sequence

Product = tuple[int, ...]  # dimensions, by number
_GIVEN = -1  # the age of a dimension with a label that it was given


class Names:
    """Dimensions of tensors, by numbers.

    Example:
      >>> names = Names()
      >>> names.enter("x", (14, 6, 8), ["batch", "length", "channels"])
      >>> names.enter("y", (84, 8), ["y/0", "y/1"])
      >>> names.unify([d for axis in names.axes("x") for d in axis], [d for axis in names.axes("y") for d in axis])
      True
      >>> [[names.label(d) for d in axis] for axis in names.axes("y")]
      [['batch', 'length'], ['channels']]
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._labels: list[str] = []
        self._ages: list[int] = []  # of two that are unified, the older one gives the label
        self._tensors: list[set[Hashable]] = []  # those that have the dimension
        self._became: dict[int, Product] = {}  # what a dimension was divided into, or unified with
        self._axes: dict[Hashable, list[Product]] = {}
        self._fixed: set[int] = set()
        self._enclosed: list[Product] = []
        self._shared: dict[tuple[str, int], int] = {}  # fixed dimensions by label and size
        self._staged: dict[tuple[int, int], int] = {}  # {dimension of stage 0, stage: the one in its place}
        self._used: dict[Hashable, set[int]] = {}  # by operations

    def enter(self, tensor: Hashable, shape: Sequence[int], labels: Sequence[str]) -> None:
        """Enter a tensor, with a new dimension per axis whose size is not 1."""
        self._axes[tensor] = [
            () if size == 1 else (self._new(size, label, [tensor]),) for size, label in zip(shape, labels, strict=True)
        ]

    def fix(self, tensor: Hashable, axes: Sequence[Sequence[tuple[str, int]]]) -> None:
        """Enter a tensor whose dimensions are given, and are neither divided nor unified with each other."""
        self._axes[tensor] = [tuple(self._fix(label, size, tensor) for label, size in axis) for axis in axes]

    def _fix(self, label: str, size: int, tensor: Hashable) -> int:
        if (label, size) not in self._shared:
            self._shared[label, size] = self._new(size, label, [])
            self._fixed.add(self._shared[label, size])
        number = self._shared[label, size]
        self._tensors[number].add(tensor)
        return number

    @property
    def fixed_labels(self) -> set[str]:
        """The labels of dimensions that are fixed."""
        return {label for label, _ in self._shared}

    def is_fixed(self, dim: int) -> bool:
        """Return whether a dimension keeps its label and its size."""
        return dim in self._fixed

    def _new(self, size: int, label: str, tensors: Iterable[Hashable], age: int | None = None) -> int:
        self._ages.append(len(self._sizes) if age is None else age)
        self._sizes.append(size)
        self._labels.append(label)
        self._tensors.append(set(tensors))
        return len(self._sizes) - 1

    def has(self, tensor: Hashable) -> bool:
        """Return whether a tensor was entered."""
        return tensor in self._axes

    def axes(self, tensor: Hashable) -> list[Product]:
        """Return the dimensions of each axis of a tensor, as they are by now."""
        self._axes[tensor] = [self.resolve(axis) for axis in self._axes[tensor]]
        return self._axes[tensor]

    def size(self, dim: int) -> int:
        """Return the size of a dimension."""
        return self._sizes[dim]

    def label(self, dim: int) -> str:
        """Return the label that a dimension was entered with."""
        return self._labels[dim]

    def resolve(self, product: Product) -> Product:
        """Return what a product has become."""
        if not any(dim in self._became for dim in product):
            return product
        result: list[int] = []
        for dim in product:
            if dim in self._became:
                self._became[dim] = self.resolve(self._became[dim])
                result += self._became[dim]
            else:
                result.append(dim)
        return tuple(result)

    def unify(self, one: Product, other: Product) -> bool:
        """Make two products of equal size the same, as far as no tensor then has a dimension twice.

        Both are divided into common factors, in row-major order.

        Returns:
          Whether they are the same now.
        """
        one, other = self.resolve(tuple(one)), self.resolve(tuple(other))
        if one == other:
            return True
        factors = common_factors([self._sizes[d] for d in one], [self._sizes[d] for d in other])
        if factors is None or not all(self._may_divide(dims, factors) for dims in (one, other)):
            return False
        self._divide(one, factors)
        self._divide(other, factors)
        pairs = list(zip(self.resolve(one), self.resolve(other), strict=True))
        merged = [self._merge(*self.resolve((a,)), *self.resolve((b,))) for a, b in pairs]  # each, whatever the others
        return all(merged)

    def _may_divide(self, dims: Product, factors: Sequence[int]) -> bool:
        parts = divide_factors([self._sizes[d] for d in dims], factors)
        return all(len(mine) == 1 or d not in self._fixed for d, mine in zip(dims, parts, strict=True))

    def _divide(self, dims: Product, factors: Sequence[int]) -> None:
        parts = divide_factors([self._sizes[d] for d in dims], factors)
        for dim, mine in zip(dims, parts, strict=True):
            if len(mine) > 1 and dim not in self._became:  # one that occurs twice was divided already
                label, tensors, age = self._labels[dim], self._tensors[dim], self._ages[dim]
                self._became[dim] = tuple(self._new(n, f"{label}_{i}", tensors, age) for i, n in enumerate(mine))

    def _rank(self, dim: int) -> tuple[bool, int, int]:
        """Return the order in which dimensions give their labels to others."""
        return dim not in self._fixed, self._ages[dim], dim

    def _merge(self, a: int, b: int) -> bool:
        if a == b:
            return True
        if {a, b} <= self._fixed or self._tensors[a] & self._tensors[b]:
            return False
        a, b = sorted((a, b), key=self._rank)
        self._became[b] = (a,)
        self._tensors[a] |= self._tensors[b]
        return True

    def age(self, dim: int) -> int:
        """Return the number of dimensions that were entered before a dimension."""
        return self._ages[dim]

    def elder(self, one: Product, other: Product) -> Product:
        """Return the product of the two that has the older dimension: the batch, if one of them is the batch."""
        one, other = self.resolve(one), self.resolve(other)
        return min((one, other), key=lambda product: min(map(self.age, product)))

    def enclose(self, product: Product, label: str) -> None:
        """Note that operations that have this and another dimension for one are to use this one; give it a label."""
        self.prefer(product, label)
        self._enclosed.append(product)

    @property
    def enclosed(self) -> set[int]:
        """The dimensions that were enclosed."""
        return {dim for product in self._enclosed for dim in self.resolve(product)}

    def stage(self, tensor: Hashable, dims: Collection[int], stage: int) -> None:
        """Give a tensor the dimensions of a stage in place of some; an operation is to use these.

        Args:
          tensor: one that will not be unified with others, or an operation.
          dims: the dimensions of stage 0.
          stage: its number.
        """
        if tensor in self._axes:
            self._axes[tensor] = [
                tuple(self._in_stage(dim, stage) if dim in dims else dim for dim in axis) for axis in self.axes(tensor)
            ]
        else:
            self._used[tensor] = {self._in_stage(dim, stage) for dim in dims}

    def _in_stage(self, dim: int, stage: int) -> int:
        if stage and (dim, stage) not in self._staged:
            new = self._new(self._sizes[dim], f"stage{stage}/{self._labels[dim]}", [], self._ages[dim])
            self._staged[dim, stage] = new
            if dim in self.enclosed:
                self._enclosed.append((new,))
        return self._staged.get((dim, stage), dim)

    @property
    def staged(self) -> set[int]:
        """The dimensions that take each other's place in stages."""
        return {dim for (dim, _), other in self._staged.items() for dim in (dim, other)}

    def used(self, operation: Hashable) -> set[int]:
        """Return the dimensions that an operation is to use if it has others for them too."""
        return self._used.get(operation, set())

    def rename(self, product: Product, label: str) -> None:
        """Give a dimension another label, whatever it was given before."""
        product = self.resolve(product)
        if len(product) == 1 and product[0] not in self._fixed:
            self._labels[product[0]] = label

    def prefer(self, product: Product, label: str) -> None:
        """Give a dimension a label, unless it was given one; it keeps it when it is unified with others."""
        product = self.resolve(product)
        if len(product) == 1 and product[0] not in self._fixed and self._ages[product[0]] != _GIVEN:
            self._labels[product[0]], self._ages[product[0]] = label, _GIVEN


def common_factors(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """Return the coarsest factors of which both products are made in row-major order; None if there are none.

    Example:
      >>> common_factors([84, 8], [14, 6, 8])
      [14, 6, 8]
      >>> common_factors([6, 4], [4, 6]) is None
      True
    """
    if math.prod(one) != math.prod(other) or not math.prod(one):
        return None
    cuts = sorted({*itertools.accumulate(one, initial=1, func=_times), *itertools.accumulate(other, func=_times)})
    if any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    return [b // a for a, b in itertools.pairwise(cuts)]


def _times(a: int, b: int) -> int:
    return a * b


def divide_factors(sizes: Sequence[int], factors: Sequence[int]) -> list[list[int]]:
    """Return the factors of each size; together they are all factors, in their order."""
    left, result = list(factors), []
    for size in sizes:
        mine, product = [], 1
        while product < size:
            mine.append(left.pop(0))
            product *= mine[-1]
        result.append(mine)
    return result
