"""What `model.compile` said, as it is read off the model: the losses of which outputs, and what is not for `fit`.

The one place that reads what Keras keeps for itself, so that its own code decides which loss is whose.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.optimizers import check_optimizer

_REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight")
_REGULARIZERS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


_FUNCTIONS = ("make_train_function", "make_test_function")
_STEPS = ("train_step", "test_step", "compute_loss")
_RULES = ("apply", "apply_gradients", "update_step", "stateless_apply")


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """A loss of one output, as the sum of all losses has it.

    Args:
      loss: the keras.Loss.
      output: which of the model's outputs it is of.
      target: which of the targets it compares with.
      weight: which of the sample weights weigh the examples; None: none do.
      factor: by which it is multiplied, its weight among the losses.
    """

    loss: Any
    output: int
    target: int
    weight: int | None
    factor: float


@dataclasses.dataclass(frozen=True, eq=False)
class Penalty:
    """What the regularizer of a weight adds to the losses: l1 sum |w| + l2 sum w^2.

    Args:
      variable: the weight, a keras.Variable.
      l1: factor.
      l2: factor.
    """

    variable: Any
    l1: float
    l2: float


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """What is minimised.

    Args:
      terms: the losses.
      penalties: of regularizers of weights.
      activities: {id of a layer: l1 and l2 of the regularizer of what it gives}.
    """

    terms: tuple[Term, ...]
    penalties: tuple[Penalty, ...]
    activities: Mapping[int, tuple[float, float]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """Stands for an array, so that what Keras does with it can be followed."""

    number: int
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Spy:
    """Takes the place of a loss: notes what it is called with, and gives a number."""

    calls: dict[int, tuple[Any, Any, Any]]
    number: int
    value: float

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.calls[self.number] = y_true, y_pred, sample_weight
        return tf.constant(self.value, keras.config.floatx())


def check_compiled(model: Any) -> None:
    """Raises unless a model was compiled, and `train_step` and `test_step` are what Keras runs.

    Raises:
      ValueError: it was not compiled.
      NotImplementedError: it makes its train function itself, or was made for a tf.distribute strategy.
    """
    if not getattr(model, "compiled", False):
        raise ValueError(
            f"model {model.name!r} is not compiled; call model.compile(optimizer, loss) before mtf_hetero.keras.fit"
        )
    _check_overrides(model, f"model {model.name!r}", keras.Model, _FUNCTIONS)
    for variable in model.variables:
        if isinstance(variable.value, tf.compat.v2.distribute.DistributedValues):
            raise NotImplementedError(
                f"model {model.name!r} was made in the scope of a tf.distribute strategy, which copies its weights; "
                "make it outside of the scope: mtf_hetero distributes it"
            )


def check_loss(model: Any) -> None:
    """Raises ValueError if a model that adds no loss was compiled without one."""
    if model._compile_loss is None:
        raise ValueError(f"model {model.name!r} is compiled without a loss; give model.compile a loss")


def check(model: Any) -> None:
    """Raises NotImplementedError, by name, unless a model that was compiled can be trained by operations of mtf."""
    if model._compile_loss is not None and not hasattr(model._compile_loss, "_flat_losses"):
        raise ImportError(f"Keras {keras.__version__} is too old for mtf_hetero.keras.fit; pip install --upgrade keras")
    _check_overrides(model, f"model {model.name!r}", keras.Model, _STEPS)
    check_optimizer(model.optimizer)
    _check_overrides(model.optimizer, "the optimizer", type(model.optimizer), _RULES)
    _activities(model)
    list(_penalties(model))


def overrides(instance: Any, base: type, name: str) -> bool:
    """Return whether an object has another method than `base`: of its class, or set on the instance."""
    method = getattr(instance, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


def _check_overrides(instance: Any, owner: str, base: type, names: Sequence[str]) -> None:
    for name in names:
        if overrides(instance, base, name):
            where = "set on the instance" if name in vars(instance) else f"of its class {type(instance).__name__}"
            raise NotImplementedError(
                f"{owner} has its own {name} ({where}), which mtf_hetero.keras.fit does not run; use the {name} of "
                f"keras.{base.__name__ if base is keras.Model else f'optimizers.{base.__name__}'}"
            )


def check_added(model: Any, x: Any) -> None:
    """Raises NotImplementedError where a layer of the user's own adds a loss or keeps a metric, which `fit` would drop.

    Keras's own layers do neither. Whether a layer does is only known when it is called: it is, with a batch's inputs,
    and what that changes in the model is forgotten.

    Args:
      model: the keras.Model.
      x: inputs, in Keras's structure.
    """
    own = [layer for layer in layers_of(model) if not type(layer).__module__.startswith("keras.")]
    for layer in own:
        if layer.metrics:
            raise NotImplementedError(
                f"layer {layer.name!r} keeps the metric {layer.metrics[0].name!r}, which mtf_hetero.keras.fit does not "
                "compute; give the metric to model.compile"
            )
    if not own:
        return
    added = []
    with contextlib.ExitStack() as stack:
        for layer in own:
            stack.callback(setattr, layer, "activity_regularizer", layer.activity_regularizer)
            layer.activity_regularizer = None  # is heeded, and would be a loss that the layer adds
            layer.add_loss = lambda loss, layer=layer: added.append(layer)
            stack.callback(delattr, layer, "add_loss")
        with keras.StatelessScope(), tf.device("cpu:0"):
            model(x, training=True)
    if added:
        raise NotImplementedError(
            f"layer {added[0].name!r} adds a loss by add_loss, which mtf_hetero.keras.fit does not minimise; "
            "compute it in a loss of model.compile"
        )


def layers_of(model: Any) -> Iterator[Any]:
    """The layers of a model and of the models in it."""
    for layer in model.layers:
        yield layer
        if hasattr(layer, "layers"):
            yield from layers_of(layer)


def structure_of(model: Any) -> Any:
    """The model's outputs as it gives them: one, a list, a dict."""
    return model.outputs[0] if isinstance(model, keras.Sequential) else model.output


def objective(model: Any, y: Any, sample_weight: Any) -> Objective:
    """What `fit` minimises, of targets and sample weights as Keras has them of a batch. Call it eagerly."""
    return Objective(tuple(_terms(model, y, sample_weight)), tuple(_penalties(model)), _activities(model))


def _terms(model: Any, y: Any, sample_weight: Any) -> list[Term]:
    """The losses of a model, by Keras's own rules for lists and dicts of them.

    Args:
      model: the keras.Model, which is compiled.
      y: targets, as Keras has them of a batch.
      sample_weight: the same of the weights; None: there are none.

    Raises:
      ValueError: targets that the losses do not fit, or a reduction that gives no number.
    """
    compiled = model._compile_loss
    outputs = [tuple(size or 1 for size in x.shape) for x in model.outputs]
    if not compiled.built:
        zeros = [np.zeros(shape, keras.config.floatx()) for shape in outputs]
        compiled.build(y, keras.tree.pack_sequence_as(structure_of(model), zeros))
    followed = object.__new__(type(compiled))  # Keras's losses cannot be copied
    vars(followed).update(vars(compiled))
    followed._metrics = [None] * len(compiled._flat_losses)  # which are not to be moved
    y_pred = keras.tree.pack_sequence_as(
        structure_of(model), [_Leaf(number, shape) for number, shape in enumerate(outputs)]
    )
    calls: dict[int, tuple[Any, Any, Any]] = {}
    numbers = range(len(compiled._flat_losses))
    factors = []
    for one in numbers:  # the sum is linear in the losses: of one that is 1 and others of 0, it is the factor
        followed._flat_losses = [
            loss._replace(loss=_Spy(calls, number, float(number == one)))
            for number, loss in enumerate(compiled._flat_losses)
        ]
        factors.append(float(followed.call(_leaves(y), y_pred, _leaves(sample_weight))))
    result = []
    for number, factor in zip(numbers, factors, strict=True):
        loss, (target, output, weight) = compiled._flat_losses[number].loss, calls[number]
        if loss.reduction not in _REDUCTIONS:
            raise ValueError(
                f"loss {loss.name!r} has the reduction {loss.reduction!r}, which returns no number; use one of "
                f"{', '.join(_REDUCTIONS)}"
            )
        result.append(Term(loss, output.number, target.number, None if weight is None else weight.number, factor))
    return result


def _penalties(model: Any) -> Iterator[Penalty]:
    for variable in model.trainable_variables:
        if variable.regularizer is not None:
            factors = _factors(variable.regularizer, f"weight {variable.path!r}", variable.dtype)
            if any(factors):
                yield Penalty(variable, *factors)


def _activities(model: Any) -> dict[int, tuple[float, float]]:
    """{id of a layer: l1 and l2} of those that regularize what they give."""
    return {
        id(layer): _factors(layer.activity_regularizer, f"the output of layer {layer.name!r}", layer.compute_dtype)
        for layer in layers_of(model)
        if getattr(layer, "activity_regularizer", None) is not None
    }


def _factors(regularizer: Any, owner: str, dtype: str) -> tuple[float, float]:
    """A regularizer's factors of the absolute values and of the squares, as Keras rounds them.

    Raises:
      NotImplementedError: it is none of Keras's own; of what, says `owner`.
    """
    if type(regularizer) not in _REGULARIZERS:
        raise NotImplementedError(
            f"{owner} has the regularizer {type(regularizer).__name__}; mtf_hetero.keras.fit supports L1, L2 and L1L2"
        )
    l1, l2 = (float(keras.ops.cast(getattr(regularizer, key, 0.0), dtype)) for key in ("l1", "l2"))
    return l1, l2


def _leaves(structure: Any) -> Any:
    if structure is None:
        return None
    flat = keras.tree.flatten(structure)
    return keras.tree.pack_sequence_as(structure, [_Leaf(i, tuple(np.shape(x))) for i, x in enumerate(flat)])


def track(model: Any, loss: Any, values: Sequence[Any], examples: int) -> None:
    """Has a model's means of its losses take in those of a batch.

    Args:
      model: the keras.Model.
      loss: of the batch.
      values: of each loss, of which there are means where there are several.
      examples: the batch's.
    """
    model._loss_tracker.update_state(loss, sample_weight=examples)
    for metric, value in zip(model._compile_loss.metrics, values, strict=False):
        metric.update_state(value)  # as in Keras, to which a compiled function does not say how many examples there are


def has_metrics(model: Any) -> bool:
    """Whether metrics are computed from the model's outputs."""
    return model._compile_metrics is not None or overrides(model, keras.Model, "compute_metrics")
