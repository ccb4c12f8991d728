"""Which checkpoint of a directory is whole: TensorFlow's own reader has to read every tensor of it.

It knows nothing of what mtf_hetero makes of them, which it judges.
"""

import hashlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")


def steps(directory: pathlib.Path) -> list[int]:
    """Steps of which there is an index file, the newest first."""
    matches = (_INDEX.fullmatch(path.name) for path in directory.glob("*.index"))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def values(directory: pathlib.Path, step: int) -> dict[str, Any]:
    """All tensors of a checkpoint, as NumPy has them.

    Raises:
      Exception: it is damaged; TensorFlow's reader has a number of errors for that.
    """
    from mtf_hetero import tf  # slow to import, and not needed to list the faults

    reader: Any = tf.train.NewCheckpointReader(str(directory / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def is_whole(directory: pathlib.Path, step: int) -> bool:
    """Whether every tensor of a checkpoint can be read, and it is of that step."""
    try:
        return int(values(directory, step)["global_step"]) == step
    except Exception:
        return False


def whole(directory: pathlib.Path) -> Iterator[int]:
    """Steps of the whole checkpoints, the newest first."""
    return (step for step in steps(directory) if is_whole(directory, step))


def newest(directory: pathlib.Path) -> int | None:
    """The step of the newest whole checkpoint, or None."""
    return next(whole(directory), None)


def digests(directory: pathlib.Path) -> dict[str, str]:
    """{name: digest} of all files of checkpoints."""
    paths = (path for path in directory.glob("model.ckpt-*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def step_of(name: str) -> int:
    """The step of a file of a checkpoint."""
    return int(re.findall(r"model\.ckpt-(\d+)", name)[0])
