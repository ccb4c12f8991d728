"""Write predictions to a file, one example at a time: an .npz of arrays, or a .jsonl with a line per example."""

import json
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mtf_hetero._support import files

SUFFIXES = (".npz", ".jsonl")
CLASS_NAME, FILE = "class_name", "file"


def with_names(
    examples: Iterable[Mapping[str, np.ndarray]],
    *,
    files: Sequence[str],
    class_names: Sequence[str],
    keys: Sequence[str] | None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield predictions with the names of the file and the class, if they are known.

    Args:
      examples: {name: array of one example}, in order.
      files: of the examples; none: they have no files.
      class_names: of all classes; none: classes have no names.
      keys: the requested predictions, in this order; None: all.
    """
    wide = {name: f"U{max(map(len, values), default=1)}" for name, values in ((FILE, files), (CLASS_NAME, class_names))}
    for number, example in enumerate(examples):
        row: dict[str, np.ndarray] = {FILE: np.array(files[number], wide[FILE])} if files else {}
        row |= example
        if class_names and np.ndim(example.get("class", ())) == 0:
            row[CLASS_NAME] = np.array(class_names[int(example["class"])], wide[CLASS_NAME])
        yield row if keys is None else {key: row[key] for key in keys if key in row}


def line(example: Mapping[str, np.ndarray]) -> str:
    """Return a line about an image: its file, its class, and the probability of the class."""
    number = int(example["class"])
    return f"{example[FILE]}: {example.get(CLASS_NAME, number)} ({example['probabilities'][number]:.1%})\n"


def write(path: str, examples: Iterable[Mapping[str, np.ndarray]], count: int) -> tuple[str, ...]:
    """Write predictions to a file, which replaces an old one when it is complete, and return their names.

    Args:
      path: ends in one of SUFFIXES.
      examples: {name: array of one example}, in order.
      count: number of examples.

    Raises:
      OSError: it cannot be written; the old file stays as it was.
    """
    with files.new_file(path) as made:
        return (_write_lines if path.endswith(".jsonl") else _write_arrays)(made, examples, count)


def _write_lines(path: pathlib.Path, examples: Iterable[Mapping[str, np.ndarray]], count: int) -> tuple[str, ...]:
    names: tuple[str, ...] = ()
    with path.open("w", encoding="utf-8") as file:
        for number, example in zip(range(count), examples, strict=True):
            names = tuple(example)
            row = {"example": number, **{name: np.asarray(value).tolist() for name, value in example.items()}}
            file.write(json.dumps(row) + "\n")
    return names


def _write_arrays(path: pathlib.Path, examples: Iterable[Mapping[str, np.ndarray]], count: int) -> tuple[str, ...]:
    arrays: dict[str, np.memmap] = {}
    parts: dict[str, pathlib.Path] = {}
    for number, example in zip(range(count), examples, strict=True):
        for name, value in example.items():
            if name not in arrays:
                parts[name] = path.with_name(f"{name}.npy")
                shape, dtype = (count, *np.shape(value)), np.asarray(value).dtype
                arrays[name] = np.lib.format.open_memmap(parts[name], mode="w+", dtype=dtype, shape=shape)
            arrays[name][number] = value
    for array in arrays.values():
        array.flush()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, file in parts.items():
            archive.write(file, f"{name}.npy")
    return tuple(arrays)
