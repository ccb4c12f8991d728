"""Input of a step that is on its devices before the step begins: fed or read by the workers while another runs."""

import concurrent.futures
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import threads
from mtf_hetero._support.ops import cut, reshape
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.data.batches import Batch
from mtf_hetero.data.cutting import Loader
from mtf_hetero.data.laid_out import host_cpu
from mtf_hetero.data.stored import Piece, Stored
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.training.runtime import Run, Runtime

_Keys = concurrent.futures.Future[list[int]]
_Pieces = dict[Stored, Iterator[Piece]]  # of arrays that are still to be sent in a session
_HERE = "/cpu:0"  # where it is fed
_ASK_SECONDS = 0.5  # between two looks whether the worker that a batch waits for was lost
_END_SECONDS = 5.0  # for the end of a call, which takes less unless a worker was lost
_WORTH_TELLING = 2**20  # bytes of a batch: 8 ms at 1 Gbit/s


class _Box(NamedTuple):
    """A processor's part of a component: of the examples from `first` to `end`, a box.

    Args:
      first: an example.
      end: the example after the last one.
      shape: of these examples' tensor, in the dimensions of the mtf.Tensor.
      begin: of the box in it.
      size: of the box.
    """

    first: int
    end: int
    shape: list[int]
    begin: list[int]
    size: list[int]


class _Way(NamedTuple):
    """The operations by which one batch of a call gets to the processors.

    Args:
      key: placeholder for its number.
      wholes: placeholders for its components.
      put: sends each processor its slices of them.
      fed: placeholders for what the workers need to load it.
      load: has them load it; None: they do not.
      samples: {CPU of a host: an example, and its components there}.
    """

    key: tf.Tensor
    wholes: Mapping[int, tf.Tensor]
    put: tf.Operation
    fed: Sequence[tf.Tensor]
    load: tf.Operation | None
    samples: Mapping[str, tuple[int, list[tf.Tensor]]]


class Stage:
    """Has the slices of a batch on the processors, under a number, until the step takes them.

    The operations are made in TensorFlow's default graph.

    Args:
      batch: of the kind.
      tensors: {number of a component: its mtf.Tensor, whose first dimensions are the examples'}.
      mesh_impl: of the step's mesh.

    Attributes:
      key: placeholder for the number of the batch that the step takes.
      nothing: an operation that does nothing.
      slices: {number of a component: LaidOutTensor} of the batch whose number is fed.
      loads: whether the workers make what they need of what is fed; else they are fed what they need.
    """

    def __init__(self, batch: Batch, tensors: Mapping[int, mtf.Tensor], mesh_impl: UnevenMeshImpl) -> None:
        self._tensors, self._mesh_impl = tensors, mesh_impl
        self._name = tf.get_default_graph().unique_name("stage")
        with tf.device(_HERE):
            self.key, self.nothing = tf.placeholder(tf.int64, []), tf.no_op()
        self.slices = self._take()
        self._boxes = [
            {number: self._box(tensor.shape, pnum, batch.examples) for number, tensor in tensors.items()}
            for pnum in range(mesh_impl.size)
        ]
        self._hosts = self._ranges(self._boxes)
        overlaps = any(a[1] > b[0] for a, b in itertools.pairwise(sorted(self._hosts.values())))
        # two workers would draw other numbers
        self.loads = batch.loader is not None and not (batch.loader.draws and overlaps)
        self._ways: list[_Way] = []
        self.make_room([batch])

    def make_room(self, batches: Sequence[Batch]) -> None:
        """Make the operations that load so many batches of the kind in one call, unless they are there."""
        with self.key.graph.as_default():
            for batch in batches[len(self._ways) :]:
                with tf.device(_HERE):
                    key = tf.placeholder(tf.int64, [])
                ways = *self._feed_slices(batch, key), [], None, {}
                if self.loads and batch.loader is not None:
                    ways = *ways[:2], *self._load_slices(batch, batch.loader, key)
                self._ways.append(_Way(key, *ways))

    def _box(self, shape: mtf.Shape, pnum: int, examples: int) -> _Box:
        """Return a processor's part: no more examples than it needs, if it has all of the later parts of their axis.

        Args:
          shape: of the whole tensor, whose first dimensions are the axis of the examples.
          pnum: number of the processor.
          examples: in all.
        """
        begin, size = self._mesh_impl.slice_begin(shape, pnum), self._mesh_impl.slice_shape(shape, pnum)
        whole, axis, inner = shape.to_integer_list, 0, 1
        while inner < examples:
            inner *= whole[axis]
            axis += 1
        if axis == 0 or size[1:axis] != whole[1:axis]:
            return _Box(0, examples, whole, begin, size)
        inner //= whole[0]
        return _Box(begin[0] * inner, (begin[0] + size[0]) * inner, [size[0], *whole[1:]], [0, *begin[1:]], size)

    def _take(self) -> dict[int, LaidOutTensor]:
        """Make the operations that take a batch."""
        taken: dict[int, list[tf.Tensor]] = {number: [] for number in self._tensors}
        for pnum, device in enumerate(self._mesh_impl.devices):
            with tf.device(device):
                found = tf.raw_ops.MapUnstage(
                    key=self.key,
                    indices=list(range(len(self._tensors))),
                    dtypes=[tensor.dtype for tensor in self._tensors.values()],
                    shared_name=f"{self._name}_{pnum}",
                )
            for (number, tensor), slice_ in zip(self._tensors.items(), found, strict=True):
                slice_.set_shape(self._mesh_impl.slice_shape(tensor.shape, pnum))
                taken[number].append(slice_)
        return {number: LaidOutTensor(slices) for number, slices in taken.items()}

    def _give(self, slices: Sequence[Mapping[int, tf.Tensor]], key: tf.Tensor) -> tf.Operation:
        """Make the operation that puts each processor's slices where it takes them."""
        given = []
        for pnum, (device, mine) in enumerate(zip(self._mesh_impl.devices, slices, strict=True)):
            with tf.device(device):
                op = tf.raw_ops.MapStage(
                    key=key,
                    indices=list(range(len(mine))),
                    values=list(mine.values()),
                    dtypes=[tensor.dtype for tensor in mine.values()],
                    shared_name=f"{self._name}_{pnum}",
                )
                given.append(op)
        return tf.group(given)

    def _feed_slices(self, batch: Batch, key: tf.Tensor) -> tuple[dict[int, tf.Tensor], tf.Operation]:
        """Make the operations that cut the components here, and send each processor its slices."""
        slices: list[dict[int, tf.Tensor]] = [{} for _ in self._mesh_impl.devices]
        wholes = {}
        parts = tf.nest.flatten(batch.parts())
        with tf.device(_HERE):
            for number, tensor in self._tensors.items():
                wholes[number] = tf.placeholder(parts[number].dtype, parts[number].shape)
                whole = reshape(wholes[number], tensor.shape.to_integer_list)
                for mine, cut_here in zip(slices, self._mesh_impl.make_slices(whole, tensor.shape), strict=True):
                    mine[number] = cut_here
        return wholes, self._give(slices, key)

    def _ranges(self, boxes: Sequence[Mapping[int, _Box]]) -> dict[str, tuple[int, int]]:
        """Return {CPU of a host: the first example that its processors need, and the one after the last}; not none."""
        ranges: dict[str, tuple[int, int]] = {}
        for device, mine in zip(self._mesh_impl.devices, boxes, strict=True):
            for box in mine.values():
                if box.end > box.first:
                    first, end = ranges.get(host_cpu(device), (box.first, box.end))
                    ranges[host_cpu(device)] = min(first, box.first), max(end, box.end)
        return ranges

    def _load_slices(
        self, batch: Batch, loader: Loader, key: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Operation, dict[str, tuple[int, list[tf.Tensor]]]]:
        """Make the operations by which each host loads the examples that its processors need.

        Returns:
          Placeholders for what is fed; the operation; {CPU of a host: an example, and its components there}.
        """
        loaded, samples = {}, {}
        with tf.device(_HERE):
            fed = [tf.placeholder(array.dtype, array.shape) for array in batch.fed]
        for host, (first, end) in self._hosts.items():
            with tf.device(_HERE):
                rows = [cut(x, [first, *[0] * (x.shape.rank - 1)], [end - first, *x.shape.as_list()[1:]]) for x in fed]
            with tf.device(host):
                loaded[host] = loader(rows, host)
                samples[host] = first, [loaded[host][number][0] for number in self._tensors]
        slices: list[dict[int, tf.Tensor]] = []
        for device, its_boxes in zip(self._mesh_impl.devices, self._boxes, strict=True):
            host, mine = host_cpu(device), {}
            with tf.device(host):
                for number, box in its_boxes.items():
                    if box.end == box.first:
                        mine[number] = tf.zeros(box.size, self._tensors[number].dtype)
                        continue
                    whole, first = loaded[host][number], self._hosts[host][0]
                    rows = cut(
                        whole,
                        [box.first - first, *[0] * (whole.shape.rank - 1)],
                        [box.end - box.first, *whole.shape.as_list()[1:]],
                    )
                    mine[number] = cut(reshape(rows, box.shape), box.begin, box.size)
            slices.append(mine)
        return fed, self._give(slices, key), samples

    def load(self, batches: Mapping[int, Batch], run: Run, *, compares: bool) -> str:
        """Have the workers load batches.

        Args:
          batches: {number: batch}.
          run: runs operations in the session.
          compares: whether to compare one example of each worker with what this process makes of it.

        Returns:
          What is different; "" if nothing is.
        """
        feed: dict[tf.Tensor, object] = {}
        for way, (key, batch) in zip(self._ways, batches.items()):
            feed |= {way.key: key, **dict(zip(way.fed, batch.fed, strict=True))}
        samples = self._ways[0].samples if compares else {}
        loads = [way.load for way in self._ways[: len(batches)]]
        _, found = run((loads, {host: x for host, (_, x) in samples.items()}), feed)
        if compares:
            batch = next(iter(batches.values()))
            assert batch.loader is not None
            for host, (number, _) in samples.items():
                try:
                    own = batch.loader.load_here([array[number : number + 1] for array in batch.fed])
                except tf.errors.NotFoundError:  # the files are on the workers alone
                    break
                pairs = zip((own[component][0] for component in self._tensors), found[host], strict=True)
                if not batch.loader.draws and not all(_are_alike(here, there) for here, there in pairs):
                    return f"{shorten(host)} reads another example than this process under the same name"
        return ""

    def put(self, batches: Mapping[int, Batch], run: Run) -> None:
        """Feed the workers batches, {number: batch}."""
        feed: dict[tf.Tensor, object] = {}
        for way, (key, batch) in zip(self._ways, batches.items()):
            values = batch.values()
            feed |= {way.key: key, **{placeholder: values[number] for number, placeholder in way.wholes.items()}}
        run([way.put for way in self._ways[: len(batches)]], feed)


def _are_alike(here: np.ndarray, there: np.ndarray) -> bool:
    """Return whether two arrays differ by rounding alone: TensorFlow may compute `x / 255` as a product."""
    if not np.issubdtype(here.dtype, np.floating):
        return np.array_equal(here, there)
    return np.allclose(here, there, rtol=1e-3, atol=1e-3 * float(np.max(np.abs(here), initial=0.0)), equal_nan=True)


def _is_stored(stage: Stage, batch: Batch, run: Run, pieces: _Pieces) -> bool:
    """Return whether the workers have all arrays that they need; if not, send them another piece."""
    stored = None if batch.loader is None else batch.loader.stored
    if stored is None:
        return True
    if stored not in pieces:
        if not stored.pays(stage.key.graph):
            return False
        pieces[stored] = stored.pieces(stage.key.graph, sum(array.nbytes for array in batch.values()))
    piece = next(pieces[stored], None)
    if piece is not None:
        run(*piece)
    return piece is None


def _call_after(before: _Keys | None, load: Callable[[], list[int]]) -> list[int]:
    """Load batches after those before them: the next step needs those first."""
    if before is not None:
        concurrent.futures.wait([before])
    return load()


class Loads:
    """Loads batches on other threads while steps run, those of one call of steps in one call.

    They are daemon threads, because a load may wait for a lost worker for ever.

    Args:
      runtime: the session. Before it opens another one, `forget` what was loaded.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._keys = runtime, itertools.count()
        self._last: _Keys | None = None
        self._pending: dict[tuple[Stage, Batch], tuple[_Keys, int]] = {}  # and its place among those of a call
        self._compared: set[Loader] = set()
        self._told = {""}
        self._pieces: _Pieces = {}

    def begin(self, stage: Stage, batches: Iterable[Batch]) -> None:
        """Begin to load batches in one call, but for those of which that was begun."""
        new = [batch for batch in batches if (stage, batch) not in self._pending]
        if not new:
            return
        stage.make_room(new)
        load = functools.partial(self._load, stage, new, self._runtime.run_beside(), self._pieces)
        self._last = threads.begin(functools.partial(_call_after, self._last, load), "load")
        self._pending |= {(stage, batch): (self._last, number) for number, batch in enumerate(new)}

    def take(self, stage: Stage, batch: Batch, *, trains: bool) -> int:
        """Return the number under which a batch lies on the devices. The step must take it.

        Args:
          stage: of the step.
          batch: the batch.
          trains: whether the step changes variables, and waits for the batch as a step of training.

        Raises:
          UnreachableWorkerError: a worker was lost.
          tf.errors.OpError: this process cannot make the batch either.
        """
        is_ahead = (stage, batch) in self._pending
        self.begin(stage, [batch])
        began, (future, number) = time.monotonic(), self._pending.pop((stage, batch))
        while not concurrent.futures.wait([future], _ASK_SECONDS).done:
            self._runtime.run(stage.nothing)  # an error, if a worker was lost meanwhile
        with self._runtime.explaining_loss():
            key = future.result()[number]
        if trains and is_ahead:  # the first one of an epoch waits, however fast the workers read
            self._runtime.waited_seconds += time.monotonic() - began
        return key

    def forget(self, wait_seconds: float = 0.0) -> None:
        """Forget what was loaded: the session ends."""
        self._pending, self._pieces = {}, {}
        if self._last is not None:
            concurrent.futures.wait([self._last], wait_seconds)
            self._last = None

    def close(self) -> None:
        """Wait for the loads that were begun, unless they wait for a lost worker."""
        self.forget(_END_SECONDS)

    def _load(self, stage: Stage, batches: Sequence[Batch], run: Run, pieces: _Pieces) -> list[int]:
        """Load batches; `run` and `pieces` are those of the session for which that was begun, which may have ended."""
        batch, are_whole = batches[0], any(batch.is_whole for batch in batches)
        loader = batch.loader if stage.loads else None
        if loader and loader.is_on_workers and not are_whole and _is_stored(stage, batch, run, pieces):
            why = self._try_load(stage, loader, numbered := self._number(batches), run)
            if not why:
                return list(numbered)
            loader.is_on_workers = False  # for batches of other sizes, and on other workers, too
            tf.logging.warning(
                "the workers do not read their parts of the batches: %s; this process reads and sends them; put the "
                "same files at the same path on every worker",
                why,
            )
        elif batch.loader is None and batch.why not in self._told and batch.nbytes >= _WORTH_TELLING:
            self._told.add(batch.why)
            tf.logging.warning("this process makes the batches and sends them to the workers, because of %s", batch.why)
        stage.put(numbered := self._number(batches), run)
        return list(numbered)

    def _number(self, batches: Sequence[Batch]) -> dict[int, Batch]:
        return {next(self._keys): batch for batch in batches}

    def _try_load(self, stage: Stage, loader: Loader, batches: Mapping[int, Batch], run: Run) -> str:
        """Have the workers load batches; returns why they cannot, "" if they did."""
        try:
            why = stage.load(batches, run, compares=loader not in self._compared)
        except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError, tf.errors.PermissionDeniedError) as error:
            return shorten(str(error.message).splitlines()[0])
        self._compared.add(loader)
        return why
