"""Exports a checkpoint as a SavedModel that plain TensorFlow serves, without mtf_hetero.

    mtf-hetero export --model_dir=runs/lenet --output=served/1

The signature serving_default takes any number of images, or volumes, [None, height, width, channels], with numbers as
they are stored in the data set (0 to 255, of images): the model normalises them. It returns class, logits and
probabilities, or targets in their own units. --batch_size says how many it computes at a time.

The variables are copied from the checkpoint a piece at a time: no device ever has the whole network, or a whole
variable. The directory is there as a whole, or not at all.

Exit codes: 0, 1 where the model cannot be written, 2 for a wrong flag or value (one line says
which), 130 after Ctrl-C.
"""

import argparse
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero.models.after import flags, restored

PROGRAM = "python -m mtf_hetero.models.after.export"


def _check(arguments: argparse.Namespace) -> None:
    if os.path.lexists(arguments.output):
        raise ValueError(f"--output is {arguments.output!r}, which is there already; name a new directory")
    flags.check_parent("output", arguments.output)


def _export(given: restored.Restored, arguments: argparse.Namespace) -> str:
    from mtf_hetero.estimator import saved_model
    from mtf_hetero.models.train import inputs

    run = given.run
    unit = inputs.unit(run.dataset)
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


def _build(run: Any, batch_size: int) -> tuple[Any, Mapping[str, Any]]:
    """The network on one device, from what is stored to what is predicted."""
    from mtf_hetero import Layout, tf
    from mtf_hetero.models.train import program as network

    tf.train.create_global_step()
    stored = tf.placeholder(tf.float32, [batch_size, *run.dataset.image_shape])
    outputs = network.build_outputs(run.dataset.normaliser()(stored), run.build, Layout([("all", 1)], ()), ["cpu:0"])
    return stored, run.task.predictions(outputs)


def main(argv: Sequence[str], program: str = PROGRAM) -> int:
    """Exports as the command line says; returns the exit code."""
    parser = flags.parser(program, __doc__ or "", placed=False)
    parser.add_argument("--output", required=True, help="a new directory")
    return restored.main(parser.parse_args(argv), _check, _export, placed=False)


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    restored.run(main, argv, program)


if __name__ == "__main__":
    run()
