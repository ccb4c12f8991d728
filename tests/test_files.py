"""Files that are complete or not there, and that several processes change at once."""

import os
import subprocess
import sys

import pytest

from mtf_hetero import speeds
from mtf_hetero._support import files
from mtf_hetero.speeds import Profile, TimeModel

PROCESSES, TIMES = 4, 12


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


PROGRAM = f"""
import sys
from mtf_hetero import speeds
for number in range({TIMES}):
    model = speeds.TimeModel(((1, 1.0 + number, 0.0),))
    speeds.update(speeds.Profile({{"device": {{f"{{sys.argv[2]}}-{{number}}": model}}}}), sys.argv[1])
"""


def test_processes_that_measure_at_once_keep_all_they_measured(tmp_path):
    path = tmp_path / "profile.json"
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM, path, str(i)]) for i in range(PROCESSES)]
    assert [process.wait() for process in running] == [0] * PROCESSES
    kept = speeds.load(path).models["device"]
    assert set(kept) == {f"{process}-{number}" for process in range(PROCESSES) for number in range(TIMES)}
    assert sorted(os.listdir(tmp_path)) == ["profile.json", "profile.json.lock"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schema": 99}', b"[]"])
def test_what_is_no_profile_is_written_over(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    profile = Profile({"device": {"key": TimeModel(((1, 1.0, 0.0),))}})
    speeds.update(profile, path)
    assert speeds.load(path) == profile
