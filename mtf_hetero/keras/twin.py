"""A network of mtf and the Keras model that computes the same: which variable of the one is which of the other."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtf_hetero import checkpoint as saver
from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.builder import Builder, build
from mtf_hetero.keras.weights import Weight


@dataclasses.dataclass(frozen=True, eq=False)
class Twin:
    """A Keras model, and which mtf variables its weights are.

    Args:
      model: the keras.Model.
      weights: {name of an mtf variable: Weight}.
    """

    model: keras.Model
    weights: Mapping[str, Weight]

    @classmethod
    def of(cls, model: keras.Model, builder: Builder | None = None) -> "Twin":
        """Return a Keras model as it is, and the variables that `build` makes of it.

        Args:
          model: the keras.Model, whose inputs have known shapes.
          builder: of the model, if it has built it already; None: it is built now.
        """
        builder = build(model) if builder is None else builder
        if not builder.variables:
            with tf.Graph().as_default():
                mesh = mtf.Mesh(mtf.Graph(), "mesh")
                builder([_blank(mesh, x, f"input{i}") for i, x in enumerate(keras.tree.flatten(model.inputs))])
        return cls(model, builder.variables)

    def values(self) -> dict[str, np.ndarray]:
        """{name of an mtf variable: the array that it has where the model has its weights}."""
        return {name: weight.to_mtf(np.asarray(weight.variable.numpy())) for name, weight in self.weights.items()}

    def load(self, checkpoint: str | os.PathLike) -> None:
        """Give the model what a checkpoint has, one variable after another, in the memory of the host.

        Args:
          checkpoint: its path, or a directory, whose newest whole one it is.

        Raises:
          ValueError: there is none, it is damaged, or it is of another network.
        """
        path = _find_checkpoint(os.fspath(checkpoint))
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        for name, weight in self.weights.items():
            shape = list(weight.shape)
            if shapes.get(name) != shape:
                has = f"shape {shapes[name]}" if name in shapes else "no such variable"
                raise ValueError(
                    f"{path} belongs to another network: variable {name!r} has shape {shape} in this network, but "
                    f"{has} in the checkpoint; give another checkpoint or network"
                )
        for name, weight in self.weights.items():
            weight.put_back(reader.get_tensor(name))


def to_keras(network: Any, checkpoint: str | os.PathLike | None = None, **config: Any) -> keras.Model:
    """Return a keras.Model of plain Keras layers with the weights and the moving averages of a checkpoint.

    Nothing is put together on a device: the variables are read one after another into the memory of the host.

    Args:
      network: of `mtf_hetero.models.MODELS`; or a keras.Model that was trained as `build` makes it, which gets them.
      checkpoint: its path, or a directory, whose newest whole one it is; None: the weights are as Keras makes them.
      **config: of a network of MODELS: `image_shape`, of (height, width, channels), or with a depth before; `dtype`,
        "float32"; and whatever its `build` takes, `classes` among it. By default what the network was made for.

    Returns:
      keras.Model, which gives what the network gives: of a classifier, logits.

    Raises:
      ValueError: there is no checkpoint, or it is of another network.

    Example:
      >>> model = mtf_hetero.keras.to_keras(MODELS["lenet"], "runs/lenet")
      >>> model.save("lenet.keras")
    """
    if isinstance(network, keras.Model):
        if config:
            raise ValueError(f"{', '.join(config)}: a keras.Model has no such options; remove them")
        twin = Twin.of(network)
    else:
        with tf.device("cpu:0"):
            twin = network.twin(**config)
    if checkpoint is not None:
        twin.load(checkpoint)
    return twin.model


def _blank(mesh: mtf.Mesh, x: keras.KerasTensor, name: str) -> mtf.Tensor:
    if None in x.shape[1:]:
        raise ValueError(f"input {x.name!r} has the shape {x.shape}, with unknown sizes; give fixed sizes")
    shape = [1, *x.shape[1:]]
    dims = [mtf.Dimension(f"{name}/dim{i}", size) for i, size in enumerate(shape)]
    return mtf.import_tf_tensor(mesh, tf.zeros(shape, tf.as_dtype(x.dtype)), mtf.Shape(dims))


def _find_checkpoint(checkpoint: str) -> str:
    """Return the path of a checkpoint that is whole."""
    if os.path.isdir(checkpoint):
        path = saver.find(checkpoint).path
        if path is None:
            raise ValueError(f"{checkpoint!r} has no checkpoint; give a checkpoint, or another directory")
        return path
    if not os.path.isfile(f"{checkpoint}.index"):
        raise ValueError(
            f"{checkpoint!r} is not a checkpoint; give one, as in MODEL_DIR/model.ckpt-500, or a directory"
        )
    if damage := saver.find_damage(checkpoint):
        raise ValueError(f"{checkpoint!r} is damaged: {damage}; give another checkpoint")
    return checkpoint
