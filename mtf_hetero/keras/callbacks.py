"""Callbacks see and change the model as under Keras.

Weights are exchanged with the session around each hook in which a callback may look at them, and only there.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mtf_hetero.keras._keras import keras

Callbacks = keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None  # a CallbackList is a callback too
_EPOCH_HOOKS = ("on_epoch_begin", "on_epoch_end")  # the model always has its weights there
_PHASES = ("train", "test", "predict")
_PHASE_HOOKS = tuple(f"on_{phase}_{end}" for phase in _PHASES for end in ("begin", "end"))
_BATCH_HOOKS = tuple(f"on_{phase}_batch_{end}" for phase in _PHASES for end in ("begin", "end"))
_SAME_AS = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}  # their older names
_BLIND = tuple(  # callbacks of Keras that never look at weights but when an epoch ends
    getattr(keras.callbacks, name)
    for name in ("CSVLogger", "History", "ProgbarLogger", "RemoteMonitor", "TensorBoard", "TerminateOnNaN")
)
_BLIND_TRACKERS = (  # they read logs, the learning rate and the optimizer's step, which the model always has
    "mlflow.keras.callback.MlflowCallback",
    "mlflow.tensorflow.callback.MlflowCallback",
    "tqdm.keras.TqdmCallback",
    "wandb.integration.keras.callbacks.metrics_logger.WandbMetricsLogger",
)


def as_list(callbacks: Callbacks) -> list[keras.callbacks.Callback]:
    """Return the callbacks that were given: one, a list or a CallbackList."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks)) if callbacks else []


@contextlib.contextmanager
def surrounded(callbacks: Callbacks, before: Callable[[], None], after: Callable[[], None]) -> Iterator[Callbacks]:
    """Give the callbacks, with one in front and one behind that exchange weights.

    Args:
      callbacks: as the user gave them; a CallbackList is changed in place, and restored at the end.
      before: gives the model its weights; called before each hook in which a callback may look at them.
      after: takes over what the callbacks changed; called after each such hook.
    """
    hooks = sorted(_watched(as_list(callbacks)))
    first, last = (
        keras.callbacks.LambdaCallback(**{hook: lambda *_, act=act, **__: act() for hook in hooks})
        for act in (before, after)
    )
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        yield [first, *as_list(callbacks), last]
        return
    callbacks.callbacks[:] = [first, *callbacks.callbacks, last]
    try:
        yield callbacks
    finally:
        for callback in (first, last):
            callbacks.callbacks.remove(callback)


def _watched(callbacks: list[keras.callbacks.Callback]) -> Iterator[str]:
    """Yield the hooks in which a callback may look at the weights."""
    yield from _EPOCH_HOOKS
    for hook in (*_PHASE_HOOKS, *_BATCH_HOOKS):
        if any(_may_look(callback, hook) for callback in callbacks):
            yield hook


def _may_look(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a callback overrides a hook, unless it is known not to look there."""
    kind = type(callback)
    if kind in _BLIND or f"{kind.__module__}.{kind.__qualname__}" in _BLIND_TRACKERS:
        return False
    of_keras = type(callback).__module__.startswith("keras.")
    if hook in _BATCH_HOOKS and of_keras and getattr(callback, "save_freq", None) == "epoch":
        return False
    names = (hook, _SAME_AS.get(hook, hook))
    return any(not _is_default(callback, name) for name in names)


def _is_default(callback: keras.callbacks.Callback, hook: str) -> bool:
    method = getattr(callback, hook)
    return getattr(method, "__func__", method) is getattr(keras.callbacks.Callback, hook)
