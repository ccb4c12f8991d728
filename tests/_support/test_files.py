"""Files that are complete or not there."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from mtf_hetero._support import command_line, files
from mtf_hetero.checkpoint.files import write_checksums
from mtf_hetero.checkpoint.lock import run_lock
from mtf_hetero.cli.after import predictions
from mtf_hetero.estimator.metrics_log import MetricsLog


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "file"
    files.write_text(path, "one")
    with open(path, encoding="utf-8") as reader:
        files.write_text(path, "two")
        assert reader.read() == "one"  # of who had it open
    assert path.read_text(encoding="utf-8") == "two"
    assert os.listdir(path.parent) == ["file"]
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_text(path, "one")

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "two")
    assert path.read_text(encoding="utf-8") == "one"
    assert os.listdir(tmp_path) == ["file"]


def make_link(path):
    path.with_name("target").write_text("mine")
    path.symlink_to("target")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a name of a socket is short


PLACES = {
    "a symbolic link": make_link,
    "a symbolic link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a directory": pathlib.Path.mkdir,
}
EXAMPLES = [{"class": np.int64(3)}]
WRITERS = {
    "text": lambda path: files.write_text(path, "new"),
    "bytes": lambda path: files.write_bytes(path, b"new"),
    "predictions.jsonl": lambda path: predictions.write(str(path), EXAMPLES, 1),
    "predictions.npz": lambda path: predictions.write(str(path), EXAMPLES, 1),
    "metrics.jsonl": lambda path: MetricsLog(path).append("train", 1, {"loss": 0.5}),
    "run.lock": lambda path: run_lock(str(path.parent)).__enter__(),
    "checksums": lambda path: write_checksums(str(path.with_name("model.ckpt-1"))),
}
NAMES = {"checksums": "model.ckpt-1.sha256"}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_neither_replaced_nor_followed(writer, kind, tmp_path):
    place = tmp_path / NAMES.get(writer, writer)
    (tmp_path / "model.ckpt-1.index").touch()
    PLACES[kind](place)
    before = os.lstat(place)
    with pytest.raises((OSError, ValueError), match=f"it is {kind.removesuffix(' to nothing')}, not a regular file"):
        WRITERS[writer](place)
    assert os.lstat(place) == before
    if place.with_name("target").exists():
        assert place.with_name("target").read_text() == "mine"


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null", "/dev/stdout", "/dev/stdin", "/dev"])
def test_a_device_is_refused(path):
    with pytest.raises(files.PlaceError, match="not a regular file"):
        files.check_place(path)
    with pytest.raises(ValueError, match=f"^--save is '{path}': it is a.*, not a regular file; name another file$"):
        command_line.check_output("save", path)
    assert os.path.exists(path)


@pytest.mark.parametrize(("characters", "ends"), [(10, "0"), (100_000, "0"), (10, "sys.exit(3)")])
def test_a_full_disk_under_the_standard_output_is_named(characters, ends):
    program = (
        "import sys; from mtf_hetero._support import command_line; "
        f"command_line.run(lambda *_: sys.stdout.write('x' * {characters}) * 0 + {ends}, [], 'x')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the standard output cannot be written: No space left on device; send it to another file\n"
    )


def test_a_link_that_takes_the_place_meanwhile_is_not_followed(tmp_path, monkeypatch):
    make_link(tmp_path / "file")
    monkeypatch.setattr(files, "check_place", lambda path: None)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        files.take_descriptor(tmp_path / "file", os.O_WRONLY | os.O_TRUNC)
    assert (tmp_path / "target").read_text() == "mine"


def test_directories_may_be_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    files.write_text(tmp_path / "link" / "file", "new")
    assert (tmp_path / "real" / "file").read_text() == "new"
