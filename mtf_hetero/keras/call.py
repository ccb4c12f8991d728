"""One call of one layer: what a registered function is given beside the layer's inputs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras.weights import Weight, weight
from mtf_hetero.layers import update_average
from mtf_hetero.variables import get_variable


@dataclasses.dataclass(frozen=True, eq=False)
class Before:
    """What a softmax or sigmoid was given, from which Keras computes the losses of what it gives.

    Args:
      logits: what it was given.
      activation: Keras's function, from a tf.Tensor to one.
    """

    logits: mtf.Tensor
    activation: Callable[[Any], Any]


@dataclasses.dataclass(eq=False)
class Building:
    """What all layers share while a model is built into an mtf graph.

    Args:
      mesh: mtf.Mesh.
      training: as of the model; None: a layer infers, unless the call that the model has of it says otherwise.
      arrays: {id of a Keras variable: its value}, its initial value; of one that is not there, zeros.
      weights: {name of an mtf variable: Weight}, to which the variables are added.
      owned: names of variables that the graph has of this model.
      apply: builds a layer: from (layer, name, args, kwargs) to what it gives.
      without: the layer whose softmax is left out, if there is one.
    """

    mesh: mtf.Mesh
    training: bool | None
    arrays: dict[int, np.ndarray]
    weights: dict[str, Weight]
    owned: set[str]
    apply: Callable[..., Any]
    without: Any = None
    names: dict[int, str] = dataclasses.field(default_factory=dict)  # {id of a layer: its name}
    made: dict[int, tuple[str, mtf.Tensor]] = dataclasses.field(default_factory=dict)  # {id of a Keras variable}
    averages: dict[int, mtf.Tensor] = dataclasses.field(default_factory=dict)  # the same: what it is moved to
    activated: dict[mtf.Tensor, "Before"] = dataclasses.field(default_factory=dict)  # what a softmax or sigmoid gave
    regularized: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)  # (name, layer, what it gave)


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of one layer.

    Args:
      layer: the Keras layer, or the operation of keras.ops.
      name: the layer's name, which begins the names of its dimensions and variables.
      building: what all layers share.
    """

    layer: Any
    name: str
    building: Building

    @property
    def training(self) -> bool:
        """Whether the model is built for training."""
        return bool(self.building.training)

    @property
    def mesh(self) -> mtf.Mesh:
        """The mesh of all tensors."""
        return self.building.mesh

    @property
    def dtype(self) -> tf.DType:
        """The type that the layer computes in."""
        return tf.as_dtype(getattr(self.layer, "compute_dtype", None) or "float32")

    def enter(self, x: mtf.Tensor, *last: str) -> mtf.Tensor:
        """What comes into the layer, with the layer's names: [NAME/batch, ..., NAME/LAST]."""
        return naming.entered(x, self.name, *last)

    def dim(self, name: str, size: int) -> mtf.Dimension:
        """A dimension of the layer's own, NAME/name."""
        return mtf.Dimension(f"{self.name}/{name}", size)

    def variable(
        self,
        variable: Any,
        dims: Sequence[mtf.Dimension],
        *,
        split: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        dtype: tf.DType | None = None,
    ) -> mtf.Tensor:
        """A Keras variable as an mtf.Tensor, whose initial value is the one that the Keras variable has.

        Args:
          variable: the keras.Variable. Where it was asked for before, in a layer that is called twice, it is the same.
          dims: of the mtf.Tensor.
          split: the shape that the Keras variable's array is given first; None: that of `dims`.
          axes: the order in which `dims` has the dimensions of `split`; None: that one.
          dtype: of the result; None: the type that the layer computes in.

        Raises:
          ValueError: the graph has another variable of this name, or the dimensions do not fit.
        """
        building, shape = self.building, mtf.Shape(list(dims))
        known = weight(variable, shape.to_integer_list, split, axes)
        if id(variable) in building.made:
            full_name, tensor = building.made[id(variable)]
            return mtf.cast(_used_again(tensor, building.weights[full_name], known, shape), dtype or self.dtype)
        stored = tf.as_dtype(variable.dtype)
        name = f"{self.name}/{naming.plain(variable.name)}"
        scope = tf.get_variable_scope().name
        full_name = f"{scope}/{name}" if scope else name
        before = building.weights.get(full_name) if full_name in building.owned else None
        if full_name in self.mesh.graph.name_to_variable and (before is None or before.variable is not variable):
            raise ValueError(
                f"the graph has another variable {full_name!r}; give layers and weights different names, and build "
                "each model in its own tf.variable_scope"
            )
        array = building.arrays.get(id(variable))
        sizes = shape.to_integer_list
        tensor = get_variable(
            self.mesh,
            name,
            shape,
            dtype=stored,
            initializer=lambda *_, **__: (
                zeros(sizes, stored) if array is None else tf.constant(known.to_mtf(array), stored)
            ),
            trainable=variable.trainable,
        )
        building.owned.add(full_name)
        building.weights[full_name] = known
        building.made[id(variable)] = full_name, tensor
        return mtf.cast(tensor, dtype or self.dtype)

    def constant(self, array: Any, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
        """An array that does not change, as an mtf.Tensor."""
        return mtf.import_tf_tensor(self.mesh, tf.constant(np.asarray(array), self.dtype), mtf.Shape(list(dims)))

    def move(self, variable: Any, average: mtf.Tensor, momentum: float) -> None:
        """Has a moving average moved by each training step, as `mtf_hetero.layers.batch_norm_updates` says.

        Args:
          variable: the Keras variable, which is an mtf variable already.
          average: what it moves to.
          momentum: what it keeps of itself; where a layer is called twice, of what it was moved to before.
        """
        building, key = self.building, id(variable)
        before = building.averages.get(key, building.made[key][1])
        average = mtf.cast(mtf.reshape(mtf.stop_gradient(average), before.shape), before.dtype)
        building.averages[key] = before * momentum + average * (1 - momentum)

    def part(self, layer: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a layer within this one gives, by the name NAME/name."""
        return self.building.apply(self.building, layer, f"{self.name}/{name}", args, kwargs)


def _used_again(tensor: mtf.Tensor, first: Weight, again: Weight, shape: mtf.Shape) -> mtf.Tensor:
    """Return a variable as a second use asks for it, whose array is split and ordered in another way than the first's.

    Args:
      tensor: the mtf variable, as the first use has it.
      first: how its array is made of the Keras variable's.
      again: the same of the second use.
      shape: of the result.
    """
    as_split = mtf.Shape([tensor.shape.dims[place] for place in np.argsort(first.axes)])
    whole = tensor if tensor.shape == as_split else mtf.transpose(tensor, as_split)
    whole = mtf.reshape(whole, [shape.dims[place] for place in np.argsort(again.axes)])
    return whole if whole.shape == shape else mtf.transpose(whole, shape)


def move_averages(building: Building) -> None:
    """Makes the updates of all moving averages, once the model is built."""
    for key, moved in building.averages.items():
        name, _ = building.made[key]
        update_average(building.mesh.graph.name_to_variable[name], moved, name=f"{name}/update")
