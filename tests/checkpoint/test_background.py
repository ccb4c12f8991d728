"""Checkpoints that a thread writes while training goes on: complete or absent, one at a time, and all at the end."""

import errno
import os
import threading

import numpy as np
import pytest
from estimator_oracle import ActionHook, line_data, line_steps, make, trained_steps

from mtf_hetero import tf
from mtf_hetero.checkpoint import State, WriteError, find_damage
from mtf_hetero.checkpoint import saver as saver_lib


@pytest.fixture(name="held")
def _held(monkeypatch):
    """Lets a write end once `held.go` is set. `held.most` is how many there were at once."""

    class Held:
        go, paths, now, most = threading.Event(), [], 0, 0

    write = State.write

    def held_write(state, path):
        Held.now += 1
        Held.most = max(Held.most, Held.now)
        assert Held.go.wait(60)
        write(state, path)
        Held.paths.append(os.path.basename(path))
        Held.now -= 1

    monkeypatch.setattr(State, "write", held_write)
    return Held


def test_training_goes_on_while_a_checkpoint_is_written(held, tmp_path):
    seen = []

    def look():
        seen.extend(sorted(name for name in os.listdir(tmp_path / "model") if name.endswith(".index")))
        held.go.set()

    trained = make(tmp_path, save_checkpoints_steps=4)
    trained.train(line_data, hooks=[ActionHook({3: look})], max_steps=6)
    assert seen == []  # the one of step 0 was not complete after three steps
    assert held.paths == ["model.ckpt-0", "model.ckpt-4", "model.ckpt-6"] and held.most == 1
    for step in (0, 4, 6):
        path = str(tmp_path / "model" / f"model.ckpt-{step}")
        assert find_damage(path) is None and os.path.exists(f"{path}.meta")
        assert tf.train.load_variable(path, "w") == pytest.approx(line_steps(0.0, step), rel=1e-5)
    assert trained_steps(trained) == 6


def test_the_meta_graph_is_that_of_the_session(tmp_path):
    make(tmp_path, save_checkpoints_steps=2).train(line_data, max_steps=4)
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(str(tmp_path / "model" / "model.ckpt-4.meta"))
        saver.restore(session, str(tmp_path / "model" / "model.ckpt-4"))
        (weight,) = (variable for variable in tf.global_variables() if variable.op.name == "w")
        assert session.run(weight) == pytest.approx(line_steps(0.0, 4), rel=1e-5)


def test_a_write_that_fails_ends_the_training(tmp_path, monkeypatch):
    write = State.write

    def fail(state, path):
        if path.endswith("-2"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(state, path)

    monkeypatch.setattr(State, "write", fail)
    trained = make(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(WriteError, match=r"model.ckpt-2: No space left on device"):
        trained.train(line_data, max_steps=1000)
    assert os.path.basename(trained.latest_checkpoint()) == "model.ckpt-0"
    assert not any("_temp" in name for name in os.listdir(tmp_path / "model"))


def test_without_memory_training_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(saver_lib, "free_bytes", lambda: 0.0)
    monkeypatch.setattr(State, "write", lambda state, path: pytest.fail("it was copied"))
    trained = make(tmp_path, save_checkpoints_steps=2).train(line_data, max_steps=3)
    np.testing.assert_allclose(trained.get_variable_value("w"), line_steps(0.0, 3), rtol=1e-5)
