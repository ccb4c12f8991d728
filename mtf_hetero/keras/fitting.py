"""`fit`: trains a compiled Keras model over unequal devices. Keras's own loop runs it; the steps are taken here."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtf_hetero import placement as placing
from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError, WorkerClaim
from mtf_hetero.keras import callbacks as callbacks_lib
from mtf_hetero.keras import compiled, counting, program
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.builder import Builder
from mtf_hetero.keras.program import Batch
from mtf_hetero.keras.session import Result, Session


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
    compiled.check(model)
    builder = Builder(model, starts=False)
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
        training = _Training(builder, place, stack)
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
    """Takes the steps and tests of Keras's loop in a session, which the first batch opens.

    Args:
      builder: of the model.
      place: from a function that builds a step to where the model lies.
      stack: where the session is entered.
    """

    def __init__(self, builder: Builder, place: _Placing, stack: contextlib.ExitStack) -> None:
        self._builder, self._model, self._place, self._stack = builder, builder.model, place, stack
        self._session: Session | None = None
        self._is_given_back = True
        self._in_callbacks = False
        self._has_metrics = compiled.has_metrics(self._model)
        self._measure = self._taken_in
        if not self._model.run_eagerly:
            self._measure = tf.compat.v2.function(self._taken_in, autograph=False, reduce_retracing=True)

    def train(self, iterator: Any) -> Any:
        """What Keras calls its train function: steps of the next batches; returns the logs."""
        return self._for_each(iterator, self._train)

    def test(self, iterator: Any) -> Any:
        """What Keras calls its test function."""
        return self._for_each(iterator, self._test)

    def _for_each(self, iterator: Any, take: Callable[[Batch], Any]) -> Any:
        batches = iter(iterator)
        first = next(batches, None)
        if first is None:
            if self._session is None:
                raise ValueError(f"the data of model {self._model.name!r} are empty; give at least one batch")
            raise StopIteration  # as of the iterator: Keras ends the epoch
        logs = take(self._batch(first))
        for _ in range(self._model.steps_per_execution - 1):
            try:
                data = next(batches)
            except StopIteration:
                break
            logs = take(self._batch(data))
        return logs

    def _batch(self, data: Any) -> Batch:
        data = keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
        return program.batch_of(self._model, data)

    def _train(self, batch: Batch) -> Any:
        session = self._ready(batch)
        self._is_given_back = False
        logs = self._logs(batch, session.train(batch, outputs=self._has_metrics))
        if self._in_callbacks:  # a callback trains, and may look at the weights next
            self.give_back()
        return logs

    def _test(self, batch: Batch) -> Any:
        return self._logs(batch, self._ready(batch).test(batch, outputs=self._has_metrics))

    def _ready(self, batch: Batch) -> Session:
        """Return the session; within a callback it first takes over what the callback changed so far."""
        if self._session is None:
            return self._open(batch)
        if self._in_callbacks:
            self._session.take_changed()
        return self._session

    def _open(self, batch: Batch) -> Session:
        model = self._model
        compiled.check_added(model, batch.x)
        if not model.optimizer.built:
            with keras.name_scope(model.optimizer.name, caller=model.optimizer):  # as Keras, for the variables' names
                model.optimizer.build(model.trainable_variables)
        objective = compiled.objective(model, batch.y, batch.sample_weight)
        placement = self._place(lambda: program.build(self._builder, batch, objective, training=True).graph)
        self._session = self._stack.enter_context(Session(self._builder, placement, batch))
        return self._session

    def _logs(self, batch: Batch, result: Result) -> Any:
        """Has the model's metrics take in a batch; returns what they are."""
        arrays = [result.loss, *result.values, *result.outputs]
        if not self._has_metrics:
            return self._measure(_tensors(arrays), tf.constant(batch.examples), None)
        return self._measure(_tensors(arrays), tf.constant(batch.examples), (batch.x, batch.y, batch.sample_weight))

    def _taken_in(self, arrays: Sequence[Any], examples: Any, data: Any) -> Any:
        """The same, in a function that Keras's backend compiles."""
        model = self._model
        count = len(model.outputs) if data is not None else 0
        losses, outputs = arrays[: len(arrays) - count], arrays[len(arrays) - count :]
        compiled.track(model, losses[0], losses[1:], examples)
        if data is None:
            return model.get_metrics_result()
        x, y, sample_weight = data
        return model.compute_metrics(x, y, self._as_model_gives(outputs), sample_weight=sample_weight)

    def _as_model_gives(self, outputs: Sequence[Any]) -> Any:
        """The model's outputs in its structure."""
        shapes = [x.shape[1:] for x in self._model.outputs]
        outputs = [
            y if None in shape else tf.reshape(y, [-1, *shape]) for y, shape in zip(outputs, shapes, strict=True)
        ]
        return keras.tree.pack_sequence_as(compiled.structure_of(self._model), outputs)

    def before_callbacks(self) -> None:
        """Gives the model its weights, for callbacks to look at and to change."""
        self.give_back()
        self._in_callbacks = True

    def after_callbacks(self) -> None:
        """Takes over what callbacks changed in the model."""
        self._in_callbacks = False
        if self._session is not None:
            self._session.take_changed()

    def give_back(self) -> None:
        """Gives the model its weights."""
        if self._session is not None and not self._is_given_back:
            self._session.give_back()
            self._is_given_back = True

    def rescue(self, error: BaseException) -> None:
        """Gives the model the weights of the last step of an epoch that was broken off, unless they are lost."""
        if self._session is None or self._is_given_back:
            return
        if not isinstance(error, UnreachableWorkerError):
            with contextlib.suppress(Exception):
                self.give_back()
                return
        self._session.forget_steps()


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    return [tf.constant(x) for x in arrays]
