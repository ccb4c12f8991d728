r"""Tests a checkpoint on the test set of the data that it was trained on.

    mtf-hetero evaluate --model_dir=runs/lenet
    mtf-hetero evaluate --model_dir=runs/lenet --output=metrics.json \
        --confusion_matrix=confusion.png
    mtf-hetero evaluate --checkpoint=runs/lenet/model.ckpt-500 \
        --devices=cpu:0,cpu:1 --layout=batch --list_speed=2,1

On a terminal it prints a short table, with the worst classes first.
Elsewhere it prints JSON: the metrics, each class by itself, and the confusion
matrix. With --output it writes the JSON to a file and prints the table.

It runs on one device, unless flags of mtf-hetero train name others. The
directory of the run has the model and the data set.

Exit codes: 0, 1 if the result cannot be written, 2 for a wrong flag or value
(one line has the reason), 130 after Ctrl-C.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mtf_hetero._support import command_line, figures
from mtf_hetero._support.files import write_text
from mtf_hetero.cli.after import confusion, flags, restored, results

if TYPE_CHECKING:
    from mtf_hetero.cli.train.tasks import Task

PROGRAM = "mtf-hetero evaluate"
_TOP = 5  # as results on ImageNet are reported
T = TypeVar("T", bound="Task")


def _check(arguments: argparse.Namespace) -> None:
    if getattr(arguments, "top", _TOP) < 2:
        raise ValueError(f"--top is {arguments.top}; it must be 2 or more: top-1 accuracy is `accuracy`")
    if hasattr(arguments, "output"):
        command_line.check_output("output", arguments.output)
    if hasattr(arguments, confusion.FLAG):
        figures.check_output(confusion.FLAG, arguments.confusion_matrix)


def _evaluate(given: restored.Restored, arguments: argparse.Namespace) -> str:
    from mtf_hetero.cli.train.tasks import COUNTS
    from mtf_hetero.estimator.metrics_log import plain

    run, unit = given.run, given.run.dataset.unit
    if not run.dataset.test_size:
        raise ValueError(f"--dataset is {run.config.dataset!r}, which has nothing to test on; give another set")
    program = dataclasses.replace(run.program, task=_with_details(run.task, arguments))
    run = dataclasses.replace(run, program=program)
    found = run.test(checkpoint_path=given.checkpoint)
    result = {
        "model": run.config.model,
        "dataset": run.config.dataset,
        "checkpoint": os.path.abspath(given.checkpoint),
        "step": given.step,
        "examples": run.dataset.test_size,
        "batch_size": run.config.batch_size,
        "metrics": {n: plain(v) for n, v in sorted(found.items()) if n not in (*COUNTS, "global_step")},
    }
    title = f"{run.config.model}, step {given.step}, on {run.config.dataset}"
    lines = [title, run.task.report(found, f"{run.dataset.test_size:,} {unit}")]
    lines += [f"{name}: {value}" for name, value in result["metrics"].items() if name.startswith(("top_", "loss"))]
    names = getattr(run.dataset, "class_names", ())
    if COUNTS[0] in found:
        counted, lines_of_classes = _classes(found, names, unit)
        result, lines = result | counted, lines + lines_of_classes
    if hasattr(arguments, confusion.FLAG):
        confusion.draw(np.array(result["confusion_matrix"]), names, arguments.confusion_matrix, title=title)
        lines.append(f"confusion matrix: {arguments.confusion_matrix}")
    if hasattr(arguments, "output"):
        write_text(arguments.output, results.dumps(result))
    elif not sys.stdout.isatty():
        return results.dumps(result)
    return "\n".join(lines) + "\n"


def _with_details(task: T, arguments: argparse.Namespace) -> T:
    """Return the task with the requested counts of each class.

    Raises:
      ValueError: a flag asks for counts that this task lacks.
    """
    from mtf_hetero.cli.train.tasks import MOST_CONFUSED, Classes, Classification

    for name in ("top", confusion.FLAG):
        if hasattr(arguments, name) and not isinstance(task, Classes):
            raise ValueError(f"--{name} is given, but this model predicts targets, not classes; remove it")
    if not isinstance(task, Classes):
        return task
    if hasattr(arguments, confusion.FLAG) and task.classes > MOST_CONFUSED:
        raise ValueError(
            f"--{confusion.FLAG} is given, but there are {task.classes:,} classes; it counts up to {MOST_CONFUSED:,}; "
            "remove it"
        )
    top = getattr(arguments, "top", _TOP)
    if hasattr(arguments, "top") and top >= task.classes:
        raise ValueError(f"--top is {top}, but there are {task.classes} classes; give a smaller number")
    counts_top = top < task.classes and (isinstance(task, Classification) or hasattr(arguments, "top"))
    return dataclasses.replace(task, detailed=True, top=top if counts_top else 0)


def _classes(found: Mapping[str, Any], names: Sequence[str], unit: str) -> tuple[dict[str, Any], list[str]]:
    """Return the entries of the JSON about the classes, and lines for a terminal."""
    from mtf_hetero.cli.train import tasks

    confused = found.get(tasks.CONFUSION)
    classes = results.of_classes(names, found[tasks.CLASS_EXAMPLES], found[tasks.CLASS_RIGHT], confused)
    not_finite = int(found[tasks.NOT_FINITE])
    counted = {"not_finite": not_finite, "classes": results.as_rows(classes)}
    if confused is not None:
        counted["confusion_matrix"] = confused.astype(int).tolist()
    lines = [f"outputs that are not finite: {not_finite:,}, counted as wrong"] if not_finite else []
    return counted, [*lines, "", results.table(classes, unit)]


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Evaluate by the command line, and return the exit code."""
    parser = flags.parser(program, __doc__ or "")
    parser.add_argument("--output", help="a file for the JSON; then the table is printed")
    parser.add_argument(
        f"--{confusion.FLAG}", help="a file for a picture of the confusion matrix, which ends in .png, .svg or .pdf"
    )
    parser.add_argument(
        "--top",
        type=int,
        help="also count labels that are among so many largest outputs; by default 5 where there are more classes",
    )
    return restored.main(parser.parse_args(argv), _check, _evaluate)
