"""Find the newest intact checkpoint of a directory, from which training resumes.

Intact means: all files exist, and every byte is as it was written. The checksums beside a checkpoint show it, and the
files are streamed. If these are absent or do not match, TensorFlow's own checksums inside the checkpoint decide: the
checkpoint may be TensorFlow's own, or the file of checksums may be damaged. TensorFlow reads one variable at a time.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero.checkpoint import files

_BASE = "model.ckpt"  # of tf.train.CheckpointSaverHook
_verdicts: dict[str, tuple[tuple[tuple[str, int, int], ...], str | None]] = {}


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of `find`.

    Args:
      path: the newest intact checkpoint; None: no checkpoint exists.
      passed_over: (path, fault) of newer ones.
      note: the disagreement of the file `checkpoint`; None: it agrees.
    """

    path: str | None
    passed_over: tuple[tuple[str, str], ...] = ()
    note: str | None = None

    def log(self, places: Sequence[str] = ()) -> None:
        """Warn about skipped checkpoints, and about a file `checkpoint` that disagrees.

        Args:
          places: the directories to which skipped checkpoints were moved.
        """
        for (path, damage), place in itertools.zip_longest(self.passed_over, places):
            note = f", moved to {place}" if place else ""
            name = os.path.basename(str(self.path))
            tf.logging.warning("Skipping damaged checkpoint %s (%s)%s; using %s", path, damage, note, name)
        if self.note is not None:
            tf.logging.warning("%s", self.note)


def find(directory: str) -> Found:
    """Return the newest intact checkpoint of a directory, even if its file `checkpoint` names another.

    Raises:
      ValueError: checkpoints exist, and none is intact.
    """
    listed_paths, wrong = files.read_state(directory)
    paths = files.candidates(directory, files.split_name(listed_paths[0])[0] if listed_paths else _BASE)
    if listed_paths and listed_paths[0] not in paths and _is_elsewhere(listed_paths[0], directory):
        paths.append(listed_paths[0])
    passed_over = []
    for path in paths:
        damage = find_damage(path)
        if damage is None:
            note = _note(directory, path, listed_paths, wrong) if wrong or not passed_over else None
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
    """Return the fault of a checkpoint in a few words; None if it is intact."""
    signature = files.signature(path)
    if path not in _verdicts or _verdicts[path][0] != signature:
        _verdicts[path] = signature, _find_damage(path)
    return _verdicts[path][1]


def mark_intact(path: str) -> None:
    """Mark a checkpoint that this process has just written as intact, so that the next `find` does not read it."""
    _verdicts[path] = files.signature(path), None


def resume(directory: str, keep: int | None) -> tuple[str | None, list[str]]:
    """Find the checkpoint from which training resumes, and move damaged newer ones to another directory.

    Training repeats their steps, and never overwrites a checkpoint. The file `checkpoint` is corrected. The caller must
    have the lock.

    Args:
      directory: the model directory.
      keep: number of checkpoints that a Saver keeps; None or 0: all.

    Returns:
      (path of the newest intact checkpoint or None; the checkpoints that a Saver deletes later, the oldest first)

    Raises:
      ValueError: checkpoints exist, and none is intact; no file is changed then.
    """
    checkpoint = find(directory)
    try:
        places = [files.set_aside(path) for path, _ in checkpoint.passed_over]
    except OSError as error:
        place = os.path.join(directory, files.SET_ASIDE)
        raise ValueError(
            f"{place} gets the damaged checkpoints, but cannot be written ({error.strerror}); move or remove it"
        ) from error
    checkpoint.log(places)
    if checkpoint.path is None:
        return None, []
    checkpoints = _listed_checkpoints(directory, checkpoint.path, keep)
    if files.read_state(directory)[0][:1] != [checkpoint.path]:
        write_state(directory, checkpoint.path, checkpoints)
    return checkpoint.path, checkpoints


def write_state(directory: str, path: str, checkpoints: list[str], name: str = files.STATE) -> None:
    """Write the file `checkpoint`, in which other programs look for the last checkpoint.

    Args:
      directory: the model directory.
      path: the last checkpoint.
      checkpoints: all checkpoints that are deleted later.
      name: of the file.
    """
    directory = os.path.abspath(directory)

    def relative(path: str) -> str:  # so that the directory can be moved
        path = os.path.abspath(path)
        return os.path.basename(path) if os.path.dirname(path) == directory else path

    state = tf.train.generate_checkpoint_state_proto(
        directory, relative(path), [relative(other) for other in checkpoints]
    )
    files.write_state(directory, str(state), name)


def _listed_checkpoints(directory: str, path: str, keep: int | None) -> list[str]:
    """Return the existing checkpoints that the file `checkpoint` names, and the last one. Others are kept forever.

    If the file cannot be read, return the newest ones of the directory.
    """
    listed_paths, wrong = files.read_state(directory)
    candidates = files.candidates(directory, files.split_name(path)[0])
    checkpoints = [other for other in candidates if wrong or other in listed_paths]
    checkpoints = [other for other in checkpoints if other != path and os.path.exists(other + ".index")]
    last = [path] if path in candidates else []  # checkpoints of other directories are not deleted
    return [*reversed(checkpoints[: keep - 1] if wrong and keep else checkpoints), *last]


def _find_damage(path: str) -> str | None:
    one_file = os.path.isfile(path) and not os.path.exists(path + ".index")  # TensorFlow's first format
    missing = None if one_file else files.missing_file(path)
    changed_files = None if missing else files.changed_files(path)
    if missing or changed_files == []:
        return missing
    error = _reading_error(path)
    if error is None:
        return None
    return f"{changed_files[0]} differs from its checksum" if changed_files else f"TensorFlow cannot read it: {error}"


def _reading_error(path: str) -> str | None:
    """Return TensorFlow's reason that it cannot read a checkpoint, or None."""
    try:
        reader = tf.train.load_checkpoint(path)
        for variable in reader.get_variable_to_shape_map():
            reader.get_tensor(variable)
    except Exception as error:  # its reader raises OpError, IndexError, ValueError, ...
        return " ".join(str(error).split())[:200]
    return None


def _note(directory: str, path: str, listed_paths: list[str], wrong: str | None) -> str | None:
    if listed_paths[:1] == [path]:
        return None
    says = wrong or f"names {listed_paths[0]}"
    return f"the file 'checkpoint' in {directory} {says}; the newest intact checkpoint is {os.path.basename(path)}"


def _is_elsewhere(path: str, directory: str) -> bool:
    """Return whether a checkpoint exists outside the directory or in TensorFlow's first format."""
    return os.path.isfile(path) or (os.path.dirname(path) != directory and os.path.isfile(path + ".index"))
