"""Keras's own loop, with its steps taken on devices: the functions that it calls for each batch."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.importer.divided import Place
from mtf_hetero.importer.verifying import Verification
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.course import Changes
from mtf_hetero.keras.imported import Imported, StandIn, find_own, find_traced, forget_traced, own_steps
from mtf_hetero.keras.keeping import Keeper


class Loop:
    """Takes the steps of Keras's loop on devices, which the first batch chooses.

    Args:
      model: the keras.Model.
      place: returns where the model lies, as for Divided.
      stack: closes the session at its end.
      changes: as of Imported.
      verification: of first steps.
      keeper: as of Imported.
    """

    def __init__(
        self,
        model: keras.Model,
        place: Place,
        stack: contextlib.ExitStack,
        changes: Changes | None = None,
        keeper: Keeper | None = None,
        verification: Verification | None = None,
    ) -> None:
        self._model, self._place, self._stack, self._changes, self._keeper = model, place, stack, changes, keeper
        self._verification = verification
        self._steps: Imported | None = None
        self._functions: dict[str, Callable[..., object]] = {}  # Keras's own
        self._in_callbacks = False

    @contextlib.contextmanager
    def in_place_of_keras(self, *kinds: str) -> Iterator[None]:
        """Have Keras's loop take steps here, those of some kinds: "train", "test", "predict"."""
        self._traced = find_traced(self._model, kinds)
        names = [f"{kind}_function" for kind in kinds]
        before = [getattr(self._model, name) for name in names]
        self._functions = {kind: find_own(function) for kind, function in zip(kinds, before, strict=True)}
        if self._verification is not None:
            self._verification.compare_with(own_steps(self._model, self._functions))
        for name, kind in zip(names, kinds, strict=True):
            setattr(self._model, name, StandIn(getattr(self, kind), self._functions[kind]))
        try:
            yield
            self.give_back()
            if self._steps is not None:
                self._steps.keep()
        except BaseException as error:
            self._rescue(error)
            raise
        finally:
            for name, function in zip(names, before, strict=True):
                setattr(self._model, name, function)

    def train(self, iterator: Iterable[object]) -> object:
        """Take steps on the next batches; returns the logs."""
        return self._next("train", iterator)

    def test(self, iterator: Iterable[object]) -> object:
        """Test the next batches; returns the logs."""
        return self._next("test", iterator)

    def predict(self, batches: list[object]) -> object:
        """Return the predictions for some batches."""
        outputs = [self._take("predict", data) for data in batches]
        return outputs[0] if len(outputs) == 1 else keras.tree.map_structure(lambda *x: tf.concat(x, 0), *outputs)

    def _next(self, kind: str, iterator: Iterable[object]) -> object:
        """Take as many steps as Keras takes at once."""
        batches, spec = iter(iterator), _present(getattr(iterator, "element_spec", None))
        first = next(batches, None)
        if first is None:
            if self._steps is None:
                raise ValueError(f"the data of model {self._model.name!r} are empty; give at least one batch")
            return self._run_without_batch(kind, iterator)
        logs = self._take(kind, first, spec)
        for _ in range(self._model.steps_per_execution - 1):
            try:
                data = next(batches)
            except StopIteration:
                break
            logs = self._take(kind, data, spec)
        return logs

    def _run_without_batch(self, kind: str, iterator: object) -> object:
        """Call Keras's own function at the end of the data, as Keras does unless it knows how many batches there are.

        TensorFlow runs operations in parallel. So updates that do not depend on the batch are made before it finds that
        there is none: of the optimizer's number of steps, for instance.

        Raises:
          StopIteration, tf.errors.OutOfRangeError: Keras ends the epoch.
        """
        if not isinstance(iterator, tf.compat.v2.data.Iterator):
            raise StopIteration
        self.give_back()
        try:
            return self._functions[kind](iterator)
        finally:
            self.take_changed()

    def _take(self, kind: str, data: object, spec: object = None) -> object:
        """Take a step; within a callback the model has its weights before it and afterwards."""
        data = _present(data)
        try:
            if self._steps is None:
                options = {"spec": spec, "changes": self._changes, "keeper": self._keeper}
                options["verification"] = self._verification
                steps = Imported(self._model, self._traced, self._place, kind, data, **options)
                self._steps = self._stack.enter_context(steps)
            elif self._in_callbacks:
                self._steps.take_changed()
            result = self._steps(kind, data, spec)
        except NotImplementedError:
            forget_traced(self._model)
            raise
        if self._in_callbacks:
            self.give_back()
        return result

    def before_callbacks(self) -> None:
        """Give the model its weights, for callbacks to look at and to change."""
        self.give_back()
        self._in_callbacks = True

    def after_callbacks(self) -> None:
        """Take over what callbacks changed in the model."""
        self._in_callbacks = False
        self.take_changed()

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Return {dimension: {device: its size}} of the dimensions that are split at present."""
        return {} if self._steps is None else self._steps.sizes

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        return "" if self._steps is None else self._steps.describe_speed()

    def take_changed(self) -> None:
        """Take over what was changed in the model since it was given its weights."""
        if self._steps is not None:
            self._steps.take_changed()

    def give_back(self) -> None:
        """Give the model its weights."""
        if self._steps is not None:
            self._steps.give_back()

    def _rescue(self, error: BaseException) -> None:
        """Give the model the weights of the last step before an error, unless they are lost."""
        if self._steps is None:
            return
        if not isinstance(error, UnreachableWorkerError):
            with contextlib.suppress(Exception):
                self.give_back()
                return
        self._steps.forget_steps()


def _present(data: object) -> object:
    """Return a batch, or its specification, with None for what it lacks."""
    absent = tf.experimental.Optional, tf.OptionalSpec
    return keras.tree.map_structure(lambda x: None if isinstance(x, absent) else x, data)
