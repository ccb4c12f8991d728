"""The training binary on a set of images that is damaged: one line, exit code 2, and what was saved stays."""

import functools
import os
import re

import numpy as np
import pytest
import small_sets
from tiers import parametrize
from training_runs import run, variables

from mtf_hetero import tf
from mtf_hetero.data import dataset, records

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = {"model": "lenet", "dataset": "squares", "batch_size": 4, "train_epochs": 9, "optimizer": "sgd"}
OPTIONS |= {"devices": "cpu:0,cpu:1", "layout": "batch", "list_speed": "3,1", "learning_rate_schedule": "constant"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(small_sets, "SIZE", 28)
    monkeypatch.setattr(dataset, "STATISTICS_IMAGES", 2)  # the others are read first by a step
    no_cache = functools.partialmethod(dataset.Dataset.train_input_fn, cached_bytes=0)
    monkeypatch.setattr(dataset.Dataset, "train_input_fn", no_cache)
    root = tmp_path / "sets"
    root.mkdir()
    small_sets.build(root, image_shape=(28, 28, 3), splits=(("train", 12), ("test", 5)))
    return root


def shard(root, split):
    return next(root.rglob(f"*{split}.tfrecord*"))


def flip(path, record):
    begin = int((records.record_lengths(str(path)) + 16)[:record].sum())
    content = bytearray(path.read_bytes())
    content[begin + 40] ^= 1
    path.write_bytes(content)
    return begin


def read_error(capfd):
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith(("error", "Traceback"))]
    assert len(errors) == 1
    return errors[0]


@parametrize("layout", ["batch", "filters"], first=["batch"])
def test_in_the_middle_of_training(root, tmp_path, capfd, layout):
    given = OPTIONS | {"data_dir": root, "model_dir": tmp_path / "model", "layout": layout}
    assert run(**given, max_steps=2) == 0
    saved = variables(tmp_path / "model")
    capfd.readouterr()
    path = shard(root, "train")
    begin = flip(path, 9)
    assert run(**given, max_steps=9) == 2
    message = (
        rf"error: {path} cannot be read from byte {begin}: record 10 of 12 is missing, damaged or cut off; prepare "
    )
    error = read_error(capfd)
    assert re.match(message, error)
    assert f"to resume, run the same command with --model_dir={tmp_path / 'model'}" in error
    kept = variables(tmp_path / "model")
    assert 2 <= kept["global_step"] < 9
    if kept["global_step"] == 2:
        for name, value in saved.items():
            np.testing.assert_array_equal(kept[name], value)


def test_before_training(root, tmp_path, capfd):
    path = shard(root, "train")
    os.truncate(path, 3000)
    assert run(**OPTIONS, data_dir=root, model_dir=tmp_path / "model") == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.match(rf"error: {path} is cut off or damaged in record \d+ of 12, which begins at byte", err)
    assert not (tmp_path / "model").exists()


def test_a_dry_run(root, capfd):
    flip(shard(root, "train"), 0)
    assert run(**OPTIONS, data_dir=root, dry_run=True) == 2
    assert "record 1 of 12 is missing, damaged or cut off" in read_error(capfd)
    assert tf.get_default_graph().get_operations() == []
