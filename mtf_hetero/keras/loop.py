"""Keras's own loop, with its steps taken on devices: the functions that it calls for each batch."""

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.data.batches import Batches
from mtf_hetero.importer.divided import Divided
from mtf_hetero.importer.functions import divide
from mtf_hetero.importer.lowered import Lowered
from mtf_hetero.importer.verifying import Verification
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.epochs import Ahead, Left, Position, with_parts
from mtf_hetero.keras.imported import StandIn, find_own, find_scalars, find_traced, forget_traced, own_steps
from mtf_hetero.keras.joining import Joining
from mtf_hetero.keras.keeping import Keeper
from mtf_hetero.keras.looking import Watch
from mtf_hetero.keras.wrong_data import explain_wrong_data
from mtf_hetero.placement.placer import Placer
from mtf_hetero.training.steps import Changes

_NONE: Mapping = types.MappingProxyType({})
_LOSS = "a step of Keras; the model has the weights of the last complete epoch"


class Loop:
    """Takes the steps of Keras's loop on devices, which the first batch chooses.

    Metrics, and scalars of the optimizer, stay in this process. Batches are traced with the sizes that their
    specification leaves open, as in Keras: what its metrics of several outputs count depends on them.

    Args:
      model: the keras.Model.
      place: returns where the model lies.
      stack: closes the session at its end.
      changes: of the place that are possible; None: none.
      keeper: has the session of the last call, perhaps, and gets this one; None: the session ends with this call.
      verification: compares first steps; None: nothing is compared.
      joinings: {kind of step: decides how many of them one call takes}, of those between which nobody looks.
      epochs: passes over the data that are to come.
    """

    def __init__(
        self,
        model: keras.Model,
        place: Placer,
        stack: contextlib.ExitStack,
        changes: Changes | None = None,
        keeper: Keeper | None = None,
        verification: Verification | None = None,
        *,
        joinings: Mapping[str, Joining] = _NONE,
        epochs: int = 1,
    ) -> None:
        self._joinings, self._epochs = joinings, epochs
        self._position: Position | None = None
        self._ahead: Ahead | None = None  # batches to predict for
        self._ended: collections.deque[object] = collections.deque()  # results that Keras's loop has not seen
        self._ended_of: object = None  # the iterator of their batches
        self._left = Left()
        self._kind = ""  # of the last step
        self._model, self._place, self._stack, self._changes, self._keeper = model, place, stack, changes, keeper
        self._verification = verification
        self._divided: Divided | None = None
        self._is_kept = False
        self._functions: dict[str, Callable[..., object]] = {}  # Keras's own
        self._in_callbacks = False
        self._watch, self._is_given = Watch(self._look), False

    @contextlib.contextmanager
    def in_place_of_keras(self, *kinds: str) -> Iterator[None]:
        """Have Keras's loop take steps here, those of some kinds: "train", "test", "predict"."""
        self._traced = find_traced(self._model, kinds)
        self._traced.is_staged = self._place.has_stages
        names = [f"{kind}_function" for kind in kinds]
        before = [getattr(self._model, name) for name in names]
        self._functions = {kind: find_own(function) for kind, function in zip(kinds, before, strict=True)}
        if self._verification is not None:
            self._verification.compare_with(own_steps(self._model, self._functions))
        for name, kind in zip(names, kinds, strict=True):
            setattr(self._model, name, StandIn(getattr(self, kind), self._functions[kind]))
        is_on_workers = self._keeper is not None and bool(self._keeper.cluster.workers)

        def is_wanted() -> bool:
            return is_on_workers and not self._in_callbacks

        try:
            with with_parts(is_wanted, self._epochs, self._find_ahead, self._note_position):
                yield
            self.give_back()
            self._keep()
        except BaseException as error:
            self._watch.end()
            self._rescue(error)
            raise
        finally:
            for name, function in zip(names, before, strict=True):
                setattr(self._model, name, function)
            self._leave()
            self._left.free_all()

    def _leave(self) -> None:
        """Note that Keras is about to drop the iterator that it has, or has dropped it."""
        if self._position is not None:
            self._left.hold(self._kind, self._position, self._ahead)
        self._position = self._ahead = None

    def train(self, iterator: Iterable[object]) -> object:
        """Take steps on the next batches, unless that was done; returns the logs."""
        return self._next("train", iterator)

    def test(self, iterator: Iterable[object]) -> object:
        """Test the next batches, unless that was done; returns the logs."""
        return self._next("test", iterator)

    def predict(self, batches: list[object]) -> object:
        """Return the predictions for some batches, unless they were made with those of batches before."""
        joining, position, ahead = self._joinings.get("predict"), self._position, self._ahead
        if joining is None or position is None or ahead is None or self._in_callbacks or ahead.last is not batches[0]:
            outputs = self._take("predict", batches)
            return outputs[0] if len(outputs) == 1 else keras.tree.map_structure(lambda *x: tf.concat(x, 0), *outputs)
        if not self._ended:
            inputs = "predict", batches[0]
            count = joining.count(position.done, position.total, lambda: self._find_row(inputs, position))
            row = [*batches, *ahead.draw(count - 1)]
            self._ended.extend(joining.measure(lambda: self._take("predict", row)))
        return self._ended.popleft()

    def _note_position(self, position: Position) -> object:
        """Note where Keras's loop is; returns the iterator that its step gets."""
        if self._position is None or self._position.batches is not position.batches:
            self._leave()
        self._position = position
        if "predict" not in self._joinings:
            return position.batches
        if self._ahead is None or self._ahead.batches is not position.batches:
            self._ahead = Ahead(position.batches)
        return self._ahead

    def _find_ahead(self) -> int:
        """Return how many steps one call takes at present."""
        return max([self._model.steps_per_execution, *(joining.most for joining in self._joinings.values())])

    def _next(self, kind: str, iterator: Iterable[object]) -> object:
        """Return the logs of the next step, or of as many as Keras takes at once."""
        if not self._ended or self._ended_of is not iterator:
            self._ended_of, self._ended = iterator, collections.deque(self._take_next(kind, iterator))
        logs = self._ended.popleft()
        if not self._ended:
            self._ended_of = None  # or this would be the last reference to it
        if isinstance(logs, Exception):
            raise logs
        return logs

    def _take_next(self, kind: str, iterator: Iterable[object]) -> list[object]:
        """Take steps in one call: as many as Keras takes at once, or those that are joined.

        Returns:
          The logs for Keras, and perhaps an error of the data behind them.
        """
        batches, spec = iter(iterator), _present(getattr(iterator, "element_spec", None))
        first = next(batches, None)
        if first is None:
            if self._divided is None:
                raise ValueError(f"the data of model {self._model.name!r} are empty; give at least one batch")
            return [self._run_without_batch(kind, iterator)]
        count, joining, position = self._model.steps_per_execution, self._joinings.get(kind), self._position
        if self._in_callbacks or position is None or position.batches is not iterator:
            joining = None  # somebody else than Keras's loop takes the step
        elif joining is not None:
            count = joining.count(position.done, position.total, lambda: self._find_row((kind, first), position))
        row, broken = [first], []
        while len(row) < count and not broken:
            try:
                row.append(next(batches))
            except StopIteration:
                break
            except Exception as error:  # of the data, after steps that Keras takes
                broken.append(error)
        if joining is not None:
            return [*joining.measure(lambda: self._take(kind, row, spec)), *broken]
        logs = self._take(kind, row, spec)
        return broken or logs[-1:]

    def _find_row(self, inputs: tuple[str, object], position: Position) -> Lowered | None:
        """Return the step of a kind of inputs, if several of them may be one call."""
        inputs = inputs[0], _present(inputs[1])
        return self._divided.find(inputs) if self._divided is not None and position.runs_ahead() else None

    def _run_without_batch(self, kind: str, iterator: object) -> object:
        """Call Keras's own function at the end of the data, as Keras does unless it knows how many batches there are.

        TensorFlow runs operations in parallel. So updates that do not depend on the batch are made before it finds that
        there is none: of the optimizer's number of steps, for instance.

        Raises:
          StopIteration, tf.errors.OutOfRangeError: Keras ends the epoch.
        """
        if isinstance(iterator, Batches):
            iterator = iterator.exhausted()
        if not isinstance(iterator, tf.compat.v2.data.Iterator):
            raise StopIteration
        self.give_back()
        try:
            return self._functions[kind](iterator)
        finally:
            self.take_changed()

    def _take(self, kind: str, row: Sequence[object], spec: object = None) -> list[object]:
        """Take a step on each batch; within a callback they begin with what the callback has changed."""
        inputs = [(kind, _present(data)) for data in row]
        self._kind = kind
        self._left.free(kind)
        self._watch.end()
        self._traced.declared = (kind, spec) if spec else None
        try:
            if self._divided is None:
                self._divided = self._begin(*inputs[0])
            elif self._is_given:
                self.take_changed()
            with explain_wrong_data(self._divided.graph):
                results = self._divided.take(inputs)
        except NotImplementedError:
            forget_traced(self._model)
            raise
        if self._in_callbacks:
            self._begin_watch()
        return results

    def _begin(self, kind: str, data: object) -> Divided:
        """Return the step on devices, in the session of the last call if there is one."""
        inputs, lost = (kind, data), {}
        divided = None if self._keeper is None else self._keeper.take(self._traced, inputs)
        if divided is None:
            arguments = self._traced, self._place, inputs, self._changes, self._verification
            divided, lost = divide(*arguments, owner=f"model {self._model.name!r}", loss=_LOSS)
        elif self._verification is not None:
            divided.verification = self._verification.continue_from(divided.verification)
        self._kind = kind
        self._note_scalars()
        self._stack.callback(lambda: None if self._is_kept else divided.close())
        if self._changes is not None:
            outliving = divided.outliving(inputs, self._changes, lost=lost, began=self._note_scalars)
            self._stack.enter_context(outliving)
        return divided

    def _keep(self) -> None:
        """Keep the session for the next call, unless its devices may be others then."""
        has_moved = self._changes is not None and bool(self._changes.policy.log)
        if self._divided is not None and self._keeper is not None and not has_moved:
            self._is_kept = self._keeper.keep(self._traced, self._divided, self._kind)

    def give_to_callbacks(self) -> None:
        """Give the model its weights, for callbacks to look at and to change."""
        self._in_callbacks = self._is_given = True
        self.give_back()

    def before_callbacks(self) -> None:
        """Have the model get its weights as soon as a callback looks at one."""
        self._in_callbacks = True
        self._begin_watch()

    def after_callbacks(self) -> None:
        """Take over what callbacks changed in the model."""
        self._in_callbacks = False
        self._watch.end()
        if self._is_given:
            self.take_changed()
        self._is_given = False

    def _begin_watch(self) -> None:
        self._is_given = False
        if self._divided is not None:
            self._watch.begin(self._divided.variables)

    def _look(self) -> None:
        self._is_given = True
        self.give_back()

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Return {dimension: {device: its size}} of the dimensions that are split at present."""
        return {} if self._divided is None else self._divided.sizes

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        return "" if self._divided is None else self._divided.describe_speed()

    def take_changed(self) -> None:
        """Take over what was changed in the model since it was given its weights."""
        if self._divided is not None:
            self._divided.push_pulled()
            self._note_scalars()

    def give_back(self) -> None:
        """Give the model its weights."""
        if self._divided is not None:
            self._divided.pull()
            self._note_scalars()

    def _note_scalars(self) -> None:
        """Note the scalars of the optimizer that belong to the weights of the model, the number of steps among them."""
        self._scalars = [(variable, variable.numpy()) for variable in find_scalars(self._model)]

    def _rescue(self, error: BaseException) -> None:
        """Give the model the weights of the last step before an error; else the scalars of those that it has.

        These are of the last epoch's end. A worker was lost with the others, or several steps were under way at once.
        """
        if self._divided is None:
            return
        if not isinstance(error, UnreachableWorkerError) and not self._divided.runtime.is_torn:
            with contextlib.suppress(Exception):
                self.give_back()
                return
        for variable, value in self._scalars:
            variable.assign(value)


def _present(data: object) -> object:
    """Return a batch, or its specification, with None for what it lacks."""
    absent = tf.experimental.Optional, tf.OptionalSpec
    return keras.tree.map_structure(lambda x: None if isinstance(x, absent) else x, data)
