"""List, check, place, delete and set aside the files of checkpoints, without TensorFlow.

A checkpoint `model.ckpt-7` is `model.ckpt-7.index`, `model.ckpt-7.data-00000-of-00001` and, without being needed,
`.meta` (the graph) and `.sha256` (checksums for `sha256sum -c`). A checkpoint exists if and only if its index exists:
the index is written last and deleted first. A process that writes or deletes a checkpoint first makes a directory
`model.ckpt-7_temp-...`, as TensorFlow makes `model.ckpt-7_temp`. After a kill, this directory distinguishes leftovers
from a checkpoint that has lost its index. A deleted checkpoint gets a file `model.ckpt-7.deleted` in that directory,
before the file `checkpoint` stops naming it.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence

from mtf_hetero._support.files import PlaceError, check_place, open_regular, read_text, sync, write_text

STATE = "checkpoint"  # TensorFlow's file with the name of the last checkpoint
_GRAPH = "graph.pbtxt"  # of tf.train.CheckpointSaverHook
SET_ASIDE = "set_aside"
_CHECKSUMS = ".sha256"
_DELETED = ".deleted"
_FILE = re.compile(r"(?P<name>.+)\.(?:index|(?P<data>data-\d{5}-of-\d{5}))")
_STEP = re.compile(r"(?P<base>.+)-(?P<step>\d+)")
_TEMPORARY = re.compile(r"(?P<name>.+)_temp(-[0-9a-f]{16})?")
_TEMPORARY_FILE = re.compile(r".+\.tempstate\d+|(checkpoint|graph\.pbtxt)\.tmp[0-9a-f]{32}|\.checkpoint\.[0-9a-f]{16}")
_STATE_LINE = re.compile(r'(?P<key>\w+): (?:"(?P<text>(?:[^"\\]|\\.)*)"|[-+.\w]+)')


def split_name(path: str) -> tuple[str, int | None]:
    """Split "directory/model.ckpt-7" into ("model.ckpt", 7); without a step, the second is None."""
    name = os.path.basename(path)
    match = _STEP.fullmatch(name)
    return (match["base"], int(match["step"])) if match else (name, None)


def candidates(directory: str, base: str) -> list[str]:
    """Return the paths of all checkpoints of a directory, intact or not, the newest step first.

    Args:
      directory: it need not exist.
      base: checkpoints of this name, "model.ckpt" for instance, come before all others.
    """
    names = _names(directory)
    unfinished = {match["name"] for match in map(_TEMPORARY.fullmatch, names) if match}
    parts: dict[str, set[bool]] = {}
    for match in filter(None, map(_FILE.fullmatch, names)):
        parts.setdefault(match["name"], set()).add(match["data"] is None)
    checkpoints = []
    for name, kinds in parts.items():
        has_step, has_index = split_name(name)[1] is not None, True in kinds
        if (has_index or name not in unfinished) if has_step else len(kinds) == 2:
            checkpoints.append(name)

    def age(name: str) -> tuple[bool, bool, int, str]:
        its_base, step = split_name(name)
        return its_base != base, step is None, -(step or 0), name

    return [os.path.join(directory, name) for name in sorted(checkpoints, key=age)]


def read_state(directory: str) -> tuple[list[str], str | None]:
    """Read the file `checkpoint`.

    Returns:
      (paths, the last one first; the fault of the file, such as "is missing", or None)
    """
    path = os.path.join(directory, STATE)
    if not os.path.exists(path):
        return [], "is missing"
    try:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    except ValueError:
        return [], "cannot be read"
    if not lines:
        return [], "is empty"
    paths: dict[str, list[str]] = {"model_checkpoint_path": [], "all_model_checkpoint_paths": []}
    for line in lines:
        match = _STATE_LINE.fullmatch(line.strip())
        if match is None or "\0" in line:
            return [], "is damaged"
        if match["key"] in paths and match["text"] is not None:
            paths[match["key"]].append(_join(directory, _unescape(match["text"])))
    last, older = paths.values()
    return ([*last[-1:], *reversed(older)], None) if last else ([], "is damaged")


def _join(directory: str, path: str) -> str:
    """Return a path in the form of `candidates`, if it lies in the directory."""
    path = os.path.join(directory, path)
    inside = os.path.abspath(os.path.dirname(path)) == os.path.abspath(directory)
    return os.path.join(directory, os.path.basename(path)) if inside else path


def _unescape(text: str) -> str:
    """Decode bytes beyond ASCII, which TensorFlow writes as octal numbers or unchanged."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")


def write_state(directory: str, text: str, name: str = STATE) -> None:
    """Replace the file `checkpoint` at once."""
    write_text(os.path.join(directory, name), text)
    sync(directory)


def check_names(directory: str) -> None:
    """Raise PlaceError if a name that TensorFlow writes to is taken, but not by a file."""
    for name in (STATE, _GRAPH):
        check_place(os.path.join(directory, name))


def file_names(path: str, meta_suffix: str = "meta") -> list[str]:
    """Return the names of a checkpoint's files, the index first."""
    name = os.path.basename(path)
    kinds = rf"index|data-\d{{5}}-of-\d{{5}}|{re.escape(_CHECKSUMS[1:])}|{re.escape(meta_suffix)}"
    ours = re.compile(rf"{re.escape(name)}\.(?:{kinds})")
    names = filter(ours.fullmatch, _names(os.path.dirname(path)))
    return sorted(names, key=lambda file: (file != f"{name}.index", file))


def signature(path: str) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a checkpoint's files. While they stay, the last check of the files is valid."""
    entries = []
    for name in file_names(path):
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(os.path.join(os.path.dirname(path), name))
            entries.append((name, stat.st_size, stat.st_mtime_ns))
    return tuple(entries)


def missing_file(path: str) -> str | None:
    """Return the fault of a checkpoint's files that their names and sizes show, or None."""
    name, sizes = os.path.basename(path), {file: size for file, size, _ in signature(path)}
    if f"{name}.index" not in sizes:
        return f"{name}.index is missing"
    if not sizes[f"{name}.index"]:
        return f"{name}.index is empty"
    shards = {file for file in sizes if ".data-" in file} or {f"{name}.data-00000-of-00001"}
    counts = {int(file[-5:]) for file in shards}
    if len(counts) == 1:  # otherwise files of an older checkpoint are left
        count = counts.pop()
        for shard in (f"{name}.data-{number:05}-of-{count:05}" for number in range(count)):
            if shard not in sizes:
                return f"{shard} is missing"
    return None


def write_checksums(path: str) -> None:
    """Write the checksums of a checkpoint beside it."""
    directory = os.path.dirname(path)
    with open_regular(path + _CHECKSUMS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        index, *others = filter(_FILE.fullmatch, file_names(path))
        for name in (*others, index):  # the index at the end: a truncated file does not name it
            os.write(descriptor, f"{_sha256(os.path.join(directory, name))}  {name}\n".encode())


def changed_files(path: str) -> list[str] | None:
    """Return the changed files of a checkpoint; None without checksums.

    Files are streamed.
    """
    directory, index = os.path.split(path + ".index")
    try:
        entries = [line.split("  ", 1)[::-1] for line in read_text(path + _CHECKSUMS).splitlines()]
    except ValueError:
        return None
    if not entries or entries[-1][0] != index or not all(_FILE.fullmatch(name) for name, *_ in entries):
        return None
    changed = []
    for name, *checksum in entries:
        try:
            if checksum != [_sha256(os.path.join(directory, os.path.basename(name)))]:
                changed.append(name)
        except OSError:
            changed.append(name)
    return changed


@contextlib.contextmanager
def new_checkpoint(path: str, meta_suffix: str = "meta") -> Iterator[str]:
    """Give a temporary path for a checkpoint, and then move the checkpoint to its place. After an error it is deleted.

    Everything is on the disk before the first file is renamed. A checkpoint of the same name is deleted just before.

    Args:
      path: the checkpoint.
      meta_suffix: ending of the file of the graph.
    """
    staging = _begin(path)
    temporary = os.path.join(staging, os.path.basename(path))
    directory = os.path.dirname(path)
    try:
        yield temporary
        write_checksums(temporary)
        names = _names(staging)
        for name in names:
            check_place(os.path.join(directory, name))
            sync(os.path.join(staging, name))
        _unlink_all(path, meta_suffix)
        names.sort(key=lambda name: name.endswith(".index"))
        for name in names:
            if name.endswith(".index"):
                sync(directory)  # the index comes last on the disk too
            os.rename(os.path.join(staging, name), os.path.join(directory, name))
        sync(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def delete_after(paths: Sequence[str], meta_suffix: str = "meta") -> Iterator[None]:
    """Delete checkpoints at the end of the `with` block, in which the file `checkpoint` is written without them.

    They are marked before the block: `clear_leftovers` deletes them if the process is killed. If the block raises an
    error, they stay.
    """
    stagings = []
    try:
        for path in paths:
            stagings.append(_begin(path))
            with open_regular(_marker(stagings[-1], os.path.basename(path)), os.O_WRONLY | os.O_CREAT):
                pass
        yield
        for path in paths:
            _unlink_all(path, meta_suffix)
    finally:
        for staging in stagings:
            shutil.rmtree(staging, ignore_errors=True)


def set_aside(path: str) -> str:
    """Move the files of a checkpoint to a new directory, and return that directory."""
    directory, name = os.path.split(path)
    place, number = os.path.join(directory, SET_ASIDE, name), 1
    while os.path.exists(place):
        number += 1
        place = os.path.join(directory, SET_ASIDE, f"{name}_{number}")
    if os.path.lexists(above := os.path.join(directory, SET_ASIDE)) and not os.path.isdir(above):
        raise PlaceError(errno.ENOTDIR, "it is a file, not a directory", above)
    os.makedirs(place)
    for file in file_names(path):
        os.rename(os.path.join(directory, file), os.path.join(place, file))
    sync(directory)
    return place


def clear_leftovers(directory: str) -> list[str]:
    """Delete the leftovers of processes killed while they saved or deleted checkpoints, and return their names."""
    cleared = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        if _TEMPORARY_FILE.fullmatch(name) and os.path.isfile(path):
            os.unlink(path)
            cleared.append(name)
    for name in _names(directory):
        path = os.path.join(directory, name)
        match = _TEMPORARY.fullmatch(name)
        if match and os.path.isdir(path) and _is_staging(path, match["name"]):
            checkpoint = os.path.join(directory, match["name"])
            if not os.path.exists(checkpoint + ".index") or os.path.exists(_marker(path, match["name"])):
                _unlink_all(checkpoint)
            shutil.rmtree(path)
            cleared.append(name)
    return cleared


def _marker(staging: str, name: str) -> str:
    return os.path.join(staging, name + _DELETED)


def _is_staging(directory: str, name: str) -> bool:
    """Return whether a directory holds only files that a save puts there."""
    for _, directories, files in os.walk(directory):
        if not all(inside.startswith((f"{name}.", f"{name}_", "part-")) for inside in [*directories, *files]):
            return False
    return True


def _begin(path: str) -> str:
    staging = f"{path}_temp-{secrets.token_hex(8)}"
    os.mkdir(staging)
    return staging


def _unlink_all(path: str, meta_suffix: str = "meta") -> None:
    for name in file_names(path, meta_suffix):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(os.path.dirname(path), name))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory or os.curdir))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
