"""`fit`, `evaluate` and `predict` of a Keras model over unequal devices: Keras's own loop, with its steps divided."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtf_hetero import placement
from mtf_hetero.cluster import WorkerClaim
from mtf_hetero.keras import callbacks as callbacks_lib
from mtf_hetero.keras import counting
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.checks import check_runs
from mtf_hetero.keras.loop import Loop


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

    Keras's own loop runs, and the steps are the model's own `train_step` and `test_step`, imported and divided. So
    losses, metrics, optimizers and all that the model does are Keras's, and a layout changes no result. When an epoch
    ends, before callbacks are called, the model has its weights and the optimizer its variables.

    Args:
      model: a compiled keras.Model.
      x: data as in model.fit: arrays, a tf.data.Dataset, a keras.utils.PyDataset, a generator; or a tuple (x, y) or
        (x, y, sample_weight) of arrays.
      y: targets, if `x` has inputs alone.
      epochs: as in model.fit.
      batch_size: examples of all devices together, as in model.fit.
      validation_data: as in model.fit.
      callbacks: keras.callbacks. They read the weights of the present step, and the next step uses what they write. One
        that overrides a batch's hook has all weights brought to the model for each batch.
      devices: "gpu:0", "cpu:0", "worker:1/gpu:0", one per processor. None: all GPUs, else "cpu:0"; of workers, all.
      workers: "host:port,host:port" of `mtf_hetero.worker` on other machines; None: none.
      layout: "auto": planned for the devices as they are measured; "batch", "filters" or another name of
        mtf_hetero.layouts; rules such as "conv2d/kernel/3:all"; a Layout; a Plan, or the path of one, "plan.json".
      list_speed: of a named layout or rules, one number per device, [70, 25, 5] or "70,25,5"; None: they are alike;
        "auto": measured, divided as is fastest, and left to one device where that is faster still.
      measure_seconds: that "auto" may take to measure, plan and try before the first step; None: 30.
      **options: the others that model.fit has: verbose, shuffle, class_weight, sample_weight, validation_split,
        validation_freq, validation_steps, validation_batch_size, initial_epoch, steps_per_epoch.

    Returns:
      keras.callbacks.History.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: an operation that is not followed, by name and the user's line.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost; the model has the weights of the last epoch's end.

    Example:
      >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
      >>> history = mtf_hetero.keras.fit(model, (images, labels), epochs=5, devices=["gpu:0", "gpu:1"])
    """
    check_runs(model, "train", "test")
    request = placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    x, y, options["sample_weight"] = _unpacked(x, y, options.get("sample_weight"))
    steps = counting.steps_of(x, epochs=epochs, batch_size=batch_size, options=options)
    place = _Placing.of(request, steps, options)
    data = {"validation_data": validation_data, "epochs": epochs, "batch_size": batch_size}
    with _running(model, place, callbacks, "train", "test") as callbacks:
        return model.fit(x, y, callbacks=callbacks, **data, **options)


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    callbacks: Any = None,
    devices: str | Sequence[str] | None = None,
    workers: str | Sequence[str] | None = None,
    layout: Any = "auto",
    list_speed: Any = None,
    measure_seconds: float | None = None,
    **options: Any,
) -> Any:
    """Tests a compiled Keras model on devices of unequal speed: `model.evaluate`, divided.

    Args:
      model: a compiled keras.Model.
      x: data, as for `fit`.
      y: targets, if `x` has inputs alone.
      batch_size: as in model.evaluate.
      callbacks: keras.callbacks.
      devices: as for `fit`.
      workers: as for `fit`.
      layout: as for `fit`.
      list_speed: as for `fit`.
      measure_seconds: as for `fit`.
      **options: the others that model.evaluate has: verbose, sample_weight, steps, return_dict.

    Returns:
      The loss and the metrics, as model.evaluate returns them.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: an operation that is not followed, by name and the user's line.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost.

    Example:
      >>> mtf_hetero.keras.evaluate(model, images, labels, devices=["gpu:0", "cpu:0"], return_dict=True)
    """
    check_runs(model, "test")
    request = placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    x, y, options["sample_weight"] = _unpacked(x, y, options.get("sample_weight"))
    steps = counting.steps_of(x, epochs=1, batch_size=batch_size, options=options)
    place = _Placing.of(request, steps, options)
    with _running(model, place, callbacks, "test") as callbacks:
        return model.evaluate(x, y, batch_size=batch_size, callbacks=callbacks, **options)


def predict(
    model: Any,
    x: Any = None,
    *,
    batch_size: int | None = None,
    callbacks: Any = None,
    devices: str | Sequence[str] | None = None,
    workers: str | Sequence[str] | None = None,
    layout: Any = "auto",
    list_speed: Any = None,
    measure_seconds: float | None = None,
    **options: Any,
) -> Any:
    """Predicts by a Keras model on devices of unequal speed: `model.predict`, divided.

    Args:
      model: a keras.Model.
      x: inputs, as in model.predict.
      batch_size: as in model.predict.
      callbacks: keras.callbacks.
      devices: as for `fit`.
      workers: as for `fit`.
      layout: as for `fit`.
      list_speed: as for `fit`.
      measure_seconds: as for `fit`.
      **options: the others that model.predict has: verbose, steps.

    Returns:
      What the model's predict_step gives, as model.predict returns it.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: an operation that is not followed, by name and the user's line.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost.

    Example:
      >>> probabilities = mtf_hetero.keras.predict(model, images, devices=["gpu:0", "cpu:0"], layout="batch")
    """
    check_runs(model, "predict")
    request = placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    if x is None:
        raise ValueError("x is None; give the data, as for model.predict")
    steps = counting.steps_of(x, epochs=1, batch_size=batch_size, options=options)
    if steps == 0:
        raise ValueError(f"the data of model {model.name!r} are empty; give at least one batch")
    place = _Placing.of(request, steps, options)
    with _running(model, place, callbacks, "predict") as callbacks:
        return model.predict(x, batch_size=batch_size, callbacks=callbacks, **options)


def _unpacked(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return inputs, targets and weights, which `x` may have all."""
    if x is None:
        raise ValueError("x is None; give the data, as for model.fit")
    if y is not None or not isinstance(x, tuple):
        return x, y, sample_weight
    x, y, weights = keras.utils.unpack_x_y_sample_weight(x)
    if weights is not None and sample_weight is not None:
        raise ValueError("both sample_weight and the data have weights; give only one of them")
    return x, y, sample_weight if weights is None else weights


@contextlib.contextmanager
def _running(model: Any, place: "_Placing", callbacks: Any, *kinds: str) -> Iterator[Any]:
    """Have Keras's loop take its steps on devices; gives the callbacks for it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(place.cluster.workers_in_use))
        loop = Loop(model, place, stack)
        around = loop.before_callbacks, loop.after_callbacks
        callbacks = stack.enter_context(callbacks_lib.surrounded(callbacks, *around))
        with loop.in_place_of_keras(*kinds):
            yield callbacks


@dataclasses.dataclass(frozen=True, eq=False)
class _Placing:
    """The user's words on where the model runs. Called with a function that builds a step, it returns the Placement."""

    request: placement.Request
    cluster: Any
    search: placement.Search

    @classmethod
    def of(cls, request: placement.Request, steps: int | None, options: Any) -> "_Placing":
        """Find the devices of a request.

        Raises:
          ValueError: there is no such layout, device or worker.
        """
        request = placement.load(request)
        search = placement.Search(steps, progress=options.get("verbose", "auto") != 0)
        return cls(request, placement.cluster_of(request), search)

    def __call__(self, build: Callable[[], Any], graph: Any) -> placement.Placement:
        placed = placement.place(self.request, self.cluster, build, graph=graph, search=self.search)
        placed.report(announces=self.search.progress and keras.config.is_interactive_logging_enabled())
        return placed
