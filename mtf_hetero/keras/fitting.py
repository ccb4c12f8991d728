"""`fit`: trains a compiled Keras model over unequal devices. Keras's own loop runs it; the steps are taken here."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtf_hetero import placement as placing
from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError, WorkerClaim
from mtf_hetero.keras import callbacks as callbacks_lib
from mtf_hetero.keras import compiled, counting
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.built import Built
from mtf_hetero.keras.imported import Imported
from mtf_hetero.keras.program import NotBuiltError
from mtf_hetero.keras.registered import Builder


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    epochs: int = 1,
    batch_size: int | None = None,
    validation_data: Any = None,
    callbacks: Any = None,
    devices: str | Sequence[str] | None = None,
    workers: str | Sequence[str] | None = None,
    layout: Any = "auto",
    list_speed: Any = None,
    measure_seconds: float | None = None,
    **options: Any,
) -> Any:
    """Trains a compiled Keras model on devices of unequal speed: `model.fit`, divided.

    Keras's own loop, data, losses, metrics, callbacks and rules of optimizers are used, and what they compute does not
    depend on the layout. When an epoch ends, before callbacks are called, the model has its weights, and so it has
    afterwards; so have the moving averages and the optimizer's variables.

    Args:
      model: a keras.Model that `mtf_hetero.keras.build` takes, compiled.
      x: as of model.fit: arrays, a tf.data.Dataset, a keras.utils.PyDataset, a generator; or a tuple (x, y) or
        (x, y, sample_weight) of arrays.
      y: targets, where `x` are inputs alone.
      epochs: as of model.fit.
      batch_size: of all devices together, as of model.fit.
      validation_data: as of model.fit.
      callbacks: keras.callbacks. They read the weights of the present step, and what they write is used in the next;
        one that overrides a batch's hook has all weights brought to the model for each batch.
      devices: "gpu:0", "cpu:0", "worker:1/gpu:0", one per processor. None: all GPUs, else "cpu:0"; of workers, all.
      workers: "host:port,host:port" of `mtf_hetero.worker` on other machines; None: none.
      layout: "auto": planned for the devices as they are measured; "batch", "filters" or another name of
        mtf_hetero.layouts; rules such as "conv/filters:all"; a Layout; a Plan, or the path of one, "plan.json".
      list_speed: of a named layout or rules, one number per device, [70, 25, 5] or "70,25,5"; None: they are alike;
        "auto": measured, divided as is fastest, and left to one device where that is faster still.
      measure_seconds: that "auto" may take to measure, plan and try before the first step; None: 30.
      **options: the others that model.fit takes: verbose, shuffle, class_weight, sample_weight, validation_split,
        validation_freq, validation_steps, validation_batch_size, initial_epoch, steps_per_epoch.

    Returns:
      keras.callbacks.History.

    Raises:
      ValueError: what does not fit together, in one line.
      NotImplementedError: a layer, optimizer or option that there is not, by name.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost; the model has the weights of the last epoch's end.

    Example:
      >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
      >>> history = mtf_hetero.keras.fit(model, (images, labels), epochs=5, devices=["gpu:0", "gpu:1"])
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"model is a {type(model).__name__}; give a keras.Model that is compiled")
    builder = _builder_of(model)
    layout = placing.convert_to_layout(layout, list_speed)
    placing.check_measure_seconds(measure_seconds, layout, list_speed)
    cluster = placing.cluster_of(devices, workers, layout)
    if x is None:
        raise ValueError("x is None; give the data, as for model.fit")
    if y is None and isinstance(x, tuple):
        x, y, options["sample_weight"] = _unpacked(x, options.get("sample_weight"))
    verbose = options.get("verbose", "auto")
    steps = counting.steps_of(x, epochs=epochs, batch_size=batch_size, options=options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
        place = _Placing(layout, list_speed, cluster, progress=verbose != 0, seconds=measure_seconds, steps=steps)
        training = _Training(model, builder, place, stack)
        around = training.before_callbacks, training.after_callbacks
        callbacks = stack.enter_context(callbacks_lib.surrounded(callbacks, *around))
        with _in_place_of_keras(model, training):
            try:
                return model.fit(
                    x,
                    y,
                    epochs=epochs,
                    batch_size=batch_size,
                    validation_data=validation_data,
                    callbacks=callbacks,
                    **options,
                )
            except BaseException as error:
                training.rescue(error)
                raise


def _builder_of(model: Any) -> Builder | None:
    """Return the Builder of a model; None if the model has a part that is known by its own step alone.

    Raises:
      ValueError: it is not compiled, or without a loss.
      NotImplementedError: Keras would not run `train_step`.
    """
    compiled.check_compiled(model)
    try:
        compiled.check(model)
        builder = Builder(model, starts=False)
    except NotImplementedError as reason:
        _log_import(reason)
        return None
    compiled.check_loss(model)
    return builder


def _log_import(reason: NotImplementedError) -> None:
    tf.logging.info("%s; so the model's own step is imported", reason)


def _unpacked(data: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is not None and sample_weight is not None:
        raise ValueError("both sample_weight and the data have weights; give only one of them")
    return x, y, sample_weight if weights is None else weights


@contextlib.contextmanager
def _in_place_of_keras(model: Any, training: "_Training") -> Iterator[None]:
    """Has Keras's loop take the steps of `training`."""
    before = model.train_function, model.test_function
    model.train_function, model.test_function = training.train, training.test
    try:
        yield
    finally:
        model.train_function, model.test_function = before


@dataclasses.dataclass(frozen=True, eq=False)
class _Placing:
    """What the user said of where the model is to be trained."""

    layout: Any
    list_speed: Any
    cluster: Any
    progress: bool
    seconds: float | None
    steps: int | None

    def __call__(self, build: Callable[[], Any]) -> placing.Placement:
        announces = self.progress and keras.config.is_interactive_logging_enabled()
        limits = {"progress": self.progress, "announces": announces, "seconds": self.seconds, "steps": self.steps}
        return placing.place(self.layout, self.list_speed, self.cluster, build, **limits)


class _Training:
    """Takes the steps and tests of Keras's loop on devices, which the first batch chooses.

    Args:
      model: the compiled keras.Model.
      builder: of the model; None if it cannot be built, and its own step is imported.
      place: from a function that builds a step to where the model lies.
      stack: where the session is entered.
    """

    def __init__(self, model: Any, builder: Builder | None, place: _Placing, stack: contextlib.ExitStack) -> None:
        self._model, self._builder, self._place, self._stack = model, builder, place, stack
        self._steps: Built | Imported | None = None
        self._is_given_back = True
        self._in_callbacks = False

    def train(self, iterator: Any) -> Any:
        """What Keras calls its train function: steps of the next batches; returns the logs."""
        return self._for_each(iterator, self._train)

    def test(self, iterator: Any) -> Any:
        """What Keras calls its test function."""
        return self._for_each(iterator, self._test)

    def _for_each(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
        batches = iter(iterator)
        first = next(batches, None)
        if first is None:
            if self._steps is None:
                raise ValueError(f"the data of model {self._model.name!r} are empty; give at least one batch")
            raise StopIteration  # as of the iterator: Keras ends the epoch
        logs = take(_present(first))
        for _ in range(self._model.steps_per_execution - 1):
            try:
                data = next(batches)
            except StopIteration:
                break
            logs = take(_present(data))
        return logs

    def _train(self, data: Any) -> Any:
        steps = self._ready(data)
        self._is_given_back = False
        logs = steps.train(data)
        if self._in_callbacks:  # a callback trains, and may look at the weights next
            self.give_back()
        return logs

    def _test(self, data: Any) -> Any:
        steps = self._ready(data)
        self._is_given_back = self._is_given_back and not steps.tests_write
        return steps.test(data)

    def _ready(self, data: Any) -> "Built | Imported":
        """Return the steps; within a callback they first take over what the callback changed so far."""
        if self._steps is None:
            self._steps = self._stack.enter_context(self._open(data))
        elif self._in_callbacks:
            self._steps.take_changed()
        return self._steps

    def _open(self, data: Any) -> "Built | Imported":
        if self._builder is not None:
            try:
                return Built(self._builder, self._place, data)
            except NotBuiltError as reason:
                _log_import(reason)
        return Imported(self._model, self._place, data)

    def before_callbacks(self) -> None:
        """Gives the model its weights, for callbacks to look at and to change."""
        self.give_back()
        self._in_callbacks = True

    def after_callbacks(self) -> None:
        """Takes over what callbacks changed in the model."""
        self._in_callbacks = False
        if self._steps is not None:
            self._steps.take_changed()

    def give_back(self) -> None:
        """Gives the model its weights."""
        if self._steps is not None and not self._is_given_back:
            self._steps.give_back()
            self._is_given_back = True

    def rescue(self, error: BaseException) -> None:
        """Gives the model the weights of the last step of an epoch that was broken off, unless they are lost."""
        if self._steps is None or self._is_given_back:
            return
        if not isinstance(error, UnreachableWorkerError):
            with contextlib.suppress(Exception):
                self.give_back()
                return
        self._steps.forget_steps()


def _present(data: Any) -> Any:
    """Return a batch with None for what it lacks."""
    return keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
