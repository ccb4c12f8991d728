"""Infers the dimensions of all values of a program, from the signatures of its operations."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType

from mtf_hetero._support import facts
from mtf_hetero.importer import pieces, table
from mtf_hetero.importer.naming import Names, Product
from mtf_hetero.importer.program import Operation, Program, Value, within
from mtf_hetero.importer.signature import Signature
from mtf_hetero.importer.stages import assign_stages

BATCH = "batch"
_SPACE: Mapping[str, str] = {"o": "depth", "p": "height", "q": "width"}  # of windows
Axes = Sequence[Sequence[tuple[str, int]]]  # name and size of each dimension of each axis


def infer(
    program: Program,
    known: Mapping[str, Axes] = MappingProxyType({}),
    given: Sequence[Axes] = (),
    alike: Sequence[tuple[Value, Value]] = (),
) -> Names:
    """Return the names of all values of a program.

    Args:
      program: the program; what joins and parts pieces of an axis is replaced.
      known: {name of a variable: its dimensions}, of an earlier program with the same variables.
      given: the dimensions of the first feeds.
      alike: pairs of values that have the same dimensions.

    Example:
      images [batch:32, 784] @ weights [in:784, out:60]: the product unifies 784 with `in`, and its result is
      [batch:32, out:60].
    """
    names = Names()
    batch = _enter_inputs(names, program, given)
    for variable in program.variables:
        if variable.before.name in known:
            names.fix(variable.before, known[variable.before.name])
        else:
            _enter(names, variable.before)
    learner = _Learner(names, {v.before: v.before.name.rpartition("/")[0] for v in program.variables}, batch)
    program.operations = [part for op in program.operations for part in learner.regroup(op)]
    for one, other in [*((v.before, v.after) for v in program.variables), *alike]:
        _unify(names, one, other)
    for value in _values(program):
        _enter(names, value)
    if batch is not None and not given:  # the name of a dense layer's batch may have met it in spite of all
        names.rename(names.axes(batch)[0], BATCH)
    if batch is not None and program.is_staged:
        _name_stages(names, program, batch)
    return names


def _name_stages(names: Names, program: Program, batch: Value) -> None:
    """Give the batch a name of its own in each stage after the first; what else is fed has that of its first reader."""
    dims = {*names.axes(batch)[0], *names.enclosed}

    def has_batch(value: Value) -> bool:
        return not all(dims.isdisjoint(axis) for axis in _axes(names, value))

    stages, fed = assign_stages(program, has_batch), set(program.inputs)
    done = {batch.home, *(variable.before.home for variable in program.variables)}  # these keep their names
    for op, stage in stages.items():
        for each in within([op]):
            names.stage(each, dims, stage)
            first = [value for value in each.inputs if value.array is not None or value in fed]
            inner = [value for block in each.blocks for value in block.parameters]
            for value in (*first, *inner, *each.outputs):
                if value.home not in done:
                    names.stage(value.home, dims, stage)
                    done.add(value.home)


def _enter_inputs(names: Names, program: Program, given: Sequence[Axes]) -> Value | None:
    """Enter what is fed; returns the first value that has axes, whose first dimension is the batch."""
    for feed, axes in zip(program.feeds, given, strict=False):
        names.fix(feed, axes)
    size = next((feed.shape[:1] for feed in program.feeds if feed.shape), None)  # of texts too, which no device has
    batch = next((value for value in program.inputs if value.shape[:1] == size), None)
    for feed in program.inputs[len(given) :]:
        labels = [f"{feed.name}/{axis}" for axis in range(len(feed.shape))]
        if feed is batch:
            labels[0] = BATCH
        names.enter(feed, feed.shape, labels)
    _join_batch(names, [*program.feeds[: program.examples], *program.prepared], batch)
    return batch


def _join_batch(names: Names, values: Sequence[Value], batch: Value | None) -> None:
    """Unify the first axes of values with the batch where they have its size."""
    for value in values:
        if batch is not None and value.shape[:1] == batch.shape[:1]:
            names.unify(names.axes(batch)[0], _axes(names, value)[0])


def _values(program: Program) -> Iterable[Value]:
    for op in within(program.operations):
        for block in op.blocks:
            yield from [*block.parameters, *block.results]
        yield from op.inputs
        yield from op.outputs
    yield from program.fetches
    yield from (variable.after for variable in program.variables)


def _enter(names: Names, value: Value) -> None:
    home = value.home
    if not names.has(home):
        shape = home.shape or ()
        names.enter(home, shape, [f"{home.name or 'constant'}/{axis}" for axis in range(len(shape))])


def _axes(names: Names, value: Value) -> list[Product]:
    _enter(names, value)
    return names.axes(value.home)


def _new(names: Names, op: Operation, letter: Hashable, size: int) -> Product:
    """Return a new dimension of an operation."""
    names.enter((op, letter), (size,), [f"{op.outputs[0].name}/{letter}"])
    return names.axes((op, letter))[0]


class _Learner:
    """Unifies the axes that operations say are alike.

    The batch of images has another name from the first dense layer on, so that a layout may split the images there and
    the units here.
    """

    def __init__(self, names: Names, layers: dict[Value, str], batch: Value | None) -> None:
        self._names, self._layers, self._batch = names, layers, batch
        self._kernels: dict[
            Hashable, dict[Hashable, Product]
        ] = {}  # {kernel and shapes of a convolution: axis of each letter}
        self._of_images: set[Product] = set()  # batches
        self._cuts: dict[Value, tuple[Product, Product]] = {}  # {kernel of a dense layer: batch before, and after it}

    def regroup(self, op: Operation) -> list[Operation]:
        """Learn of an operation; returns those that replace it."""
        parts = pieces.regroup(op, self._sizes_of_examples(op)) if op.type in pieces.RULES else [op]
        for part in parts:
            self.learn(part)
        if op.is_stateful or table.is_drawn(op):  # noise for each example, which may meet none of the inputs
            _join_batch(self._names, op.outputs[:1], self._batch)
        return parts

    def _sizes_of_examples(self, op: Operation) -> list[int]:
        """Return the sizes of the dimensions of the first axis that an operation reads, if the last one is a batch."""
        data = op.inputs[{"Split": 1, "StridedSliceGrad": 4}.get(op.type, 0)]
        axis = _axes(self._names, data)[0] if data.shape else ()
        of_batch = _axes(self._names, self._batch)[0] if self._batch else ()
        examples = {*of_batch[-1:], *self._names.enclosed}
        return [self._names.size(d) for d in axis] if examples.intersection(axis[-1:]) else []

    def learn(self, op: Operation) -> None:
        """Unify the axes that an operation says are alike."""
        if op.blocks:
            self._learn_blocks(op)
        elif any(value.elements is not None for value in (*op.inputs, *op.outputs)):
            _learn_list(self._names, op)
        else:
            self._learn_single(op)

    def _learn_blocks(self, op: Operation) -> None:
        """Unify what enters and leaves a loop, a turn of it, or a branch, and learn of the operations within."""
        parameters = op.blocks[-1].parameters
        for start, parameter in zip(op.inputs, parameters, strict=False):
            _unify(self._names, parameter, start)
        for block in op.blocks:
            for inner in block.operations:
                self.learn(inner)
        ends = [op.blocks[1].results] if op.type == "While" else [block.results for block in op.blocks]
        for first, *others in zip(op.outputs, *([parameters] if op.type == "While" else []), *ends, strict=True):
            for other in others:
                _unify(self._names, first, other)

    def _learn_single(self, op: Operation) -> None:
        if op.type in facts.REGROUPING:
            x, y = (sum(_axes(self._names, value), ()) for value in (op.inputs[0], op.outputs[0]))
            self._names.unify(x, y)
        if (op.type in facts.REGROUPING or op.type == "Cast") and op.inputs[0] in self._layers:
            self._layers[op.outputs[0]] = self._layers[op.inputs[0]]
        signature = table.find_signature(op)
        if signature is None or op.type in facts.REGROUPING:
            return
        apart = self._cut(op, signature) if op.type in facts.PRODUCTS else frozenset()
        first = _unify_letters(self._names, op, signature, apart)
        if op.type in facts.CONVOLUTIONS | facts.DEPTHWISE_CONVOLUTIONS:
            self._join_gradient(op, first)
        if signature.kin:
            self._name_images(op, signature, first)

    def _name_images(self, op: Operation, signature: Signature, first: Mapping[Hashable, Product]) -> None:
        layer = next(filter(None, map(self._layers.get, op.inputs)), "") or op.outputs[0].name.rpartition("/")[0]
        for _, letter in signature.kin:
            if space := _SPACE.get(str(letter).lower()):
                self._names.prefer(first.get(letter, ()), f"{layer}/{space}")
        self._of_images.add(first.get("n", ()))

    def _join_gradient(self, op: Operation, first: dict[Hashable, Product]) -> None:
        """Unify the axes of a convolution with those of its gradient to the image, which has the same kernel."""
        kernel = op.inputs[1]
        images = {v.shape for v in (*op.inputs, *op.outputs) if v is not kernel and len(v.shape) == len(kernel.shape)}
        before = self._kernels.setdefault((kernel, frozenset(images)), first)
        for letter in before.keys() & first.keys():
            self._names.unify(before[letter], first[letter])

    def _cut(self, op: Operation, signature: Signature) -> frozenset[Hashable]:
        """Give the batch of images a new name at a dense layer; returns the letters that then have two names."""
        axes = [dict(zip(letters, _axes(self._names, v), strict=True)) for v, letters in signature.sides(op)]
        *operands, result = axes
        kernels = [number for number, value in enumerate(op.inputs) if value in self._layers]
        if len(operands) != 2:
            return frozenset()
        if len(kernels) != 1:
            resolve = self._names.resolve
            cuts = [set(map(resolve, cut)) for cut in self._cuts.values()]
            return frozenset(a for a in signature.summed if {resolve(x.get(a, ())) for x in operands} in cuts)
        kernel, x = operands[kernels[0]], operands[1 - kernels[0]]
        free = [letter for letter in x if letter in result and letter not in kernel and letter is not None]
        return frozenset(a for a in free if self._is_cut(op.inputs[kernels[0]], x[a], result[a]))

    def _is_cut(self, kernel: Value, before: Product, after: Product) -> bool:
        """Return whether a dense layer, or a gradient of one, has two names for a batch."""
        names, before = self._names, self._names.resolve(before)
        if kernel in self._cuts:
            cut = [names.resolve(product) for product in self._cuts[kernel]]
            if before in cut:
                names.unify(cut[1 - cut.index(before)], after)
                return True
        elif len(before) == 1 and before in map(names.resolve, self._of_images):  # joined batches keep their parts
            self._cuts[kernel] = before, after
            names.enclose(after, f"{self._layers[kernel]}/{BATCH}")
            return True
        return False


def _unify_letters(
    names: Names, op: Operation, signature: Signature, apart: Collection[Hashable]
) -> dict[Hashable, Product]:
    """Unify the axes that have the same letter; returns the first axis of each letter."""
    first: dict[Hashable, Product] = {}
    for value, letters in signature.sides(op):
        for number, letter in enumerate(letters):
            if letter is None:
                continue
            axis = _axes(names, value)[number]
            if isinstance(letter, tuple):
                for part in letter:
                    first.setdefault(part, _new(names, op, part, signature.sizes[part]))
                names.unify(sum((first[part] for part in letter), ()), axis)
            elif letter in first and letter not in apart:
                if not names.unify(first[letter], axis):
                    first[letter] = names.elder(first[letter], axis)
            else:
                first[letter] = axis
    return first


def _unify(names: Names, one: Value, other: Value) -> None:
    for a, b in zip(_axes(names, one), _axes(names, other), strict=True):
        names.unify(a, b)


def _learn_list(names: Names, op: Operation) -> None:
    """Unify the axes of what is put into a TensorList, or taken from it, with those of its elements."""
    home = next(value for value in (*op.inputs, *op.outputs) if value.elements is not None)
    axes = _axes(names, home)
    for value in (*op.inputs, *op.outputs):
        if value.elements is None and value.shape and len(value.shape) >= len(axes):
            for a, b in zip(axes, _axes(names, value)[len(value.shape) - len(axes) :], strict=True):
                names.unify(a, b)
