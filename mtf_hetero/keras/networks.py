"""Keras models that are named: a `.keras` file, or a constructor of keras.applications; and what is known of each.

Their weights lie in the memory of the host, whatever devices there are.
"""

import contextlib
import dataclasses
import difflib
import os
import pathlib
import random
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import files
from mtf_hetero.keras import walk
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.walk import is_graph

SUFFIX = ".keras"
_NORMALIZATION = "input_normalization"
_NORMALISING = (keras.layers.Normalization, keras.layers.Rescaling)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a model takes and gives.

    Args:
      image_shape: of its input, without the batch; None is any size.
      output_shape: of its output, the same.
      parameters: number of trainable parameters.
    """

    image_shape: tuple[int | None, ...]
    output_shape: tuple[int | None, ...]
    parameters: int


def on_host() -> Any:
    """Where Keras makes its variables: no device ever holds a whole model for us."""
    return tf.device("cpu:0")


def load(path: str | os.PathLike) -> Any:
    """The keras.Model of a file, not compiled.

    Raises:
      ValueError: in one line, why it cannot be read.
    """
    place = pathlib.Path(path).expanduser()
    if not place.is_file():
        raise ValueError(f"{str(path)!r} is not a file; give a file that keras.Model.save wrote")
    if not zipfile.is_zipfile(place):
        raise ValueError(f"{str(path)!r} is not a Keras model, or is damaged; give a file that keras.Model.save wrote")
    try:
        with on_host():
            return keras.saving.load_model(place, compile=False)
    except Exception as error:  # Keras has errors of all kinds, and those of zip and HDF5 files
        raise ValueError(f"{str(path)!r} cannot be read as a Keras model: {_line(error)}") from error


def save(model: Any, path: str | os.PathLike) -> None:
    """Writes a model to a `.keras` file, in place of what was there, as a whole or not at all.

    Raises:
      OSError: it cannot be written; what was there before is as it was.
    """
    with files.replaced(path) as made:
        model.save(made)


def normalising(model: Any, mean: Sequence[float] | np.ndarray, deviation: Sequence[float] | np.ndarray) -> Any:
    """Return a keras.Model of the same layers, in front of which a Normalization layer normalises each channel.

    Args:
      model: a functional or sequential model with one input, which takes normalised numbers.
      mean: of each channel.
      deviation: standard deviation of each channel.

    Raises:
      ValueError: a deviation is so small that Keras's layer would use another one.
    """
    least = keras.backend.epsilon()
    if min(deviation) < least:
        raise ValueError(
            f"a channel has the standard deviation {min(deviation):g}, and Keras's Normalization uses {least:g} at "
            "least; store the data in another unit, and train again"
        )
    (taken,), program = model.inputs, walk.program_of(model)
    name = _NORMALIZATION
    while name in {layer.name for layer in model.layers}:
        name += "_"
    arrays = np.array(mean, np.float32), np.square(np.array(deviation, np.float64)).astype(np.float32)
    with on_host():
        stored = keras.Input(taken.shape[1:], dtype="float32", name=taken.name)
        layer = keras.layers.Normalization(mean=arrays[0], variance=arrays[1], name=name, dtype="float32")
        tensors = {0: layer(stored)}
        for step in program.steps:
            args, kwargs = (walk.filled(value, tensors) for value in (step.args, step.kwargs))
            outputs = keras.tree.flatten(step.layer(*args, **kwargs))
            tensors.update({place.number: y for place, y in zip(step.outputs, outputs, strict=True)})
        outputs = [tensors[place.number] for place in program.outputs]
        return keras.Model(stored, outputs if program.several else outputs[0], name=model.name)


def normalises(model: Any) -> bool:
    """Return whether all that a model does with its first input begins with a Normalization or Rescaling layer."""
    steps = [step for step in walk.program_of(model).steps if walk.Place(0) in keras.tree.flatten(step.args)]
    return bool(steps) and all(
        type(step.layer) in _NORMALISING or (is_graph(step.layer) and normalises(step.layer)) for step in steps
    )


def names() -> tuple[str, ...]:
    """The constructors of keras.applications."""
    found = vars(keras.applications).items()
    return tuple(sorted(name for name, value in found if name[:1].isupper() and callable(value)))


def check_name(name: str) -> None:
    """Raises ValueError, with the names that are near, unless keras.applications has a constructor of this name."""
    known = names()
    if name not in known:
        lower = {other.lower(): other for other in known}
        near = [lower[other] for other in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
        raise ValueError(
            f"keras.applications has no {name!r}; "
            + (f"write {' or '.join(near)}" if near else f"it has {', '.join(known)}")
        )


def construct(name: str, *, image_shape: Sequence[int] | None, classes: int | None, seed: int) -> Any:
    """A model of keras.applications, with random weights.

    Args:
      name: of the constructor.
      image_shape: (height, width, channels); None: what it was made for.
      classes: number of classes; None: what it was made for.
      seed: of the weights.

    Raises:
      ValueError: there is no such constructor, or it makes no model for such images.
    """
    check_name(name)
    options: dict[str, Any] = {} if image_shape is None else {"input_shape": tuple(image_shape)}
    options |= {} if classes is None else {"classes": classes}
    try:
        with on_host(), _seeded(seed):
            return getattr(keras.applications, name)(weights=None, **options)
    except Exception as error:  # of a constructor that is Keras's own
        text = " x ".join(map(str, image_shape or ()))
        raise ValueError(
            f"keras.applications.{name} cannot make a model for images of {text}: {_line(error)}"
        ) from error


def facts(model: Any) -> Facts:
    """What a model takes and gives.

    Raises:
      ValueError: it has not one input of floating-point images or volumes and one output, or is not built.
      NotImplementedError: it is a class of the user's own.
    """
    if not is_graph(model):
        raise NotImplementedError(
            f"model {model.name!r} is a {type(model).__name__}, whose own code calls its layers; make the model of "
            "keras.Input and layers"
        )
    inputs, outputs = keras.tree.flatten(model.inputs or ()), keras.tree.flatten(model.outputs or ())
    if not inputs:
        raise ValueError(f"model {model.name!r} is not built; give its first layer a keras.Input, and save it again")
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(
            f"model {model.name!r} has {len(inputs)} inputs and {len(outputs)} outputs; give a model with one of each"
        )
    shape = tuple(inputs[0].shape[1:])
    if len(shape) not in (3, 4) or not inputs[0].dtype.startswith(("float", "bfloat")):
        raise ValueError(
            f"model {model.name!r} needs {inputs[0].dtype} [batch, {', '.join(map(str, shape))}]; give a model for "
            "images, [batch, height, width, channels], or volumes, [batch, depth, height, width, channels]"
        )
    parameters = sum(variable.value.shape.num_elements() for variable in model.trainable_variables)
    return Facts(shape, tuple(outputs[0].shape[1:]), parameters)


def left_out(model: Any) -> tuple[str, ...]:
    """Lines on what of a model is not in the graphs that are made of it: regularisers and constraints."""
    lines = []
    for noun in ("regularizer", "constraint"):
        found = [v.path for v in model.trainable_variables if getattr(v, noun, None) is not None]
        if noun == "regularizer":
            found += [layer.name for layer in model.layers if getattr(layer, "activity_regularizer", None) is not None]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            lines.append(f"warning: ignoring the {noun} of {found[0]}{more}")
    return tuple(lines)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Has Keras's initial values follow from a seed: it draws the seed of each from Python's generator."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _line(error: Exception) -> str:
    """The first sentence of Keras's many."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
