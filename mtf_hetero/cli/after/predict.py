r"""Predicts with a checkpoint, and writes the predictions to a file.

    mtf-hetero predict --model_dir=runs/photos --input photos/*.jpg
    mtf-hetero predict --model_dir=runs/lenet --output=predictions.npz
    mtf-hetero predict --model_dir=runs/lenet --input=images.npy --keys=class \
        --output=classes.jsonl

The input is the test set, in its order, or --input. --input takes JPEG and PNG
files, which are resized as in training, or one NumPy file [examples, height,
width, channels] with the numbers of the data set (0 to 255 for images).

The output is an .npz file with an array per prediction, or a .jsonl file with
an object per example: class, logits and probabilities, or targets in their own
units; also class_name and file, if they are known. Without --output, each image
gets one line: its file, its class, and the probability of the class.

It runs on one device, unless flags of mtf-hetero train name others.

Exit codes: 0, 1 if the result cannot be written, 2 for a wrong flag or value
(one line has the reason), 130 after Ctrl-C.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._support import command_line
from mtf_hetero.cli.after import flags, given, predictions, restored

if TYPE_CHECKING:
    from mtf_hetero.cli.train.inputs import Batches
    from mtf_hetero.cli.train.run import Run

CLASS_NAME, FILE = predictions.CLASS_NAME, predictions.FILE
PROGRAM = "mtf-hetero predict"


def _check(arguments: argparse.Namespace) -> None:
    inputs = getattr(arguments, "input", [])
    if not hasattr(arguments, "output") and (not inputs or inputs[0].endswith(given.NPY)):
        raise ValueError("--output is not given; name a file that ends in .npz or .jsonl, or give images by --input")
    if hasattr(arguments, "output"):
        flags.check_suffix("output", arguments.output, predictions.SUFFIXES)
        command_line.check_output("output", arguments.output)
    elif hasattr(arguments, "keys"):
        raise ValueError(f"--keys is {arguments.keys!r} without --output, which they are for; give both")
    if _is_array(inputs):
        _load(inputs[0])
    elif inputs:
        given.find(inputs)


def _is_array(inputs: Sequence[str]) -> bool:
    return len(inputs) == 1 and inputs[0].endswith(given.NPY)


def _load(path: str) -> np.ndarray:
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"--input is {path!r}, which is not a regular file; name another file")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # for a damaged head, NumPy raises many kinds of errors
        reason = getattr(error, "strerror", None) or "it is not an array of numbers that numpy.save wrote"
        raise ValueError(f"--input is {path!r}, which cannot be read: {reason}; name another file") from error


def _predict(restored_run: restored.Restored, arguments: argparse.Namespace) -> str:
    run, path = restored_run.run, getattr(arguments, "output", None)
    count, input_fn, files = _read_examples(run, getattr(arguments, "input", ()))
    keys = arguments.keys.split(",") if hasattr(arguments, "keys") else None
    if path is None:
        keys = [FILE, "class", "class_name", "probabilities"]
    class_names = getattr(run.dataset, "class_names", ())
    for key, known in ((FILE, files), (CLASS_NAME, class_names)):
        if key in (keys or ()) and not known and path is not None:
            raise ValueError(f"--keys names {key!r}, which these {run.dataset.unit} do not have; remove it")
    computed = keys and list(dict.fromkeys("class" if key == CLASS_NAME else key for key in keys if key != FILE))
    examples = run.estimator.predict(input_fn, computed, checkpoint_path=restored_run.checkpoint)
    with contextlib.closing(examples):
        named = predictions.with_names(
            itertools.islice(examples, count), files=files, class_names=class_names, keys=keys
        )
        if path is None:
            return "".join(map(predictions.line, named))
        names = predictions.write(path, named, count)
    return f"{', '.join(names)} of {count:,} {run.dataset.unit}: {path}\n"


def _read_examples(run: "Run", given_inputs: Sequence[str]) -> "tuple[int, Callable[[], Batches], Sequence[str]]":
    """Return the number of examples, a function that makes padded batches of them, and the names of their files."""
    if _is_array(given_inputs):
        return *_given_array(run, given_inputs[0]), ()
    if given_inputs:
        return _given_images(run, given.find(given_inputs))
    if not run.dataset.test_size:
        raise ValueError(f"--dataset is {run.config.dataset!r}, which has no test set; give --input")
    return run.dataset.test_size, run.test_input, run.dataset.test_names


def _given_images(run: "Run", paths: Sequence[str]) -> "tuple[int, Callable[[], Batches], Sequence[str]]":
    from mtf_hetero.data import Volumes, pictures

    shape = run.dataset.image_shape
    if isinstance(run.dataset, Volumes) or shape[-1] not in (1, 3):
        raise ValueError(
            f"--input is {paths[0]!r}, but the network takes {' x '.join(map(str, shape))}, which no image file "
            "has; give a file of numpy.save, .npy"
        )
    pictures.look_at([(path, path) for path in paths[: pictures.CHECKED]])
    source = pictures.source_of_files(
        [os.path.abspath(path) for path in paths], np.zeros([len(paths)], np.int32), shape, resize=True
    )
    dataset = dataclasses.replace(
        run.dataset,
        source=lambda split: source,
        test_size=len(paths),
        known_statistics=run.dataset.statistics,  # else of these images
    )
    return len(paths), dataclasses.replace(run, dataset=dataset).test_input, paths


def _given_array(run: "Run", path: str) -> "tuple[int, Callable[[], Batches]]":
    from mtf_hetero._compat import tf

    array, size, shape = _load(path), run.config.batch_size, tuple(run.dataset.image_shape)
    if array.shape[1:] != shape or not len(array) or array.dtype.kind not in "uif":
        raise ValueError(
            f"--input is {path!r}, an array of {array.dtype} {list(array.shape)}; it must be one of numbers, "
            f"[examples, {', '.join(map(str, shape))}]"
        )

    for first in range(0, len(array), size):
        if array.dtype.kind == "f" and not np.isfinite(array[first : first + size]).all():
            raise ValueError(f"--input is {path!r}, which has values that are not finite, from example {first} on")

    def batches() -> Iterator[np.ndarray]:
        for first in range(0, len(array), size):
            batch = np.zeros([size, *shape], np.float32)
            part = array[first : first + size]
            batch[: len(part)] = part
            yield batch

    def input_fn() -> tf.data.Dataset:
        normalise = run.dataset.normaliser()
        stored = tf.data.Dataset.from_generator(batches, output_types=tf.float32, output_shapes=[size, *shape])
        return stored.map(lambda batch: {"image": normalise(batch)})

    return len(array), input_fn


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Predict by the command line, and return the exit code."""
    parser = flags.parser(program, __doc__ or "")
    parser.add_argument(
        "--output", help="a file that ends in .npz or .jsonl; by default images are named on a line each"
    )
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        help="images, folders of images or patterns, such as 'photos/*.jpg', or a NumPy file, .npy, of images or "
        "volumes; by default the test set",
    )
    parser.add_argument("--keys", help="which of the predictions, such as class,probabilities; by default all")
    arguments = parser.parse_args(argv)
    return restored.main(arguments, _check, _predict, reads_data=not hasattr(arguments, "input"))
