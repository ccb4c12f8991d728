r"""Exports a checkpoint as a SavedModel or as a Keras model, without mtf_hetero.

    mtf-hetero export --model_dir=runs/lenet --output=served/1
    mtf-hetero export --model_dir=runs/lenet --output=lenet.keras

A directory is a SavedModel, which plain TensorFlow serves. Its signature
serving_default takes any number of images [None, height, width, channels], or
volumes, with the numbers of the data set (0 to 255 for images). The model
normalizes them itself. It returns class, logits and probabilities, or targets
in their own units. It computes --batch_size examples at a time.

A file that ends in .keras is a Keras model with the trained weights and moving
averages: the Keras model that was trained, or plain Keras layers that compute
the same as the network and return logits. It takes the same numbers: its layer
input_normalization normalizes them.

The variables are copied from the checkpoint in pieces, so no device needs
memory for the whole network. The output appears when it is complete. The data
set is not needed.

Exit codes: 0, 1 if the model cannot be written, 2 for a wrong flag or value
(one line has the reason), 130 after Ctrl-C.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line
from mtf_hetero.cli.after import flags, restored

if TYPE_CHECKING:
    from mtf_hetero._compat import tf
    from mtf_hetero.cli.train.run import Run

PROGRAM = "mtf-hetero export"


KERAS, SAVED_MODEL = "keras", "saved_model"
_KERAS_SUFFIX = ".keras"


def _choose_format(arguments: argparse.Namespace) -> str:
    """Return the format to write, from --format or the name of the output."""
    by_name = KERAS if arguments.output.endswith(_KERAS_SUFFIX) else SAVED_MODEL
    return getattr(arguments, "format", by_name)


def _check(arguments: argparse.Namespace) -> None:
    is_keras = _choose_format(arguments) == KERAS
    if is_keras:
        flags.check_suffix("output", arguments.output, [_KERAS_SUFFIX])
    if os.path.lexists(arguments.output):
        kind = "file" if is_keras else "directory"
        raise ValueError(f"--output is {arguments.output!r}, which already exists; name a new {kind}")
    command_line.check_output("output", arguments.output)


def _export_keras(given: restored.Restored, arguments: argparse.Namespace) -> str:
    try:
        from mtf_hetero.keras import networks, to_keras
    except ImportError as error:
        raise ValueError(f"--format is {KERAS!r}, but {error}") from error

    run, unit = given.run, given.run.dataset.unit
    model = to_keras(run.model, given.checkpoint, image_shape=run.dataset.image_shape, **run.task.config)
    if not run.model.normalises:
        model = networks.normalising(model, *run.dataset.stored_statistics)
    networks.save(model, arguments.output)
    shape = ", ".join(map(str, run.dataset.image_shape))
    return (
        f"{arguments.output}: a Keras model of step {given.step}, which takes float32 [None, {shape}]\n"
        f"It takes {unit} as they are stored, and normalizes them itself.\n"
    )


def _export_saved_model(given: restored.Restored, arguments: argparse.Namespace) -> str:
    from mtf_hetero.estimator import saved_model

    run = given.run
    unit = run.dataset.unit
    saved_model.write(
        arguments.output,
        functools.partial(_build, run),
        checkpoint=given.checkpoint,
        example_shape=run.dataset.image_shape,
        batch_size=run.config.batch_size,
        input_name=unit,
    )
    shape = ", ".join(map(str, run.dataset.image_shape))
    return f"{arguments.output}: a SavedModel of step {given.step}, serving_default({unit}=float32 [None, {shape}])\n"


def _build(run: "Run", batch_size: int) -> "tuple[tf.Tensor, Mapping[str, tf.Tensor]]":
    """Build the network on one device, from stored numbers to predictions."""
    from mtf_hetero._compat import tf
    from mtf_hetero.layout import Layout

    tf.train.create_global_step()
    stored = tf.placeholder(tf.float32, [batch_size, *run.dataset.image_shape])
    program = dataclasses.replace(run.program, batch=None)  # one dimension, also after a training with two
    outputs = program.lower_outputs(run.dataset.normaliser()(stored), Layout([("all", 1)], ()), ["cpu:0"])
    return stored, run.task.predictions(outputs)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Export by the command line, and return the exit code."""
    parser = flags.parser(program, __doc__ or "", placed=False)
    parser.add_argument("--output", required=True, help="a new directory, or a new file that ends in .keras")
    parser.add_argument(
        "--format",
        choices=[SAVED_MODEL, KERAS],
        help="by default keras where --output ends in .keras, else saved_model",
    )
    arguments = parser.parse_args(argv)
    export = _export_keras if _choose_format(arguments) == KERAS else _export_saved_model
    return restored.main(arguments, _check, export, placed=False, reads_data=False)
