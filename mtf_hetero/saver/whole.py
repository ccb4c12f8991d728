"""Which checkpoint of a directory is the newest that is whole, and from which training resumes.

Whole means: all files are there, and every byte is as it was written. The checksums beside a checkpoint show it, and
nothing is held in memory for it. Where they are absent or do not match - TensorFlow itself wrote the checkpoint, or
the checksums are what is damaged - TensorFlow's own, inside the checkpoint, decide; it reads one variable at a time.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.saver import files

_BASE = "model.ckpt"  # of tf.train.CheckpointSaverHook
_verdicts: dict[str, tuple[Any, str | None]] = {}


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found in a directory.

    Args:
      path: the newest whole checkpoint; None: there is no checkpoint at all.
      passed_over: (path, what is wrong with it) of newer ones.
      note: how the file `checkpoint` disagrees with that; None: it does not.
    """

    path: str | None
    passed_over: tuple[tuple[str, str], ...] = ()
    note: str | None = None

    def log(self, places: Sequence[str] = ()) -> None:
        """Warns of what was passed over, and of a file `checkpoint` that says otherwise.

        Args:
          places: where those that were passed over have been put.
        """
        for (path, damage), place in itertools.zip_longest(self.passed_over, places):
            moved = f", moved to {place}" if place else ""
            whole = os.path.basename(str(self.path))
            tf.logging.warning("Skipping damaged checkpoint %s (%s)%s; using %s", path, damage, moved, whole)
        if self.note is not None:
            tf.logging.warning("%s", self.note)


def find(directory: str) -> Found:
    """The newest whole checkpoint of a directory, whatever its file `checkpoint` says.

    Raises:
      ValueError: there are checkpoints, and none is whole.
    """
    named, wrong = files.read_state(directory)
    paths = files.candidates(directory, files.split_name(named[0])[0] if named else _BASE)
    if named and named[0] not in paths and _is_elsewhere(named[0], directory):
        paths.append(named[0])
    passed_over = []
    for path in paths:
        damage = find_damage(path)
        if damage is None:
            note = _note(directory, path, named, wrong) if wrong or not passed_over else None
            return Found(path, tuple(passed_over), note)
        passed_over.append((path, damage))
    if passed_over:
        damages = "; ".join(damage for _, damage in passed_over[:3])
        more = "; ..." if len(passed_over) > 3 else ""
        raise ValueError(
            f"model_dir is {directory!r}, which has no intact checkpoint ({len(passed_over)} damaged: "
            f"{damages}{more}); restore one from a backup, or choose another directory"
        )
    return Found(None)


def find_damage(path: str) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where it is whole."""
    signature = files.signature(path)
    if path not in _verdicts or _verdicts[path][0] != signature:
        _verdicts[path] = signature, _find_damage(path)
    return _verdicts[path][1]


def know_whole(path: str) -> None:
    """Saves the next `find` from reading a checkpoint that this process has just written."""
    _verdicts[path] = files.signature(path), None


def resume(directory: str, keep: int | None) -> tuple[str | None, list[str]]:
    """Finds the checkpoint from which training resumes, and moves damaged newer ones out of its way.

    Training will come to their steps again, and never writes over anything. The file `checkpoint` is put right. Only
    for whoever holds the lock.

    Args:
      directory: the model directory.
      keep: how many checkpoints a Saver keeps; None or 0: all.

    Returns:
      (path of the newest whole checkpoint, or None where there is none; those that a Saver will delete one day, the
      oldest first)

    Raises:
      ValueError: there are checkpoints, and none is whole; nothing is changed then.
    """
    checkpoint = find(directory)
    checkpoint.log([files.set_aside(path) for path, _ in checkpoint.passed_over])
    if checkpoint.path is None:
        return None, []
    kept = _kept(directory, checkpoint.path, keep)
    if files.read_state(directory)[0][:1] != [checkpoint.path]:
        write_state(directory, checkpoint.path, kept)
    return checkpoint.path, kept


def write_state(directory: str, path: str, kept: list[str], name: str = files.STATE) -> None:
    """Writes the file `checkpoint`, in which other programs look for the last one.

    Args:
      directory: the model directory.
      path: the last checkpoint.
      kept: all that are to be deleted one day.
      name: how the file is called.
    """
    directory = os.path.abspath(directory)

    def relative(path: str) -> str:  # so that the directory can be moved
        path = os.path.abspath(path)
        return os.path.basename(path) if os.path.dirname(path) == directory else path

    state = tf.train.generate_checkpoint_state_proto(directory, relative(path), [relative(other) for other in kept])
    files.write_state(directory, str(state), name)


def _kept(directory: str, path: str, keep: int | None) -> list[str]:
    """Those that the file `checkpoint` names, as far as they exist, and the last one; others are kept for good.

    Where it cannot be read, the newest ones of the directory.
    """
    named, wrong = files.read_state(directory)
    candidates = files.candidates(directory, files.split_name(path)[0])
    kept = [other for other in candidates if wrong or other in named]
    kept = [other for other in kept if other != path and os.path.exists(other + ".index")]
    last = [path] if path in candidates else []  # what lies elsewhere is not ours to delete
    return [*reversed(kept[: keep - 1] if wrong and keep else kept), *last]


def _find_damage(path: str) -> str | None:
    one_file = os.path.isfile(path) and not os.path.exists(path + ".index")  # TensorFlow's first format
    missing = None if one_file else files.missing_file(path)
    changed = None if missing else files.changed_files(path)
    if missing or changed == []:
        return missing
    error = _reading_error(path)
    if error is None:
        return None
    return f"{changed[0]} differs from its checksum" if changed else f"TensorFlow cannot read it: {error}"


def _reading_error(path: str) -> str | None:
    """Why TensorFlow cannot read a checkpoint."""
    try:
        reader = tf.train.load_checkpoint(path)
        for variable in reader.get_variable_to_shape_map():
            reader.get_tensor(variable)
    except Exception as error:  # its reader raises OpError, IndexError, ValueError, ...
        return " ".join(str(error).split())[:200]
    return None


def _note(directory: str, path: str, named: list[str], wrong: str | None) -> str | None:
    if named[:1] == [path]:
        return None
    says = wrong or f"names {named[0]}"
    return f"the file 'checkpoint' in {directory} {says}; the newest intact checkpoint is {os.path.basename(path)}"


def _is_elsewhere(path: str, directory: str) -> bool:
    """Whether a checkpoint exists that lies outside the directory or is of TensorFlow's first format."""
    return os.path.isfile(path) or (os.path.dirname(path) != directory and os.path.isfile(path + ".index"))
