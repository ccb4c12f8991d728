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
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mtf_hetero._compat import tf, valueless_variable
from mtf_hetero._support import files
from mtf_hetero.keras._keras import keras

SUFFIX = ".keras"
_SAFE = (3, 11)  # the first version whose safe mode holds: CVE-2025-1550, CVE-2025-8747
_NORMALIZATION = "input_normalization"
_NORMALISING = (keras.layers.Normalization, keras.layers.Rescaling)
_IN_PYTHON = "; in Python, mtf_hetero.plan and mtf_hetero.keras.fit take any model"


@dataclasses.dataclass(frozen=True)
class Facts:
    """Shapes of a model's input and output, and its size.

    Args:
      image_shape: of its input, without the batch; None is any size.
      output_shape: of its output, the same.
      parameters: number of trainable parameters.
    """

    image_shape: tuple[int | None, ...]
    output_shape: tuple[int | None, ...]
    parameters: int


def on_host() -> contextlib.AbstractContextManager[None]:
    """Have Keras make its variables in the memory of the host: a whole model may fit no device."""
    return tf.device("cpu:0")


def load(path: str | os.PathLike) -> keras.Model:
    """Return the keras.Model of a file, not compiled.

    Raises:
      ValueError: in one line, why it cannot be read.
    """
    place = pathlib.Path(path).expanduser()
    if not place.is_file():
        raise ValueError(f"{str(path)!r} is not a file; give a file that keras.Model.save wrote")
    if tuple(map(int, keras.__version__.split(".")[:2])) < _SAFE:
        raise ValueError(
            f"{str(path)!r} is not read by Keras {keras.__version__}, which may run code of a .keras file; "
            "pip install 'keras>=3.11'"
        )
    if not zipfile.is_zipfile(place):
        raise ValueError(f"{str(path)!r} is not a Keras model, or is damaged; give a file that keras.Model.save wrote")
    try:
        with on_host():
            return keras.saving.load_model(place, compile=False)
    except Exception as error:  # Keras has errors of all kinds, and those of zip and HDF5 files
        raise ValueError(f"{str(path)!r} cannot be read as a Keras model: {_line(error)}") from error


def save(model: keras.Model, path: str | os.PathLike) -> None:
    """Write a model to a `.keras` file, in place of what was there, as a whole or not at all.

    Raises:
      OSError: it cannot be written; what was there before is as it was.
    """
    with files.new_file(path) as made:
        model.save(made)


def normalising(
    model: keras.Model, mean: Sequence[float] | np.ndarray, deviation: Sequence[float] | np.ndarray
) -> keras.Model:
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
    (taken,), name = model.inputs, _NORMALIZATION
    while name in {layer.name for layer in model.layers}:
        name += "_"
    arrays = np.array(mean, np.float32), np.square(np.array(deviation, np.float64)).astype(np.float32)
    with on_host():
        stored = keras.Input(taken.shape[1:], dtype="float32", name=taken.name)
        layer = keras.layers.Normalization(mean=arrays[0], variance=arrays[1], name=name, dtype="float32")
        outputs = keras.Function(model.inputs, model.outputs).call([layer(stored)])  # calls each layer anew
        return keras.Model(stored, outputs if len(outputs) > 1 else outputs[0], name=model.name)


def normalises(model: keras.Model) -> bool:
    """Return whether all that a model does with its first input begins with a Normalization or Rescaling layer."""
    first, layers = model.inputs[0], keras.Function(model.inputs, model.outputs).operations
    readers = [x for x in layers if any(y is first for node in x._inbound_nodes for y in node.input_tensors)]
    return bool(readers) and all(
        type(x) in _NORMALISING or (getattr(x, "inputs", None) and normalises(x)) for x in readers
    )


def names() -> tuple[str, ...]:
    """Return the constructors of keras.applications."""
    found = vars(keras.applications).items()
    return tuple(sorted(name for name, value in found if name[:1].isupper() and callable(value)))


def check_name(name: str) -> None:
    """Raise ValueError, with the names that are near, unless keras.applications has a constructor of this name."""
    known = names()
    if name not in known:
        lower = {other.lower(): other for other in known}
        near = [lower[other] for other in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
        raise ValueError(
            f"keras.applications has no {name!r}; "
            + (f"write {' or '.join(near)}" if near else f"it has {', '.join(known)}")
        )


def construct(name: str, *, image_shape: Sequence[int] | None, classes: int | None, seed: int | None) -> keras.Model:
    """Return a model of keras.applications, with random weights or none.

    Args:
      name: of the constructor.
      image_shape: (height, width, channels); None: what it was made for.
      classes: number of classes; None: what it was made for.
      seed: of the weights; None: those that are trained have no values, which a plan does not read.

    Raises:
      ValueError: there is no such constructor, or it makes no model for such images.
    """
    check_name(name)
    options: dict[str, object] = {} if image_shape is None else {"input_shape": tuple(image_shape)}
    options |= {} if classes is None else {"classes": classes}
    try:
        with on_host(), _without_values() if seed is None else _seeded(seed):
            return getattr(keras.applications, name)(weights=None, **options)
    except Exception as error:  # of a constructor that is Keras's own
        text = " x ".join(map(str, image_shape or ()))
        raise ValueError(
            f"keras.applications.{name} cannot make a model for images of {text}: {_line(error)}"
        ) from error


def facts(model: keras.Model) -> Facts:
    """Return the shapes of a model's input and output, and its size.

    Raises:
      ValueError: it has not one input of floating-point images or volumes and one output, or is not built.
    """
    inputs, outputs = (keras.tree.flatten(getattr(model, x, None) or ()) for x in ("inputs", "outputs"))
    if not inputs:
        raise ValueError(f"model {model.name!r} is not built; give its first layer a keras.Input, and save it again")
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(
            f"model {model.name!r} has {len(inputs)} inputs and {len(outputs)} outputs; give a model with one of each"
            f"{_IN_PYTHON}"
        )
    shape = tuple(inputs[0].shape[1:])
    if len(shape) not in (3, 4) or not inputs[0].dtype.startswith(("float", "bfloat")):
        raise ValueError(
            f"model {model.name!r} needs {inputs[0].dtype} [batch, {', '.join(map(str, shape))}]; give a model for "
            "images, [batch, height, width, channels], or volumes, [batch, depth, height, width, channels]"
            f"{_IN_PYTHON}"
        )
    parameters = sum(variable.value.shape.num_elements() for variable in model.trainable_variables)
    return Facts(shape, tuple(outputs[0].shape[1:]), parameters)


def describe_unused(model: keras.Model) -> tuple[str, ...]:
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


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Has Keras make the weights that are trained without initial values, which take most of its time and memory."""
    with_value = keras.Variable._initialize_with_initializer

    def without_value(variable: keras.Variable, initializer: Callable[..., object]) -> None:
        if variable.trainable:
            form = {"shape": variable.shape, "dtype": variable.dtype}
            variable._value = valueless_variable(name=variable.name, trainable=True, **form)
        else:
            with_value(variable, initializer)

    keras.Variable._initialize_with_initializer = without_value
    try:
        yield
    finally:
        keras.Variable._initialize_with_initializer = with_value


def _line(error: Exception) -> str:
    """Return the first sentence of Keras's many."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
