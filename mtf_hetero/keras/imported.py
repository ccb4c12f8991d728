"""Steps of a model: `train_step`, `test_step` and `predict_step` as Keras would run them, imported and divided."""

from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.importer.comparing import Own
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.keras._keras import keras

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
        return [v.value for v in (*model.metrics_variables, *find_scalars(model))]

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


def find_scalars(model: keras.Model) -> list["keras.Variable"]:
    """Return the variables of the optimizer that callbacks read and write between steps."""
    return [v for v in _optimizer_variables(model) if len(v.shape) == 0]
