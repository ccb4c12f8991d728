"""Callbacks see and change the model as under Keras.

The model has its weights when an epoch begins or ends. In other hooks it gets them when somebody looks.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.checks import has_own

Callbacks = keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None  # a CallbackList is a callback too
_EPOCH_HOOKS = ("on_epoch_begin", "on_epoch_end")  # the model always has its weights there
_PHASES = ("train", "test", "predict")
_PHASE_HOOKS = tuple(f"on_{phase}_{end}" for phase in _PHASES for end in ("begin", "end"))
_BATCH_HOOKS = tuple(f"on_{phase}_batch_{end}" for phase in _PHASES for end in ("begin", "end"))
_SAME_AS = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}  # their older names


def as_list(callbacks: Callbacks) -> list[keras.callbacks.Callback]:
    """Return the callbacks that were given: one, a list or a CallbackList."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks)) if callbacks else []


@contextlib.contextmanager
def surrounded(
    callbacks: Callbacks, give: Callable[[], object], before: Callable[[], object], after: Callable[[], object]
) -> Iterator[Callbacks]:
    """Give the callbacks, with one in front and one behind that exchange weights.

    Args:
      callbacks: as the user gave them; a CallbackList is changed in place, and restored at the end.
      give: gives the model its weights; called before each hook of an epoch.
      before: called before each other hook that a callback overrides.
      after: called after all of these hooks.
    """
    given = as_list(callbacks)
    acts = dict.fromkeys(_EPOCH_HOOKS, give) | {
        hook: before for hook in (*_PHASE_HOOKS, *_BATCH_HOOKS) if any(_overrides(callback, hook) for callback in given)
    }
    first, last = (
        keras.callbacks.LambdaCallback(**{hook: lambda *_, act=act, **__: act() for hook, act in of_hooks.items()})
        for of_hooks in (acts, dict.fromkeys(acts, after))
    )
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        yield [first, *given, last]
        return
    callbacks.callbacks[:] = [first, *callbacks.callbacks, last]
    try:
        yield callbacks
    finally:
        for callback in (first, last):
            callbacks.callbacks.remove(callback)


def look_between(callbacks: Callbacks, phase: str) -> bool:
    """Return whether a callback may look at the model between two steps, or change it.

    Args:
      callbacks: as the user gave them.
      phase: "train", "test" or "predict".
    """
    hooks = [hook for hook in _BATCH_HOOKS if hook.startswith(f"on_{phase}_")]
    return any(_overrides(each, hook) and not _is_blind(each, hook) for each in as_list(callbacks) for hook in hooks)


def _is_blind(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a hook of a batch is one of Keras's that reads its logs alone, or does nothing."""
    method = getattr(getattr(callback, hook), "__func__", None)
    saves = keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore
    if method in [getattr(each, hook) for each in saves]:
        return getattr(callback, "save_freq", None) == "epoch"
    return method is getattr(keras.callbacks.ProgbarLogger, hook)


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a callback has a hook of its own."""
    return any(has_own(callback, keras.callbacks.Callback, name) for name in (hook, _SAME_AS.get(hook, hook)))
