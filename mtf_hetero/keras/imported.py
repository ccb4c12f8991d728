"""Steps of a model: `train_step`, `test_step` and `predict_step` as Keras would run them, imported and divided."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cluster.probe import name_workers
from mtf_hetero.importer.comparing import Own
from mtf_hetero.importer.divided import Divided, Place
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.importer.verifying import Verification
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.course import Changes, Course, Policy
from mtf_hetero.keras.keeping import Keeper
from mtf_hetero.keras.wrong_data import explain_wrong_data

_LOSS = "a step of Keras; the model has the weights of the last complete epoch"

_TRACED = "_mtf_hetero_traced"  # the attribute of a model; set in its dict, else Keras would track and save it


class StandIn:
    """Takes the place of Keras's own function of a step."""

    def __init__(self, function: Callable[..., object], of_keras: Callable[..., object]) -> None:
        self._function, self.of_keras = function, of_keras

    def __call__(self, data: object) -> object:
        return self._function(data)


def find_own(function: Callable[..., object]) -> Callable[..., object]:
    """Return Keras's own function of a step, where a call within a callback finds a StandIn."""
    return function.of_keras if isinstance(function, StandIn) else function


def find_traced(model: keras.Model, kinds: Sequence[str]) -> Traced:
    """Return the traces of a model's steps. They live as long as Keras's: what a step has read stays as it was.

    Keras makes a function of a step at its first use, and traces it at the first batch. `compile` and a few others drop
    these functions. So traces are kept beside the functions that the model had, and are dropped with them.

    Args:
      model: the keras.Model.
      kinds: of steps that will be taken: "train", "test", "predict".
    """
    for kind in kinds:
        getattr(model, f"make_{kind}_function")()
    functions = [find_own(getattr(model, f"{kind}_function")) for kind in ("train", "test", "predict")]
    before, traced = vars(model).get(_TRACED, ((), None))
    if traced is None or any(one is not None and one is not other for one, other in zip(before, functions)):
        traced = _new_traced(model)
    vars(model)[_TRACED] = functions, traced
    return traced


def forget_traced(model: keras.Model) -> None:
    """Drop the traces of a model's steps, one of which was refused: the model may be changed and tried again."""
    vars(model).pop(_TRACED, None)


def _new_traced(model: keras.Model) -> Traced:
    def step(kind: str, data: object) -> object:
        return getattr(model, f"{kind}_step")(data)

    def hosted() -> list[tf.Variable]:
        return [v.value for v in (*model.metrics_variables, *_find_scalars(model))]

    def paths() -> dict[int, str]:
        """Return Keras's names of the variables, which name all layers around a weight, without the model's own.

        Keras numbers the models of a process, so that rules and plans with their names would fit in one process alone.
        """
        own = model.name
        names = {id(v.value): v.path.removeprefix(f"{own}/") for v in model.variables}
        return names | {id(v.value): v.path.replace(f"/{own}_", "/", 1) for v in _optimizer_variables(model)}

    def settled() -> list[tf.Variable]:
        """Return the variables of metrics, and of an optimizer whose rule does not ask whether they are made."""
        optimizer = getattr(model, "optimizer", None)
        is_plain = type(optimizer).__module__.startswith("keras.src.optimizers.")
        is_plain = is_plain and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        return [v.value for v in (*model.metrics_variables, *(_optimizer_variables(model) if is_plain else ()))]

    return Traced(tf.compat.v2.function(step, autograph=False), hosted, paths, settled, relaxes=True)


def own_steps(model: keras.Model, functions: Mapping[str, Callable[..., object]]) -> Own | None:
    """Return the steps as Keras itself traced them, or will; None: it takes several at once.

    Args:
      model: the keras.Model.
      functions: {kind of step: Keras's function}.
    """
    if model.steps_per_execution > 1:
        return None

    def take(kind: str, data: object) -> object:
        if kind == "predict":
            return functions[kind]([data])
        return functions[kind](iter(tf.data.Dataset.from_tensors(data)))

    def variables() -> list[tf.Variable]:
        return [v.value for v in (*model.variables, *_optimizer_variables(model))]

    return Own(f"model {model.name!r} in Keras", take, variables)


def _optimizer_variables(model: keras.Model) -> list["keras.Variable"]:
    """Return the variables of the optimizer, which a model that is not compiled does not have."""
    return list(getattr(getattr(model, "optimizer", None), "variables", ()))


def _find_scalars(model: keras.Model) -> list["keras.Variable"]:
    """Return the variables of the optimizer that callbacks read and write between steps."""
    return [v for v in _optimizer_variables(model) if len(v.shape) == 0]


class Imported:
    """Runs the model's own steps. Metrics, and scalars of the optimizer, stay in this process. A context manager.

    Args:
      model: the keras.Model.
      traced: the traces of its steps.
      place: returns where the model lies, as for Divided.
      kind: the step that decides where: "train", "test" or "predict".
      data: its first batch, as Keras gives it.
      spec: the specification of batches, as of their iterator; None: it is not known. Batches are traced with the sizes
        that it leaves open, as in Keras: what its metrics of several outputs count depends on them.
      changes: of the place that are possible; None: none.
      verification: compares first steps; None: nothing is compared.
      keeper: has the session of the last call, perhaps, and gets this one; None: the session ends with this call.

    Raises:
      NotImplementedError: operations that are not followed, all by name and the user's line.
    """

    def __init__(
        self,
        model: keras.Model,
        traced: Traced,
        place: Place,
        kind: str,
        data: object,
        spec: object = None,
        changes: Changes | None = None,
        keeper: Keeper | None = None,
        verification: Verification | None = None,
    ) -> None:
        self._model, self._traced, self._kind, self._changes, self._keeper = model, traced, kind, changes, keeper
        inputs = kind, data
        traced.declared = (kind, spec) if spec else None
        self._lost: dict[int, str] = {}  # workers, before the first step
        kept = None if keeper is None else keeper.take(traced, inputs)
        self._divided = kept or self._divide(place, inputs, verification)
        if kept is not None and verification is not None:
            kept.verification = verification.continue_from(kept.verification)
        self._is_kept = False
        self._note_scalars()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._close)
        self._course: Course | None = None
        if changes is not None and (self._divided.session.has_workers or self._divided.layout.size > 1):
            self._course = Course(self._divided, inputs, traced.hosted, changes, self._note_scalars, self._lost)

    def _divide(self, place: Place, inputs: Sequence[object], verification: Verification | None) -> Divided:
        """Return the divided step, without workers that are lost before it begins and do not return in time."""
        changes, policy = self._changes, Policy() if self._changes is None else self._changes.policy
        while True:
            try:
                return Divided(
                    self._traced,
                    place,
                    inputs,
                    owner=f"model {self._model.name!r}",
                    loss=_LOSS,
                    rescues=policy.wait_seconds is not None,
                    wait_seconds=policy.wait_seconds or 0.0,
                    may_leave=lambda lost, workers: len(workers) - len(lost) >= policy.min_workers,
                    verification=verification,
                )
            except UnreachableWorkerError as error:
                if changes is None or policy.wait_seconds is None or not error.workers:
                    raise
                self._lost |= error.workers
                place = functools.partial(changes.without, self._lost)
                tf.logging.warning("training begins without %s", name_workers(self._lost))

    def __enter__(self) -> "Imported":
        if self._course is not None:
            self._stack.enter_context(self._course.looking())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        if not self._is_kept:
            self._divided.close()

    def keep(self) -> None:
        """Keep the session for the next call, unless its devices may be others then."""
        has_moved = self._changes is not None and bool(self._changes.policy.log)
        if self._keeper is not None and not has_moved:
            if self._course is not None:
                self._course.end()
            self._is_kept = self._keeper.keep(self._traced, self._divided, self._kind)

    def __call__(self, kind: str, data: object, spec: object = None) -> object:
        """Take a step on a batch; returns what it returns: the logs, or the predictions."""
        self._traced.declared = (kind, spec) if spec else None
        with explain_wrong_data(self._divided.graph):
            step = self._divided if self._course is None else self._course.step
            return step(kind, data)

    def give_back(self) -> None:
        """Give the model its weights."""
        if self._course is None:
            self._divided.pull()
        else:
            self._course.outlive(self._divided.pull)
        self._note_scalars()

    def take_changed(self) -> None:
        """Take over what was changed in the model since it was given its weights."""
        if self._course is None:
            self._divided.push_pulled()
        else:
            self._course.take_changed()
        self._note_scalars()

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Return {dimension: {device: its size}} of the dimensions that are split at present."""
        return self._divided.sizes

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        return "" if self._course is None else self._course.describe_speed()

    def forget_steps(self) -> None:
        """Set the scalars of the optimizer, the number of steps among them, to those of when the weights were given."""
        for variable, value in self._given:
            variable.assign(value)

    def _note_scalars(self) -> None:
        self._given = [(variable, variable.numpy()) for variable in _find_scalars(self._model)]
