"""Tests a checkpoint on the test set of the data that it was trained on, and writes the metrics as JSON.

    mtf-hetero evaluate --model_dir=runs/lenet
    mtf-hetero evaluate --checkpoint=runs/lenet/model.ckpt-500 --devices=cpu:0,cpu:1 --layout=batch --list_speed=2,1

On one plain device, unless flags say where: they are those of mtf-hetero train. What was trained, and on what, the
directory says.

Exit codes: 0, 1 where the result cannot be written, 2 for a wrong flag or value (one line says
which), 130 after Ctrl-C.
"""

import argparse
import json
import os
from collections.abc import Sequence

from mtf_hetero._support import command_line
from mtf_hetero._support.files import write_text
from mtf_hetero.models.after import flags, restored

PROGRAM = "mtf-hetero evaluate"


def _check(arguments: argparse.Namespace) -> None:
    if hasattr(arguments, "output"):
        command_line.check_output("output", arguments.output)


def _evaluate(given: restored.Restored, arguments: argparse.Namespace) -> str:
    from mtf_hetero.estimator.metrics_log import plain

    run = given.run
    if not run.dataset.test_size:
        raise ValueError(f"--dataset is {run.config.dataset!r}, which has nothing to test on; give another set")
    results = run.test(checkpoint_path=given.checkpoint)
    result = {
        "model": run.config.model,
        "dataset": run.config.dataset,
        "checkpoint": os.path.abspath(given.checkpoint),
        "step": given.step,
        "examples": run.dataset.test_size,
        "batch_size": run.config.batch_size,
        "metrics": {name: plain(value) for name, value in sorted(results.items()) if name != "global_step"},
    }
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    if not hasattr(arguments, "output"):
        return text
    write_text(arguments.output, text)
    return ""


def main(argv: Sequence[str], program: str = PROGRAM) -> int:
    """Evaluates as the command line says; returns the exit code."""
    parser = flags.parser(program, __doc__ or "")
    parser.add_argument("--output", help="a file for the metrics, as JSON; by default the standard output")
    return restored.main(parser.parse_args(argv), _check, _evaluate)


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    restored.run(main, argv, program)


if __name__ == "__main__":
    run()
