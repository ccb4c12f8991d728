"""The network that a command line names: a model, a step of TensorFlow, or a function that builds a graph."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import functions
from mtf_hetero._support.schema import Text, shorten
from mtf_hetero.cli.train.config import OPTIMIZERS, POSITIVE

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf
    from mtf_hetero.models.registry import Model
    from mtf_hetero.planner.answering import Network

_IMAGENET = 224, 1000  # size and classes of the images for which VGG was made; `train` has it for smaller ones too
_OF_IMAGENET = "vgg"
_OF_MODEL = {"batch_size": POSITIVE, "image_size": POSITIVE, "optimizer": Text(OPTIMIZERS)}
_BATCH_SIZE, _OPTIMIZER = 128, "momentum"  # not in argparse, because a flag of a model beside --step is refused


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a network."""
    network = parser.add_mutually_exclusive_group(required=True)
    network.add_argument("--model", help="a network that `train` knows, such as vgg16, my.keras or keras:ResNet50")
    network.add_argument("--step", help="module:function that returns a step of TensorFlow and its arguments, a tuple")
    network.add_argument("--graph", help="module:function that builds and returns an mtf.Graph")
    parser.add_argument("--batch_size", type=int, help=f"of a model: examples per step ({_BATCH_SIZE})")
    parser.add_argument("--image_size", type=int, help="of a model: height and width (default: the model's own)")
    parser.add_argument("--optimizer", help=f"of a model ({_OPTIMIZER})")


def check_flags(arguments: argparse.Namespace) -> None:
    """Find mistakes before TensorFlow is loaded, which takes seconds.

    Raises:
      ValueError: a wrong flag.
    """
    given = [flag for flag in ("graph", "step") if getattr(arguments, flag) is not None]
    for flag in given:
        functions.check_function(flag, getattr(arguments, flag))
    for flag, kind in _OF_MODEL.items():
        if (value := getattr(arguments, flag)) is not None:
            if given:
                raise ValueError(f"--{flag} is of a --model, but there is --{given[0]}; remove one of the two")
            kind.read(value, f"--{flag}")


def fill_in(arguments: argparse.Namespace) -> None:
    """Set the defaults of the flags of a model that were not given."""
    if arguments.batch_size is None:
        arguments.batch_size = _BATCH_SIZE
    if arguments.optimizer is None:
        arguments.optimizer = _OPTIMIZER


def flags(arguments: argparse.Namespace) -> str:
    """Return the flags that name the network, as the user would write them for another program."""
    if arguments.model is None:
        return f"--step={arguments.step}" if arguments.graph is None else f"--graph={arguments.graph}"
    size = "" if arguments.image_size is None else f" --image_size={arguments.image_size}"
    return f"--model={arguments.model} --batch_size={arguments.batch_size}{size} --optimizer={arguments.optimizer}"


def find(arguments: argparse.Namespace) -> "Network":
    """Return the network that the flags name.

    Raises:
      ValueError: there is none.
    """
    from mtf_hetero.planner.answering import Network

    if arguments.graph is not None:
        return Network(arguments.graph, functions.graph_function("graph", arguments.graph))
    if arguments.step is not None:
        return _load_step(arguments.step)
    from mtf_hetero.models import named

    found = named.find(arguments.model, seed=None)  # no initial values: they took 1.3 s of VGG16's constructor
    is_usual = arguments.image_size is None and arguments.model.startswith(_OF_IMAGENET)
    size, classes = _IMAGENET if is_usual else (arguments.image_size, None)
    shape = None if size is None else (*(size,) * (len(found.image_shape) - 1), found.image_shape[-1] or 3)
    model = found.fitted(shape)
    shape, classes = shape or model.image_shape, classes or model.classes

    def build_with(batch_size: int) -> "Callable[[], mtf.Graph]":
        sized = dataclasses.replace(model, image_shape=shape, classes=classes)
        return functools.partial(build_step, sized, batch_size, arguments.optimizer)

    batch_size = arguments.batch_size
    sizes = " x ".join(map(str, shape[:-1]))
    about = f"batches of {batch_size} {'volumes' if model.takes_volumes else 'images'} of {sizes} in float32"
    return Network(arguments.model, build_with(batch_size), about, batch_size, build_with)


def build_step(model: "Model", batch_size: int, optimizer: str, **config: Any) -> "mtf.Graph":
    """Build the mtf.Graph of a training step on blank images or volumes, in the default graph.

    Args:
      model: of models.MODELS.
      batch_size: images or volumes.
      optimizer: a name in mtf_hetero.cli.train.config.OPTIMIZERS.
      **config: of the model's build.
    """
    from mtf_hetero.cli.train.program import Optimizer, Program

    task = model.task.of_count(model.classes)
    stages = {"is_staged": True} if model.in_stages else {}  # as where `train --layout=auto` places it
    build = functools.partial(model.build, **{**task.config, **stages, **config})
    made = Program(build, Optimizer(optimizer), task, image_shape=model.image_shape)
    return made.build_blank(batch_size).graph


def _load_step(text: str) -> "Network":
    """Return the step of TensorFlow that a function of the user returns, with its arguments."""
    found = functions.load_function("step", text)()
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
        raise ValueError(
            f"--step is {text!r}, which returned {shorten(found)}; return a step and its arguments, "
            "`return step, (images, labels)`"
        )
    from mtf_hetero.keras.planned import trace

    return dataclasses.replace(trace(*found), name=text)
