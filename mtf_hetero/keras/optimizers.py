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
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.weights import Weight

KNOWN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion")
_NOT_SLOTS = ("_variables", "_trainable_variables")
_OPERATORS = ("add", "sub", "mul", "truediv", "pow")


def check_optimizer(optimizer: Any) -> None:
    """Raises NotImplementedError, by name, where an optimizer does what `fit` does not have."""
    name = type(optimizer).__name__
    if type(optimizer) not in [getattr(keras.optimizers, known, None) for known in KNOWN]:
        raise NotImplementedError(
            f"the optimizer is a {name}, which mtf_hetero.keras.fit does not know; use one of {', '.join(KNOWN)}"
        )
    for option in ("use_ema", "gradient_accumulation_steps", "loss_scale_factor"):
        if getattr(optimizer, option, None):
            raise NotImplementedError(
                f"the optimizer {name} has {option}={getattr(optimizer, option)!r}, which mtf_hetero.keras.fit does "
                "not have; leave it out"
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
            f"the optimizer {optimizer.name!r} does not know the weight {weight.variable.path!r}; compile the model "
            "again once other layers are trainable"
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
    """

    name: str
    options: Mapping[str, Any]
    slots: tuple[str, ...]
    decay: float | None

    @classmethod
    def of(cls, optimizer: Any, weight: Weight, slots: Sequence[str]) -> "Rule":
        """The rule of an optimizer for a weight."""
        plain = {key: value for key, value in vars(optimizer).items() if isinstance(value, (bool, int, float))}
        decay = optimizer.weight_decay
        if decay is not None and not optimizer._use_weight_decay(weight.variable.value):
            decay = None
        return cls(type(optimizer).__name__, plain, tuple(slots), None if decay is None else float(decay))

    def step(
        self, gradient: tf.Tensor, rate: tf.Tensor, iterations: tf.Tensor, value: tf.Tensor, *kept: tf.Tensor
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """The weight and its slots after a step.

        Args:
          gradient: of the weight.
          rate: the learning rate.
          iterations: how many steps there were.
          value: the weight.
          *kept: its slots.
        """
        variable, states = _State(value), [_State(x) for x in kept]
        if self.decay is not None:
            dtype = value.dtype
            variable.tensor = value - value * tf.cast(self.decay, dtype) * tf.cast(rate, dtype)
        kind = _assigning(self.name)
        rule = object.__new__(kind)
        vars(rule).update(self.options)
        vars(rule).update(
            {slot: [state] for slot, state in zip(self.slots, states, strict=True)}, iterations=iterations
        )
        rule.update_step(gradient, variable, rate)
        return (variable.tensor, *(state.tensor for state in states)) if states else variable.tensor


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


def _applied(function: Callable[..., tf.Tensor], x: mtf.Tensor, scalar: mtf.Tensor) -> mtf.Tensor:
    return mtf.slicewise(function, [x, scalar], x.shape, x.dtype, splittable_dims=x.shape.dims)


def updates(
    optimizer: Any,
    gradients: Sequence[tuple[mtf.Variable, Weight, mtf.Tensor]],
    rate: mtf.Tensor,
    iterations: mtf.Tensor,
) -> tuple[list[mtf.Operation], dict[str, Weight]]:
    """One step of an optimizer.

    Args:
      optimizer: the keras.optimizers.Optimizer, which is built.
      gradients: (variable, what it is in Keras, its gradient).
      rate: mtf.Tensor [], the learning rate.
      iterations: mtf.Tensor [], how many steps there were.

    Returns:
      The operations, and {mtf variable: Weight} of what the optimizer keeps.
    """
    operations, kept = [], {}
    clipped_gradients = clipped(optimizer, [gradient for *_, gradient in gradients])
    for (variable, weight, _), gradient in zip(gradients, clipped_gradients, strict=True):
        value = variable.value
        slots = slots_of(optimizer, variable.name, weight)
        names = list(slots.names)
        states = [
            mtf.get_variable(
                value.mesh,
                slots.names[name],
                value.shape,
                dtype=tf.as_dtype(slots.weights[name].variable.dtype),
                initializer=tf.zeros_initializer(),
                trainable=False,
            )
            for name in names
        ]
        tensors = [value, *states]
        results = mtf.slicewise(
            Rule.of(optimizer, weight, names).step,
            [gradient, rate, iterations, *tensors],
            [x.shape for x in tensors],
            [x.dtype for x in tensors],
            splittable_dims=value.shape.dims,
            name=f"{variable.name}/step",
        )
        operations += [mtf.assign(x.operation, y) for x, y in zip(tensors, results, strict=True)]
        kept.update({slots.names[name]: slots.weights[name] for name in names})
    return operations, kept
