"""Predicts with a checkpoint, and writes what it predicts to a file.

    mtf-hetero predict --model_dir=runs/lenet --output=predictions.npz
    mtf-hetero predict --model_dir=runs/lenet --input=images.npy --keys=class --output=classes.jsonl

The images or volumes are those of the test set, in its order, or those of a NumPy file, [examples, height, width,
channels], with numbers as they are stored in the set (0 to 255, of images). The file is an .npz with an array for each
of the predictions, or a .jsonl with an object for each example: class, logits and probabilities, or targets in their
own units.

On one plain device, unless flags say where: they are those of mtf-hetero train.

Exit codes: 0, 1 where the result cannot be written, 2 for a wrong flag or value (one line says
which), 130 after Ctrl-C.
"""

import argparse
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtf_hetero._support import command_line
from mtf_hetero.models.after import flags, predictions, restored

PROGRAM = "mtf-hetero predict"


def _check(arguments: argparse.Namespace) -> None:
    flags.check_suffix("output", arguments.output, predictions.SUFFIXES)
    command_line.check_output("output", arguments.output)
    if hasattr(arguments, "input"):
        flags.check_suffix("input", arguments.input, [".npy"])
        _load(arguments.input)


def _load(path: str) -> np.ndarray:
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"--input is {path!r}, which is no regular file; name another file")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of a damaged head, NumPy's reader has errors of many kinds
        reason = getattr(error, "strerror", None) or "it is no array of numbers that numpy.save wrote"
        raise ValueError(f"--input is {path!r}, which cannot be read: {reason}; name another file") from error


def _predict(given: restored.Restored, arguments: argparse.Namespace) -> str:
    from mtf_hetero.models.train import inputs

    run, keys = given.run, getattr(arguments, "keys", None)
    if hasattr(arguments, "input"):
        count, input_fn = _given_input(run, arguments.input)
    else:
        count, input_fn = run.dataset.test_size, run.test_input
        if not count:
            raise ValueError(f"--dataset is {run.config.dataset!r}, which has no test set; give --input")
    examples = run.estimator.predict(input_fn, keys and keys.split(","), checkpoint_path=given.checkpoint)
    with contextlib.closing(examples):
        names = predictions.write(arguments.output, itertools.islice(examples, count), count)
    return f"{', '.join(names)} of {count:,} {inputs.unit(run.dataset)}: {arguments.output}\n"


def _given_input(run: Any, path: str) -> tuple[int, Callable[[], Any]]:
    """How many examples a file has, and batches of them, of which the last one is filled up."""
    from mtf_hetero import tf

    array, size, shape = _load(path), run.config.batch_size, tuple(run.dataset.image_shape)
    if array.shape[1:] != shape or not len(array) or array.dtype.kind not in "uif":
        raise ValueError(
            f"--input is {path!r}, an array of {array.dtype} {list(array.shape)}; it must be one of numbers, "
            f"[examples, {', '.join(map(str, shape))}]"
        )

    def batches() -> Iterator[np.ndarray]:
        for first in range(0, len(array), size):
            batch = np.zeros([size, *shape], np.float32)
            part = array[first : first + size]
            batch[: len(part)] = part
            yield batch

    def input_fn() -> Any:
        normalise = run.dataset.normaliser()
        stored = tf.data.Dataset.from_generator(batches, output_types=tf.float32, output_shapes=[size, *shape])
        return stored.map(lambda batch: {"image": normalise(batch)})

    return len(array), input_fn


def main(argv: Sequence[str], program: str = PROGRAM) -> int:
    """Predicts as the command line says; returns the exit code."""
    parser = flags.parser(program, __doc__ or "")
    parser.add_argument("--output", required=True, help="a file that ends in .npz or .jsonl")
    parser.add_argument("--input", help="a NumPy file, .npy, of images or volumes; by default the test set")
    parser.add_argument("--keys", help="which of the predictions, such as class,probabilities; by default all")
    arguments = parser.parse_args(argv)
    return restored.main(arguments, _check, _predict, reads_data=not hasattr(arguments, "input"))


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    restored.run(main, argv, program)


if __name__ == "__main__":
    run()
