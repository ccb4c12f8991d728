"""Keras's optimizers on slices: each weight is updated by Keras's own code, on the device that holds the slice.

The rules that are known do to each element of a weight the same. What they assign to is put in place of the Keras
variables, and what was assigned is the step's result.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.keras import constraints
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.weights import Weight
from mtf_hetero.variables import get_variable

KNOWN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion")
_NOT_SLOTS = ("_variables", "_trainable_variables")
_ACCUMULATED, _AVERAGE = "_accumulated_gradients", "_model_variables_moving_average"
_PRODUCT = "_u_product"  # of Nadam: one number for all weights
_NADAM_DECAY = 0.96
_OPERATORS = ("add", "sub", "mul", "truediv", "pow")


def check_optimizer(optimizer: Any) -> None:
    """Raises NotImplementedError, by name, where an optimizer does what `fit` does not have."""
    name = type(optimizer).__name__
    if type(optimizer) is getattr(keras.optimizers, "LossScaleOptimizer", None):
        raise NotImplementedError(
            "the model has the dtype policy mixed_float16, or its optimizer is a LossScaleOptimizer, whose changing "
            "loss scale mtf_hetero.keras.fit does not support; make the model with the policy mixed_bfloat16 or float32"
        )
    if type(optimizer) not in [getattr(keras.optimizers, known, None) for known in KNOWN]:
        raise NotImplementedError(
            f"the optimizer is a {name}, which mtf_hetero.keras.fit does not support; use one of {', '.join(KNOWN)}"
        )


class _State:
    """A variable within a rule: a tensor that is assigned to."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> tf.DType:
        """The tensor's."""
        return self.tensor.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The tensor's."""
        return self.tensor.shape

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return self.tensor


def _add_operators() -> None:
    for name in _OPERATORS:
        function = getattr(operator, name)
        setattr(_State, f"__{name}__", lambda self, other, f=function: f(self.tensor, _plain(other)))
        setattr(_State, f"__r{name}__", lambda self, other, f=function: f(_plain(other), self.tensor))


def _plain(x: Any) -> Any:
    return x.tensor if isinstance(x, _State) else x


_add_operators()


class _Assigning:
    """What a rule's `self` does in place of an optimizer's."""

    iterations: Any = None

    def _get_variable_index(self, variable: Any) -> int:
        return 0

    def assign(self, variable: Any, value: Any) -> None:
        variable.tensor = tf.cast(value, variable.dtype)

    def assign_add(self, variable: Any, value: Any) -> None:
        variable.tensor = variable.tensor + tf.cast(value, variable.dtype)

    def assign_sub(self, variable: Any, value: Any) -> None:
        variable.tensor = variable.tensor - tf.cast(value, variable.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Slots:
    """What an optimizer keeps of one weight.

    Args:
      names: {attribute of the optimizer: what the mtf variable is called}.
      weights: the same, to the Keras variables.
    """

    names: Mapping[str, str]
    weights: Mapping[str, Weight]


def slots_of(optimizer: Any, name: str, weight: Weight) -> Slots:
    """What an optimizer that is built keeps of a weight.

    Args:
      optimizer: the keras.optimizers.Optimizer.
      name: of the weight's mtf variable.
      weight: the weight.

    Raises:
      ValueError: the optimizer was built for other weights.
    """
    count = len(optimizer._trainable_variables)
    try:
        index = optimizer._get_variable_index(weight.variable)
    except KeyError:
        raise ValueError(
            f"the optimizer {optimizer.name!r} does not have the weight {weight.variable.path!r}; compile the model "
            "again after you change which layers are trainable"
        ) from None
    kept = {
        key: value[index]
        for key, value in vars(optimizer).items()
        if isinstance(value, list) and key not in _NOT_SLOTS and len(value) == count > 0
        if isinstance(value[index], keras.Variable)
    }
    names = {key: f"optimizer/{name}/{key.strip('_')}" for key in kept}
    return Slots(names, {key: Weight(variable, weight.split, weight.axes) for key, variable in kept.items()})


@dataclasses.dataclass(frozen=True)
class Rule:
    """A step of an optimizer on a slice of one weight, by values alone, so that a planner knows which steps are alike.

    Args:
      name: of the class in keras.optimizers.
      options: numbers of the optimizer.
      slots: the attributes in which it keeps what it keeps of the weight.
      decay: weight decay of this weight, or None.

    Attributes:
      every: of how many steps one changes the weights, by the mean of their gradients.
    """

    name: str
    options: Mapping[str, Any]
    slots: tuple[str, ...]
    decay: float | None

    @property
    def every(self) -> int:
        return self.options.get("gradient_accumulation_steps", 1)

    @classmethod
    def of(cls, optimizer: Any, weight: Weight, slots: Sequence[str]) -> "Rule":
        """The rule of an optimizer for a weight."""
        plain = {key: value for key, value in vars(optimizer).items() if isinstance(value, (bool, int, float))}
        decay = optimizer.weight_decay
        if decay is not None and not optimizer._use_weight_decay(weight.variable.value):
            decay = None
        return cls(type(optimizer).__name__, plain, tuple(slots), None if decay is None else float(decay))

    def step(
        self, gradient: tf.Tensor, rate: tf.Tensor, steps: tf.Tensor, product: tf.Tensor, value: tf.Tensor, *kept: Any
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """The weight and its slots after a step.

        Args:
          gradient: of the weight.
          rate: the learning rate.
          steps: how many there were.
          product: Nadam's, after this step; of others it is not read.
          value: the weight.
          *kept: its slots.
        """
        variable, states = _State(value), dict(zip(self.slots, map(_State, kept), strict=True))
        iterations = steps // self.every
        if self.decay is not None:
            dtype = value.dtype
            variable.tensor = value - value * tf.cast(self.decay, dtype) * tf.cast(rate, dtype)
        kind = _assigning(self.name)
        rule = object.__new__(kind)
        vars(rule).update(self.options)
        vars(rule).update({slot: [state] for slot, state in states.items()}, iterations=iterations)
        vars(rule)[_PRODUCT] = product
        rule.update_step(gradient, variable, rate)
        if self.every > 1:
            is_last = self.is_last(steps)
            for state, before in zip([variable, *states.values()], [value, *kept], strict=True):
                state.tensor = tf.where_v2(is_last, state.tensor, before)
        if _AVERAGE in states:
            self._average(variable, states[_AVERAGE], iterations)
        return (variable.tensor, *(state.tensor for state in states.values())) if states else variable.tensor

    def is_last(self, steps: tf.Tensor) -> tf.Tensor:
        """Whether a step, after so many, changes the weights."""
        return tf.equal((steps + 1) % self.every, 0)

    def _average(self, variable: _State, average: _State, iterations: tf.Tensor) -> None:
        """Moves the average of a weight, and has the weight be its average every so many steps."""
        dtype = variable.dtype
        momentum = tf.cast(tf.not_equal(iterations, 0), dtype) * tf.constant(self.options["ema_momentum"], dtype)
        average.tensor = momentum * average.tensor + (1 - momentum) * variable.tensor
        if frequency := self.options.get("ema_overwrite_frequency"):
            is_overwritten = tf.equal((iterations + 1) % frequency, 0)
            variable.tensor = tf.where_v2(is_overwritten, average.tensor, variable.tensor)

    def accumulated(self, gradient: tf.Tensor, steps: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """The sum of the gradients since the weights were changed."""
        return tf.where_v2(self.is_last(steps), tf.zeros_like(before), before + gradient)

    def product_after(self, before: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
        """Nadam's product of momenta after a step."""
        decay = tf.pow(tf.constant(_NADAM_DECAY, before.dtype), tf.cast(steps // self.every + 1, before.dtype))
        after = before * self.options["beta_1"] * (1.0 - 0.5 * decay)
        return tf.where_v2(self.is_last(steps), after, before)


@functools.cache
def _assigning(name: str) -> Any:
    """A class of Keras's, whose instances assign to _States."""
    return type(name, (_Assigning, getattr(keras.optimizers, name)), {})


def clipped(optimizer: Any, gradients: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
    """The gradients, clipped as an optimizer says, by the norms of whole weights or of all together."""
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        norm = float(optimizer.clipnorm)

        def clip(x: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
            most = tf.constant(norm, x.dtype)
            return x * most / tf.maximum(tf.sqrt(squares), most)

        return [_applied(clip, x, mtf.reduce_sum(mtf.square(x))) for x in gradients]
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        most = float(optimizer.global_clipnorm)
        squares = [mtf.reduce_sum(mtf.square(x)) for x in gradients]
        total = sum(squares[1:], squares[0])

        def scale(x: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
            norm = tf.sqrt(squares)
            finite = tf.constant(most, x.dtype) * tf.minimum(1.0 / norm, tf.constant(1.0 / most, x.dtype))
            return x * (finite + (norm - norm))

        return [_applied(scale, x, total) for x in gradients]
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        value = float(optimizer.clipvalue)
        return [mtf.cwise(lambda x: tf.clip_by_value(x, -value, value), [x], name="clip") for x in gradients]
    return list(gradients)


def _applied(function: Callable[..., tf.Tensor], x: mtf.Tensor, *others: mtf.Tensor) -> mtf.Tensor:
    return mtf.slicewise(function, [x, *others], x.shape, x.dtype, splittable_dims=x.shape.dims)


def updates(
    optimizer: Any,
    gradients: Sequence[tuple[mtf.Variable, Weight, mtf.Tensor]],
    rate: mtf.Tensor,
    steps: mtf.Tensor,
) -> tuple[list[mtf.Operation], dict[str, Weight]]:
    """One step of an optimizer.

    Args:
      optimizer: the keras.optimizers.Optimizer, which is built.
      gradients: (variable, what it is in Keras, its gradient).
      rate: mtf.Tensor [], the learning rate.
      steps: mtf.Tensor [], how many there were.

    Returns:
      The operations, and {mtf variable: Weight} of what the optimizer keeps.
    """
    keeper = _Keeper(steps.mesh)
    operations: list[mtf.Operation] = []
    product = steps
    if hasattr(optimizer, _PRODUCT):
        weight = Weight(getattr(optimizer, _PRODUCT), (), ())
        before = keeper.variable(f"optimizer/{_PRODUCT.strip('_')}", mtf.Shape([]), weight)
        rule = Rule.of(optimizer, gradients[0][1], ())
        (product,) = mtf.SlicewiseOperation(
            rule.product_after, [before, steps], [before.shape], [before.dtype], [], name="optimizer/product"
        ).outputs
        operations.append(mtf.assign(before.operation, product))
    slots = [slots_of(optimizer, variable.name, weight) for variable, weight, _ in gradients]
    kept = [
        {key: keeper.variable(name, variable.shape, each.weights[key]) for key, name in each.names.items()}
        for each, (variable, *_) in zip(slots, gradients, strict=True)
    ]
    taken = [gradient for *_, gradient in gradients]
    if scale := optimizer.loss_scale_factor:
        taken = [gradient / scale for gradient in taken]
    if every := optimizer.gradient_accumulation_steps:
        for number, (gradient, states) in enumerate(zip(taken, kept, strict=True)):
            before = states.pop(_ACCUMULATED)
            rule = Rule.of(optimizer, gradients[number][1], ())
            operations.append(mtf.assign(before.operation, _applied(rule.accumulated, gradient, steps, before)))
            taken[number] = (gradient + before) / every
    for (variable, weight, _), gradient, states in zip(gradients, clipped(optimizer, taken), kept, strict=True):
        tensors = [variable.value, *states.values()]
        results = mtf.slicewise(
            Rule.of(optimizer, weight, list(states)).step,
            [gradient, rate, steps, product, *tensors],
            [x.shape for x in tensors],
            [x.dtype for x in tensors],
            splittable_dims=variable.shape.dims,
            name=f"{variable.name}/step",
        )
        results = [constraints.constrained(weight, results[0], variable.name), *results[1:]]
        operations += [mtf.assign(x.operation, y) for x, y in zip(tensors, results, strict=True)]
    return operations, keeper.kept


class _Keeper:
    """Makes the variables of what an optimizer keeps, and notes which they are."""

    def __init__(self, mesh: mtf.Mesh) -> None:
        self._mesh = mesh
        self.kept: dict[str, Weight] = {}

    def variable(self, name: str, shape: mtf.Shape, weight: Weight) -> mtf.Tensor:
        """The mtf.Tensor of a variable."""
        self.kept[name] = weight
        dtype = tf.as_dtype(weight.variable.dtype)
        sizes = shape.to_integer_list
        return get_variable(
            self._mesh, name, shape, dtype=dtype, initializer=lambda *_, **__: zeros(sizes, dtype), trainable=False
        )
