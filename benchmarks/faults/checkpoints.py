"""The intact checkpoints of a directory, of which TensorFlow's own reader can read every tensor.

It knows nothing of what mtf_hetero makes of them, which it judges.
"""

import hashlib
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any


def values(directory: pathlib.Path, step: int) -> dict[str, Any]:
    """All tensors of a checkpoint, as NumPy has them.

    Raises:
      Exception: it is damaged; TensorFlow's reader has a number of errors for that.
    """
    from mtf_hetero import tf  # slow to import, and not needed to list the faults

    reader: Any = tf.train.NewCheckpointReader(str(directory / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _is_whole(directory: pathlib.Path, step: int) -> bool:
    try:
        return int(values(directory, step)["global_step"]) == step
    except Exception:
        return False


def intact_steps(directory: pathlib.Path) -> Iterator[int]:
    """Return the steps of intact checkpoints whose tensors are of that step, the newest first."""
    indices = (path.name for path in directory.glob("*.index"))
    steps = sorted(
        (parse_step(name) for name in indices if re.fullmatch(r"model\.ckpt-\d+\.index", name)), reverse=True
    )
    return (step for step in steps if _is_whole(directory, step))


def newest(directory: pathlib.Path) -> int | None:
    """Return the step of the newest intact checkpoint, or None."""
    return next(intact_steps(directory), None)


def digests(directory: pathlib.Path) -> dict[str, str]:
    """{name: digest} of all files of checkpoints."""
    paths = (path for path in directory.glob("model.ckpt-*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def changed(before: Mapping[str, str], directory: pathlib.Path) -> list[str]:
    """Return the files that are no longer as these digests say."""
    after = digests(directory)
    return sorted(name for name, digest in before.items() if after.get(name) != digest)


def parse_step(name: str) -> int:
    """Return the step of a file of a checkpoint."""
    return int(re.findall(r"model\.ckpt-(\d+)", name)[0])
