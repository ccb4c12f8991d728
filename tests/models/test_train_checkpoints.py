"""The training binary where checkpoints are damaged, another run has the directory, or the disk is full."""

import resource
import subprocess

import pytest
from training_runs import FAST, restored_logging, run, start, variables  # noqa: F401 - the first is a fixture

from mtf_hetero import saver as saver_lib

pytestmark = pytest.mark.usefixtures("restored_logging")


def options(**values):
    return [f"--{name}={value}" for name, value in {**FAST, **values}.items()]


def snapshot(directory):
    return {path.name: path.read_bytes() for path in directory.glob("model.ckpt-*")}


def test_a_damaged_checkpoint_is_passed_over_in_one_line(tmp_path):
    assert run(**FAST, model_dir=tmp_path) == 0
    before = snapshot(tmp_path)
    (tmp_path / "model.ckpt-2.index").write_bytes(b"")
    (tmp_path / "checkpoint").write_bytes(b"\0\xff")
    process = start(*options(model_dir=tmp_path, max_steps=3), stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and out.endswith(f"\ncheckpoint: {tmp_path}/model.ckpt-3\n")
    warnings = [line for line in err.splitlines() if "checkpoint" in line and line.startswith("W")]
    assert len(warnings) == 2 and "Traceback" not in err
    assert f"checkpoint {tmp_path}/model.ckpt-2 is passed over for model.ckpt-0: model.ckpt-2.index is empty" in err
    after = snapshot(tmp_path)
    assert all(after[name] == content for name, content in before.items() if "ckpt-0" in name)
    assert variables(tmp_path)["global_step"] == 3


def test_where_no_checkpoint_is_whole(tmp_path, capfd):
    assert run(**FAST, model_dir=tmp_path) == 0
    for path in tmp_path.glob("*.index"):
        path.unlink()
    (tmp_path / "checkpoint").write_bytes(b"")
    before = snapshot(tmp_path)
    capfd.readouterr()
    for dry_run in (False, True):
        assert run(**FAST, model_dir=tmp_path, dry_run=dry_run) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1
        assert err.startswith(f"error: model_dir is '{tmp_path}', which holds 2 checkpoints and none that is whole (")
    assert snapshot(tmp_path) == before


def test_another_run_in_the_directory(tmp_path, capfd):
    with start(*options(model_dir=tmp_path, max_steps=100000, train_epochs=10000), stdout=subprocess.DEVNULL) as first:
        assert first.stderr is not None
        assert any("step 10 of" in line for line in first.stderr)
        assert run(**FAST, model_dir=tmp_path) == 2
        first.kill()
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"error: model_dir is '{tmp_path}', where process {first.pid} on ")
    assert run(**FAST, model_dir=tmp_path) == 0
    assert "test accuracy" in capfd.readouterr().out


def test_a_full_disk(tmp_path, capfd):
    assert run(**FAST, model_dir=tmp_path) == 0
    before = snapshot(tmp_path)
    capfd.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        code = run(**{**FAST, "max_steps": 4}, model_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    out, err = capfd.readouterr()
    assert code == 1 and "test accuracy" not in out
    errors = [line for line in err.splitlines() if not line.startswith("I")]
    assert errors == [
        f"error: cannot write to {tmp_path}: File too large; the checkpoint is {tmp_path}/model.ckpt-2; "
        f"to resume, run the same command with --model_dir={tmp_path}"
    ]
    assert snapshot(tmp_path) == before
    assert saver_lib.find(str(tmp_path)).path == f"{tmp_path}/model.ckpt-2"
