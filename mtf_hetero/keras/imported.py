"""Steps of a model: `train_step`, `test_step` and `predict_step` as Keras would run them, imported and divided."""

import contextlib
import weakref

from mtf_hetero._compat import tf
from mtf_hetero.importer.divided import Divided, Place
from mtf_hetero.importer.streams import States
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.course import Changes, Course
from mtf_hetero.keras.wrong_data import explain_wrong_data

_LOSS = "a step of Keras; the model has the weights of the last complete epoch"

# What a model's operations have drawn since it was last compiled: for as long Keras keeps the functions of its steps
_states: "weakref.WeakKeyDictionary[keras.Model, tuple[object, States]]" = weakref.WeakKeyDictionary()


def _find_states(model: keras.Model) -> States:
    compiled = getattr(model, "_compile_config", None)  # another object for each call of compile
    if model not in _states or _states[model][0] is not compiled:
        _states[model] = compiled, {}
    return _states[model][1]


class Imported:
    """Runs the model's own steps. Metrics, and scalars of the optimizer, stay in this process. A context manager.

    Args:
      model: the keras.Model.
      place: returns where the model lies, as for Divided.
      kind: the step that decides where: "train", "test" or "predict".
      data: its first batch, as Keras gives it.
      spec: the specification of batches, as of their iterator; None: it is not known. Batches are traced with the sizes
        that it leaves open, as in Keras: what its metrics of several outputs count depends on them.
      changes: of the place that are possible; None: none.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """

    def __init__(
        self,
        model: keras.Model,
        place: Place,
        kind: str,
        data: object,
        spec: object = None,
        changes: Changes | None = None,
    ) -> None:
        self._model = model

        def step(kind: str, data: object) -> object:
            return getattr(model, f"{kind}_step")(data)

        self._traced = traced = Traced(
            tf.compat.v2.function(step, autograph=False),
            self._hosted,
            self._paths,
            self._settled,
            relaxes=True,
            states=_find_states(model),
        )
        inputs = kind, data
        self._traced.declared = (kind, spec) if spec else None
        rescues = changes is not None and changes.policy.wait_seconds is not None
        options = {"owner": f"model {model.name!r}", "loss": _LOSS, "rescues": rescues}
        self._divided = Divided(traced, place, inputs, **options)
        self._note_scalars()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._divided.close)
        self._course: Course | None = None
        if changes is not None and (self._divided.session.has_workers or self._divided.layout.size > 1):
            self._course = Course(self._divided, inputs, self._hosted, changes, self._note_scalars)

    def __enter__(self) -> "Imported":
        if self._course is not None:
            self._stack.enter_context(self._course.looking())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

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

    def forget_steps(self) -> None:
        """Set the scalars of the optimizer, the number of steps among them, to those of when the weights were given."""
        for variable, value in self._given:
            variable.assign(value)

    def _of_optimizer(self) -> list["keras.Variable"]:
        """Return the variables of the optimizer, which a model that is not compiled does not have."""
        return list(getattr(getattr(self._model, "optimizer", None), "variables", ()))

    def _paths(self) -> dict[int, str]:
        """Return Keras's names of the variables, which name all layers around a weight, without the model's own.

        Keras numbers the models of a process, so that rules and plans with their names would fit in one process alone.
        """
        own = self._model.name
        paths = {id(v.value): v.path.removeprefix(f"{own}/") for v in self._model.variables}
        return paths | {id(v.value): v.path.replace(f"/{own}_", "/", 1) for v in self._of_optimizer()}

    def _hosted(self) -> list[tf.Variable]:
        return [v.value for v in (*self._model.metrics_variables, *self._scalars())]

    def _settled(self) -> list[tf.Variable]:
        """Return the variables of metrics, and of an optimizer whose rule does not ask whether they are made."""
        optimizer = getattr(self._model, "optimizer", None)
        is_plain = type(optimizer).__module__.startswith("keras.src.optimizers.")
        is_plain = is_plain and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        return [v.value for v in (*self._model.metrics_variables, *(self._of_optimizer() if is_plain else ()))]

    def _scalars(self) -> list["keras.Variable"]:
        """Return the variables of the optimizer that callbacks read and write between steps."""
        return [v for v in self._of_optimizer() if len(v.shape) == 0]

    def _note_scalars(self) -> None:
        self._given = [(variable, variable.numpy()) for variable in self._scalars()]
