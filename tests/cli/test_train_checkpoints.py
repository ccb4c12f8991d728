"""The training binary where checkpoints are damaged, another run has the directory, or the disk is full."""

import resource
import shutil

import pytest
from training_runs import ONE, run, variables

from mtf_hetero import checkpoint as saver_lib

pytestmark = pytest.mark.xdist_group("train checkpoints")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    assert run(**ONE, model_dir=directory) == 0
    return directory


@pytest.fixture
def model_dir(trained, tmp_path, capfd):
    """A directory with the checkpoints of two steps."""
    copy = shutil.copytree(trained, tmp_path / "model", copy_function=shutil.copy2)
    capfd.readouterr()
    return copy


def snapshot(directory):
    return {path.name: path.read_bytes() for path in directory.glob("model.ckpt-*")}


def test_a_damaged_checkpoint_is_skipped_in_one_line(model_dir, capfd):
    before = snapshot(model_dir)
    (model_dir / "model.ckpt-2.index").write_bytes(b"")
    (model_dir / "checkpoint").write_bytes(b"\0\xff")
    assert run(**ONE | {"max_steps": 3}, model_dir=model_dir) == 0
    out, err = capfd.readouterr()
    assert out.endswith(f"\ncheckpoint: {model_dir}/model.ckpt-3\n")
    skipped, state = [line for line in err.splitlines() if "checkpoint" in line]
    message = f"Skipping damaged checkpoint {model_dir}/model.ckpt-2 (model.ckpt-2.index is empty), moved to "
    assert message in skipped and "newest intact checkpoint is model.ckpt-0" in state and "Traceback" not in err
    after = snapshot(model_dir)
    assert all(after[name] == content for name, content in before.items() if "ckpt-0" in name)
    assert variables(model_dir)["global_step"] == 3


def test_a_full_disk(model_dir, capfd):
    before = snapshot(model_dir)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        code = run(**ONE | {"max_steps": 4}, model_dir=model_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    out, err = capfd.readouterr()
    assert code == 1 and "test accuracy" not in out
    errors = [line for line in err.splitlines() if not line.startswith("I")]
    assert errors == [
        f"error: cannot write to {model_dir}: File too large; the checkpoint is {model_dir}/model.ckpt-2; "
        f"to resume, run the same command with --model_dir={model_dir}"
    ]
    assert snapshot(model_dir) == before
    assert saver_lib.find(str(model_dir)).path == f"{model_dir}/model.ckpt-2"
