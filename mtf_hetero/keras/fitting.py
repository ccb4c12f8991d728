"""`fit`, `evaluate` and `predict` of a Keras model over unequal devices: Keras's own loop, with its steps divided."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtf_hetero import placement
from mtf_hetero._compat import tf
from mtf_hetero._support import extras
from mtf_hetero.cluster import WorkerClaim
from mtf_hetero.importer.verifying import Verification, Verify, check_verify
from mtf_hetero.keras import callbacks as callbacks_lib
from mtf_hetero.keras import counting
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.callbacks import Callbacks, look_between
from mtf_hetero.keras.checks import check_runs, has_own
from mtf_hetero.keras.joining import Joining
from mtf_hetero.keras.keeping import Keeper
from mtf_hetero.keras.loop import Loop
from mtf_hetero.placement.placer import Placer
from mtf_hetero.placement.request import AUTO, LayoutLike, MemoryLike, SlotsLike, SpeedLike, WorkersLike
from mtf_hetero.training.steps import Changes, Policy


def fit(
    model: keras.Model,
    x: object = None,
    y: object = None,
    *,
    epochs: int = 1,
    batch_size: int | None = None,
    validation_data: object = None,
    callbacks: Callbacks = None,
    devices: str | Sequence[str] | None = None,
    workers: WorkersLike = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    slots: SlotsLike = None,
    measure_seconds: float | None = None,
    memory_limit: MemoryLike = None,
    wait_for_workers: float | str | bool = 60.0,
    min_workers: int = 1,
    rebalance: float | str = AUTO,
    verify: Verify = AUTO,
    **options: Any,
) -> keras.callbacks.History:
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
      callbacks: keras.callbacks. They read the weights of the present step, and the next step uses what they write. In
        the hooks of batches, weights are brought to the model only if a callback looks at one.
      devices: "gpu:0", "cpu:0", "worker:1/gpu:0", one per processor. None: all GPUs, else "cpu:0"; of workers, all.
      workers: "host:port,host:port" of `mtf_hetero.cluster.worker` on other machines, or an entered LocalCluster's
        Cluster; None: none.
      layout: "auto": planned for the devices as they are measured; "batch", "filters" or another name of
        mtf_hetero.layouts; rules such as "conv2d/kernel/3:all"; a Layout; a Plan, or the path of one, "plan.json".
      list_speed: of a named layout or rules, one number per device, [70, 25, 5] or "70,25,5"; None: they are alike;
        "auto": measured, divided as is fastest, and left to one device where that is faster still.
      slots: of a named layout or rules: each device computes so many parts of its part one after another, 4 or one
        number per device, [4, 2]. It accumulates gradients, and holds the activations of a part at a time.
      measure_seconds: that "auto" may take to measure, plan and try before the first step; None: 30, or 2 % of a
        long training, up to 120.
      memory_limit: gigabytes that each device may use, [16, 8], for "auto". If the whole batch does not fit, it is
        computed in parts, in a pipeline of layers, or on more devices. None: what TensorFlow reports of GPUs.
      wait_for_workers: seconds that training waits for a lost worker. It then continues without it, from a copy of the
        state in this process. "forever": it waits on; False: the loss of a worker is an error.
      min_workers: training waits on for lost workers if fewer than these are left.
      rebalance: whether devices get other shares in mid-run if measurements say that a step is then shorter, by more
        than the noise, and that it is worth the pause. "auto": as soon as that is so; seconds: at most as often;
        "off": never.
      verify: whether the first step of each kind is compared with TensorFlow's own. True: with Keras's function,
        for which Keras traces the step once more. "auto": with the trace that is split, if this costs less than 5 % of
        the training, or 5 seconds.
      **options: the others that model.fit has: verbose, shuffle, class_weight, sample_weight, validation_split,
        validation_freq, validation_steps, validation_batch_size, initial_epoch, steps_per_epoch.

    Returns:
      keras.callbacks.History. Its attribute `layout` is {dimension: {device: size}} of all dimensions that are split at
        the end. Its attribute `changes` has a dict for each change of the shares, and of the workers.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: operations that are not followed, all by name and the user's line.
      mtf_hetero.importer.StepDiffersError: the first step is not TensorFlow's; the model is as it was before.
      mtf_hetero.cluster.UnreachableWorkerError: a worker does not answer at the start, or is lost and wait_for_workers
        is False; the model has the weights of the last epoch's end.

    Example:
      >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
      >>> history = mtf_hetero.keras.fit(model, (images, labels), epochs=5, devices=["gpu:0", "gpu:1"])
    """
    request = placement.Request(
        layout,
        list_speed,
        devices=devices,
        workers=workers,
        measure_seconds=measure_seconds,
        memory_limit=memory_limit,
        slots=slots,
    )
    check_runs(model, "train", "test")
    policy = Policy.parse(wait_for_workers, min_workers, rebalance)
    x, y, options["sample_weight"] = _unpacked(x, y, options.get("sample_weight"))
    options |= {"epochs": epochs, "batch_size": batch_size}
    with _running(model, x, request, callbacks, options, "train", "test", policy=policy, verify=verify) as running:
        history = model.fit(x, y, validation_data=validation_data, callbacks=running.callbacks, **options)
        speed = running.loop.describe_speed()
    history.changes, history.layout = policy.log, running.loop.sizes
    if running.announces and speed:
        extras.write_above_bars(speed)
    return history


def evaluate(
    model: keras.Model,
    x: object = None,
    y: object = None,
    *,
    batch_size: int | None = None,
    callbacks: Callbacks = None,
    devices: str | Sequence[str] | None = None,
    workers: WorkersLike = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    measure_seconds: float | None = None,
    verify: Verify = AUTO,
    **options: Any,
) -> Any:
    """Test a compiled Keras model on devices of unequal speed: `model.evaluate`, divided.

    The arguments are those of model.evaluate, and `devices`, `workers`, `layout`, `list_speed`, `measure_seconds` and
    `verify` as of `fit`.

    Returns:
      The loss and the metrics, as model.evaluate returns them.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: operations that are not followed, all by name and the user's line.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost.

    Example:
      >>> mtf_hetero.keras.evaluate(model, images, labels, devices=["gpu:0", "cpu:0"], return_dict=True)
    """
    request = placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    check_runs(model, "test")
    x, y, options["sample_weight"] = _unpacked(x, y, options.get("sample_weight"))
    options["batch_size"] = batch_size
    with _running(model, x, request, callbacks, options, "test", verify=verify) as running:
        return model.evaluate(x, y, callbacks=running.callbacks, **options)


def predict(
    model: keras.Model,
    x: object = None,
    *,
    batch_size: int | None = None,
    callbacks: Callbacks = None,
    devices: str | Sequence[str] | None = None,
    workers: WorkersLike = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    measure_seconds: float | None = None,
    verify: Verify = AUTO,
    **options: Any,
) -> Any:
    """Predicts by a Keras model on devices of unequal speed: `model.predict`, divided.

    The arguments are those of model.predict, and `devices`, `workers`, `layout`, `list_speed`, `measure_seconds` and
    `verify` as of `fit`.

    Returns:
      What the model's predict_step gives, as model.predict returns it.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: operations that are not followed, all by name and the user's line.
      mtf_hetero.cluster.UnreachableWorkerError: a worker was lost.

    Example:
      >>> probabilities = mtf_hetero.keras.predict(model, images, devices=["gpu:0", "cpu:0"], layout="batch")
    """
    request = placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    check_runs(model, "predict")
    if x is None:
        raise ValueError("x is None; give the data, as for model.predict")
    options["batch_size"] = batch_size
    with _running(model, x, request, callbacks, options, "predict", verify=verify) as running:
        return model.predict(x, callbacks=running.callbacks, **options)


def _unpacked(x: object, y: object, sample_weight: object) -> tuple[object, object, object]:
    """Return inputs, targets and weights, which `x` may have all."""
    if x is None:
        raise ValueError("x is None; give the data, as for model.fit")
    if y is not None or not isinstance(x, tuple):
        return x, y, sample_weight
    x, y, weights = keras.utils.unpack_x_y_sample_weight(x)
    if weights is not None and sample_weight is not None:
        raise ValueError("both sample_weight and the data have weights; give only one of them")
    return x, y, sample_weight if weights is None else weights


class _Running(NamedTuple):
    """Keras's loop while it takes its steps on devices.

    Attributes:
      callbacks: for it.
      loop: takes the steps.
      announces: whether lines for the user are printed.
    """

    callbacks: Callbacks
    loop: Loop
    announces: bool


@contextlib.contextmanager
def _running(
    model: keras.Model,
    x: object,
    request: placement.Request,
    callbacks: Callbacks,
    options: Mapping[str, Any],
    *kinds: str,
    policy: Policy | None = None,
    verify: Verify = AUTO,
) -> Iterator[_Running]:
    """Have Keras's loop take its steps on devices; gives the callbacks for it, and what it then tells.

    Args:
      model: the keras.Model.
      x: its data.
      request: what the user asked for.
      callbacks: of the user.
      options: of Keras's loop.
      *kinds: of steps.
      policy: the rules by which the place changes; None: it does not.
      verify: as of `fit`.

    Raises:
      ValueError: there is no such layout, device or worker, or there are no data.
    """
    check_verify(verify)
    request = placement.load(request)
    steps = counting.count_steps(x, options)
    if steps == 0 and kinds == ("predict",):  # Keras would concatenate nothing
        raise ValueError(f"the data of model {model.name!r} are empty; give at least one batch")
    cluster = placement.requested_cluster(request)
    search = placement.Search(steps, progress=options.get("verbose", "auto") != 0)
    announces = search.progress and keras.config.is_interactive_logging_enabled()
    placer = Placer(request, cluster, search, announces=announces)
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
        changes = None if policy is None else Changes(policy, placer.without, steps)
        epochs = options.get("epochs", 1) - (options.get("initial_epoch") or 0)
        verification = Verification(verify, steps, announces=announces and policy is not None)
        keeper = Keeper(model, request, cluster, steps)
        joinings = _make_joinings(model, callbacks, kinds, epochs, announces=announces)
        loop = Loop(model, placer, stack, changes, keeper, verification, joinings=joinings, epochs=epochs)
        around = loop.give_to_callbacks, loop.before_callbacks, loop.after_callbacks
        callbacks = stack.enter_context(callbacks_lib.surrounded(callbacks, *around))
        with loop.in_place_of_keras(*kinds):
            yield _Running(callbacks, loop, announces)


def _make_joinings(
    model: keras.Model, callbacks: Callbacks, kinds: Sequence[str], epochs: int, *, announces: bool
) -> dict[str, Joining]:
    """Return what decides how many steps one call takes, of the kinds of which nobody looks at the model between two.

    Args:
      model: the keras.Model.
      callbacks: of the user.
      kinds: of steps.
      epochs: passes over the data that are to come.
      announces: whether a line about the first kind is printed; others are logged.
    """
    joinings: dict[str, Joining] = {}
    for kind, loop in ("train", "fit"), ("test", "evaluate"), ("predict", "predict"):
        has_loop = has_own(model, keras.Model, loop)
        if kind in kinds and not has_loop and model.steps_per_execution == 1 and not look_between(callbacks, kind):
            say = extras.write_above_bars if announces and kind == kinds[0] else tf.logging.info
            joinings[kind] = Joining(epochs, say)
    return joinings
