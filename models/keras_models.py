"""Use Keras models as networks of the training program, and check that they fit the data."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mtf_hetero import mtf
from mtf_hetero.cli.train.tasks import Classification, Regression, Segmentation, Task
from mtf_hetero.keras import networks
from mtf_hetero.keras.builder import Builder
from mtf_hetero.keras.first_step import FirstStep
from mtf_hetero.keras.twin import Twin
from mtf_hetero.models.registry import PREFIX, Model

if TYPE_CHECKING:
    import keras

_USUAL = (224, 224, 3)  # of images, for a constructor that sets no size
_TASKS: dict[tuple[int, int], type[Task]] = {  # {(rank of an input, rank of an output): task}
    (3, 1): Classification,
    (4, 1): Regression,
    (4, 4): Segmentation,
}


def find(name: str, *, kept: str | None, seed: int | None) -> Model:
    """Return the Keras model of a name, as a Model that is not yet `fitted`.

    Args:
      name: my.keras, or keras:ResNet50.
      kept: path of a copy, which is read instead.
      seed: for the initial values of a model of keras.applications; None: it has none.

    Raises:
      ValueError, NotImplementedError: as in `mtf_hetero.models.named.find`.
    """
    with _name_errors(name):
        if kept is not None or not name.startswith(PREFIX):
            return _make_model(name, networks.load(name if kept is None else kept))
        constructor = name.removeprefix(PREFIX)
        networks.check_name(constructor)
    fit = functools.partial(_constructed, name, constructor, seed)
    return Model(_unfitted, _USUAL, 1000, 0, fit=fit)


def keep(model: Model, path: str) -> None:
    """Write the Keras model of a Model, with its present weights, to a file.

    Raises:
      OSError: it cannot be written.
    """
    assert isinstance(model.build, _Network)
    networks.save(model.build.builder.model, path)


@contextlib.contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Add the model's name to errors about it."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise type(error)(f"--model is {name!r}: {error}") from error


@dataclasses.dataclass(frozen=True, eq=False)
class _Network:
    """Builds a Keras model like the networks of MODELS."""

    name: str
    builder: Builder
    last: str

    def __call__(
        self, images: mtf.Tensor, *, training: bool = False, is_staged: bool = False, **config: object
    ) -> mtf.Tensor:
        """Return outputs in the images' type, mtf.Tensor [batch, ..., LAST]; `config` is unused."""
        del config
        if images.shape.ndims != len(self.builder.model.inputs[0].shape):
            raise ValueError(
                f"--model is {self.name!r}, which needs a batch of one dimension, but this layout has two; use a "
                "layout with one mesh axis, or another recipe"
            )
        with _name_errors(self.name):
            y = mtf.cast(self.builder(images, training=training, is_staged=is_staged), images.dtype)
        dims = images.shape.dims[: y.shape.ndims - 1]
        return mtf.reshape(y, [*dims, mtf.Dimension(self.last, y.shape.dims[-1].size)])

    def twin(self, **config: object) -> Twin:
        """Return the Keras model itself."""
        del config
        return Twin.of(self.builder.model, self.builder)


def _unfitted(*_: object, **__: object) -> mtf.Tensor:
    raise ValueError("this network depends on the data; call `fitted` first")


def _constructed(
    name: str, constructor: str, seed: int | None, image_shape: Sequence[int] | None, count: int | None
) -> Model:
    with _name_errors(name):
        model = networks.construct(constructor, image_shape=image_shape, classes=count, seed=seed)
    made = _make_model(name, model)
    if image_shape is None and None in made.image_shape:
        image_shape = _USUAL
    return made.fitted(image_shape, count)


def _make_model(name: str, model: "keras.Model") -> Model:
    facts = networks.facts(model)
    task = _TASKS.get((len(facts.image_shape), len(facts.output_shape)))
    if task is None:
        raise ValueError(
            f"its output is {_text(facts.output_shape)} for each input of {_text(facts.image_shape)}; give a model "
            "that predicts classes of images, targets of volumes, or classes of voxels"
        )
    fit = functools.partial(_fit, name, model, facts, task)
    shape: Any = facts.image_shape
    return Model(_unfitted, shape, facts.output_shape[-1] or 0, facts.parameters, task, fit=fit)


def _fit(
    name: str,
    model: "keras.Model",
    facts: networks.Facts,
    task: type[Task],
    image_shape: Sequence[int] | None,
    count: int | None,
) -> Model:
    """Return the model for images of a shape, and so many classes or targets."""
    made_for, unit = facts.image_shape, "volumes" if len(facts.image_shape) == 4 else "images"
    shape: Any = made_for if image_shape is None else tuple(image_shape)
    if None in shape:
        raise ValueError(
            f"--model is {name!r}, whose input has no fixed size: {unit} of {_text(made_for)}; give --image_size"
        )
    if len(shape) != len(made_for) or any(n not in (None, m) for n, m in zip(made_for, shape, strict=True)):
        raise ValueError(
            f"--model is {name!r}, which needs {unit} of {_text(made_for)}, but the data set has "
            f"{_text(shape)}; give a model for this size, or another data set"
        )
    output = tuple(model.compute_output_shape((1, *shape))[1:])
    if task is Segmentation and output[:-1] != shape[:-1]:
        raise ValueError(
            f"--model is {name!r}, whose output is {_text(output)} for {_text(shape)}; give a model with "
            "a class per voxel"
        )
    if count not in (None, output[-1]):
        noun = "targets" if task is Regression else "classes"
        raise ValueError(
            f"--model is {name!r}, which has {output[-1]} outputs, but the data set has {count} {noun}; give a "
            f"model with {count} outputs, or another data set"
        )
    with _name_errors(name):
        builder = Builder(model, starts=False, logits=task is not Regression)
    network, notes = (
        _Network(name, builder, "outputs" if task is Regression else "classes"),
        networks.describe_unused(model),
    )
    normalises = networks.normalises(model)
    if normalises:
        notes = (f"{name} normalizes its {unit} itself, and gets them as they are stored", *notes)
    made = Model(
        network,
        shape,
        output[-1],
        facts.parameters,
        task,
        in_stages=True,
        twin=network.twin,
        notes=notes,
        check=functools.partial(FirstStep, builder),
    )
    return dataclasses.replace(made, initial=lambda: network.twin().values(), normalises=normalises)


def _text(shape: Sequence[int | None]) -> str:
    return " x ".join("any" if n is None else str(n) for n in shape)
