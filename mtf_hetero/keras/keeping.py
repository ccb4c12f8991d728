"""Sessions that outlive a call of `fit`, `evaluate` or `predict`: the next call of the same place continues there.

A session costs far more than a step: its layout is chosen, its graph is lowered, and TensorFlow prepares it. A program
that trains one batch at a time, such as a GAN, would pay for that in each step.
"""

import weakref
from collections.abc import Sequence

from mtf_hetero import placement
from mtf_hetero._support.free_memory import free_bytes
from mtf_hetero.cluster import Cluster
from mtf_hetero.importer.divided import Divided
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.keras._keras import keras

_ATTRIBUTE = "_mtf_hetero_session"  # of a model; set in its dict, else Keras would track and save it
_MOST_SESSIONS = 8  # in a process: a CycleGAN has five models
_MEMORY_SHARE = 0.25  # of the memory that is free, which variables of these sessions may take


class _Kept:
    """A step in a session, which waits for the next call.

    Args:
      divided: the step.
      traced: the traces of the model's steps.
      place: the devices and the layout that the user asked for.
      kind: of the first step in the session, for which the layout was chosen.
      steps: number of steps that were to come then; None: it was not known.
    """

    def __init__(self, divided: Divided, traced: Traced, place: object, kind: str, steps: int | None) -> None:
        self.divided: Divided | None = divided
        self.traced, self.place, self.kind, self.steps = traced, place, kind, steps
        self.bytes = sum(v.shape.num_elements() * v.dtype.size for v in divided.step.variables.values())

    def close(self) -> None:
        """End the session, and let go of the copies of the variables."""
        if self.divided is not None:
            self.divided.close()
            self.divided = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Return None as the copy: a copied or stored model has no session."""
        return type(None), ()


class Keeper:
    """Keeps the session of a call for the next one on the same model, one for each model.

    A session with workers is not kept: another training may claim them between two calls.

    Args:
      model: the keras.Model.
      request: of the user, loaded.
      cluster: the devices that it means.
      steps: number of steps to come; None: it is not known.
    """

    def __init__(self, model: keras.Model, request: placement.Request, cluster: Cluster, steps: int | None) -> None:
        self._model, self._request, self.cluster, self._steps = model, request, cluster, steps
        self._place = request, cluster
        self._kept: _Kept | None = None  # the one that was taken

    def take(self, traced: Traced, inputs: Sequence[object]) -> Divided | None:
        """Return the step of the last call, in its session with the present values of the variables.

        Args:
          traced: the traces of the model's steps.
          inputs: of the first step that will be taken.

        Returns:
          None if there is no such step, or it may not be used: its session is closed.
        """
        kept: _Kept | None = vars(self._model).pop(_ATTRIBUTE, None)
        if kept is None or kept.divided is None:
            return None
        _waiting[:] = [ref for ref in _list_waiting() if ref() is not kept]
        if kept.traced is traced and kept.place == self._place and self._serves(kept, kept.divided, inputs):
            try:
                kept.divided.push_pulled()
                kept.divided.prepare(inputs)
            except (NotImplementedError, ValueError):
                pass  # the layout was chosen for other sizes
            else:
                self._kept = kept
                return kept.divided
        kept.close()
        return None

    def keep(self, traced: Traced, divided: Divided, kind: str) -> bool:
        """Take over a step, whose variables have their values, for the next call; returns whether it may wait.

        Args:
          traced: the traces of the model's steps.
          divided: the step.
          kind: of the first step in its session.
        """
        if self.cluster.workers:
            return False
        kept = self._kept or _Kept(divided, traced, self._place, kind, self._steps)
        if (other := vars(self._model).pop(_ATTRIBUTE, None)) is not None:  # of a call within this one
            other.close()
        vars(self._model)[_ATTRIBUTE] = kept
        _make_room_for(kept)
        return True

    def _serves(self, kept: _Kept, divided: Divided, inputs: Sequence[object]) -> bool:
        """Return whether a step may be taken at a place that was chosen for another one."""
        kind, placed = inputs[0], divided.runtime.placement
        if kept.kind not in (kind, "train"):
            return False
        if not self._request.is_measured or len(self.cluster.devices) == 1:
            return True
        if placed.measured_machines is None:  # the training was too short to measure devices
            return self._steps is not None and kept.steps is not None and self._steps <= kept.steps
        return kind != "train" or divided.find(inputs) is not None


_waiting: list["weakref.ref[_Kept]"] = []  # sessions of the process between two calls, the newest last


def _list_waiting() -> list["weakref.ref[_Kept]"]:
    return [ref for ref in _waiting if (kept := ref()) is not None and kept.divided is not None]


def _make_room_for(newest: _Kept) -> None:
    """Close the oldest sessions if they are too many, or too large."""
    waiting = [kept for ref in _list_waiting() if (kept := ref()) is not None]
    waiting.append(newest)
    most = _MEMORY_SHARE * free_bytes()
    while len(waiting) > _MOST_SESSIONS or (waiting and sum(kept.bytes for kept in waiting) > most):
        waiting.pop(0).close()
    _waiting[:] = [weakref.ref(kept) for kept in waiting]
