"""Nothing is lost: damaged checkpoints, killed saves, two runs in one directory, a full disk."""

import dataclasses
import functools
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import threading

import pytest
from estimator_oracle import ActionHook, line_data, line_model, line_steps, log_lines, make, trained_steps
from lock_holder import hold_lock
from tiers import parametrize

from mtf_hetero import checkpoint as saver_lib
from mtf_hetero._compat import tf
from mtf_hetero.checkpoint import files
from mtf_hetero.estimator import Estimator, ModeKeys, RunConfig

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(name="log")
def _log(monkeypatch):
    return log_lines(monkeypatch)


def train(tmp_path, max_steps, **kwargs):
    return make(tmp_path, save_checkpoints_steps=2, save_summary_steps=None, log_step_count_steps=None).train(
        line_data, max_steps=max_steps, **kwargs
    )


def snapshot(directory, pattern="model.ckpt-*"):
    """Bytes and times of the files of checkpoints."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(directory.glob(pattern))}


def of_step(files, step):
    return {name: value for name, value in files.items() if name.startswith(f"model.ckpt-{step}.")}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(bytes(content))


DAMAGES = {"truncated": truncate, "emptied": empty, "deleted": pathlib.Path.unlink, "flipped": flip}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory with the checkpoints of the steps 0, 2 and 4."""
    directory = tmp_path_factory.mktemp("trained")
    train(directory, 4)
    return directory / "model"


@pytest.fixture
def model(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "model", copy_function=shutil.copy2)


def test_a_file_in_the_place_of_damaged_checkpoints_is_named(model):
    (model / "model.ckpt-4.index").write_bytes(b"damaged")
    (model / "set_aside").write_text("mine")
    before = snapshot(model)
    message = (
        f"{model}/set_aside gets the damaged checkpoints, but cannot be written (it is a file, not a directory); move "
        "or remove it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        saver_lib.resume(str(model), 5)
    assert snapshot(model) == before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["index", "data-00000-of-00001", "meta", "sha256"])
def test_the_newest_intact_checkpoint_is_found(kind, damage, model, log):
    DAMAGES[damage](model / f"model.ckpt-4.{kind}")
    before = snapshot(model)
    found = saver_lib.resume(str(model), 5)
    if kind in ("meta", "sha256"):
        assert found == (f"{model}/model.ckpt-4", [f"{model}/model.ckpt-{step}" for step in (0, 2, 4)])
        assert log == [] and snapshot(model) == before and not (model / "set_aside").exists()
        return
    assert found == (f"{model}/model.ckpt-2", [f"{model}/model.ckpt-{step}" for step in (0, 2)])
    (line,) = log
    assert line.startswith(f"Skipping damaged checkpoint {model}/model.ckpt-4 (model.ckpt-4.{kind} ")
    assert line.endswith(f"), moved to {model}/set_aside/model.ckpt-4; using model.ckpt-2")
    assert snapshot(model / "set_aside" / "model.ckpt-4") == of_step(before, 4)
    assert of_step(snapshot(model), 2) == of_step(before, 2)
    assert tf.train.latest_checkpoint(str(model)) == f"{model}/model.ckpt-2"


def test_training_resumes_from_the_newest_intact_checkpoint(model, tmp_path, log):
    flip(model / "model.ckpt-4.data-00000-of-00001")
    before = snapshot(model)
    for call in (lambda: make(tmp_path).evaluate(line_data, steps=1)["global_step"], lambda: train(tmp_path, 6)):
        result = call()
        assert sum("Skipping damaged checkpoint" in line for line in log) == 1
        log.clear()
        assert result == 2 or trained_steps(result) == 6
    w = line_steps(line_steps(0.0, 2), 4)
    assert make(tmp_path).get_variable_value("w") == pytest.approx(w, rel=1e-5)
    assert of_step(snapshot(model), 2) == of_step(before, 2)
    assert tf.train.latest_checkpoint(str(model)) == f"{model}/model.ckpt-6"


STATES = {
    "is missing": None,
    "is empty": b"",
    "is damaged": b'model_checkpoint_path: "model.ck',
    "cannot be read": b"\x9f",
    "names MODEL/model.ckpt-2": b'model_checkpoint_path: "model.ckpt-2"\nall_model_checkpoint_paths: "model.ckpt-2"\n',
}


@pytest.mark.parametrize("fault", STATES)
def test_the_state_file_is_not_relied_upon(fault, model, log):
    (model / "checkpoint").unlink()
    if STATES[fault] is not None:
        (model / "checkpoint").write_bytes(STATES[fault])
    before = snapshot(model)
    assert saver_lib.resume(str(model), 5)[0] == f"{model}/model.ckpt-4"
    assert snapshot(model) == before and tf.train.latest_checkpoint(str(model)) == f"{model}/model.ckpt-4"
    fault = fault.replace("MODEL", str(model))
    assert log == [f"the file 'checkpoint' in {model} {fault}; the newest intact checkpoint is model.ckpt-4"]


@pytest.mark.parametrize(("state", "damage"), [(b"\0\xff", flip), (None, pathlib.Path.unlink)])
def test_where_none_is_whole_nothing_is_changed(state, damage, model, tmp_path):
    for path in model.glob("*.index"):
        damage(path)
    (model / "checkpoint").unlink()
    if state is not None:
        (model / "checkpoint").write_bytes(state)
    before, estimator = snapshot(model, "[!r]*"), make(tmp_path)
    message = f"^model_dir is '{model}', which has no intact checkpoint \\(3 damaged: [^\n]*model.ckpt-4.index "
    for call in (
        lambda: train(tmp_path, 6),
        lambda: estimator.evaluate(line_data, steps=1),
        lambda: estimator.predict(line_data),
        estimator.latest_checkpoint,
        estimator.get_variable_names,
    ):
        with pytest.raises(ValueError, match=message + "[^\n]*; restore one from a backup, or choose another dir"):
            call()
    assert snapshot(model, "[!r]*") == before


def test_a_damaged_checkpoint_that_was_asked_for(model, tmp_path):
    path = model / "model.ckpt-2"
    flip(path.with_name("model.ckpt-2.data-00000-of-00001"))
    with pytest.raises(
        ValueError, match="^checkpoint_path is '.*2', which is damaged: .*00001 differs from its checksum"
    ):
        make(tmp_path).evaluate(line_data, steps=1, checkpoint_path=str(path))


def test_tensorflow_decides_where_its_own_saver_wrote(model, tmp_path, log):
    """Also where it did so over a checkpoint of ours, beside which our checksums lie."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("w", initializer=7.0)
        step = tf.train.get_or_create_global_step()
        session.run([tf.global_variables_initializer(), step.initializer])
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V2)
        for number in (4, 5):
            session.run(step.assign(number))
            saver.save(session, str(model / "model.ckpt"), global_step=number)
    assert not (model / "model.ckpt-5.sha256").exists()
    assert make(tmp_path).get_variable_value("w") == 7.0
    flip(model / "model.ckpt-5.data-00000-of-00001")
    assert saver_lib.resume(str(model), 5)[0] == f"{model}/model.ckpt-4"
    assert make(tmp_path).get_variable_value("w") == 7.0
    assert any("(TensorFlow cannot read it: " in line and "; using model.ckpt-4" in line for line in log)


def test_a_session_made_anew_finds_the_newest_whole_one(tmp_path, log):
    def lose():
        (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
        saver.join()
        flip(tmp_path / "model" / "model.ckpt-4.index")
        raise tf.errors.AbortedError(None, None, "lost")

    resumed = train(tmp_path, 6, hooks=[ActionHook({5: lose})])
    assert resumed.get_variable_value("w") == pytest.approx(line_steps(line_steps(0.0, 2), 4), rel=1e-5)
    assert sum("; using model.ckpt-2" in line for line in log) == 1
    assert saver_lib.find(str(tmp_path / "model")).passed_over == ()


def test_old_ones_are_deleted_after_a_state_file_was_lost(tmp_path):
    config = {"save_checkpoints_steps": 1, "keep_checkpoint_max": 3}
    make(tmp_path, **config).train(line_data, max_steps=5)
    (tmp_path / "model" / "checkpoint").unlink()
    make(tmp_path, **config).train(line_data, max_steps=7)
    kept = sorted(path.name for path in (tmp_path / "model").glob("model.ckpt-*"))
    kinds = ["data-00000-of-00001", "index", "meta", "sha256"]
    assert kept == [f"model.ckpt-{step}.{kind}" for step in (5, 6, 7) for kind in kinds]


def test_one_that_is_kept_for_good(tmp_path):
    hours = 1e-9
    make(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=1, keep_checkpoint_every_n_hours=hours).train(
        line_data, max_steps=3
    )
    train(tmp_path, 5)
    assert {path.stem for path in (tmp_path / "model").glob("*.index")} == {f"model.ckpt-{i}" for i in (0, 1, 2, 3, 5)}


def test_a_hook_and_a_saver_of_the_users(tmp_path):
    saved = []

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(int(global_step_value))

    def model_fn(features, labels, mode, params):
        spec = line_model(features, labels, mode, params)
        if mode != ModeKeys.TRAIN:
            return spec
        saver = tf.train.Saver(sharded=True, max_to_keep=2)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        hook = tf.train.CheckpointSaverHook(str(tmp_path / "model"), save_steps=2, checkpoint_basename="mine")
        return dataclasses.replace(spec, training_hooks=[hook])

    estimator = make(tmp_path, model_fn)
    estimator.train(line_data, max_steps=4, saving_listeners=[Listener()])
    model = tmp_path / "model"
    before = snapshot(model, "mine-4.*")
    assert {path.suffix for path in model.glob("mine-4.*")} == {".index", ".meta", ".sha256", ".data-00000-of-00001"}
    (model / "checkpoint").write_bytes(b"")
    estimator.train(line_data, max_steps=6)
    assert saved == [0, 2, 4]
    assert snapshot(model, "mine-4.*") == before and estimator.latest_checkpoint() == f"{model}/mine-6"
    assert sorted(path.name for path in model.glob("*.index")) == ["mine-4.index", "mine-6.index"]


def test_leftovers_are_cleared_away(model, tmp_path):
    ours, theirs, notes = (
        model / name for name in ("model.ckpt-6_temp-0123456789abcdef", "model.ckpt-8_temp", "notes_temp")
    )
    for directory, name in (
        (ours, "model.ckpt-6.index"),
        (ours / "model.ckpt-6_temp", "part-00000-of-00002.index"),
        (theirs, "part-00000-of-00001.data-00000-of-00001"),
        (notes, "ideas.txt"),
    ):
        directory.mkdir()
        (directory / name).write_text("x")
    junk = ["model.ckpt-8.index.tempstate123", f"checkpoint.tmp{'a1' * 16}", f"graph.pbtxt.tmp{'0f' * 16}"]
    orphans = ["model.ckpt-6.data-00000-of-00001", "model.ckpt-8.data-00000-of-00001", "model.ckpt-8.meta"]
    for name in (*junk, *orphans):
        (model / name).write_text("x")
    assert saver_lib.find(str(model)).path == f"{model}/model.ckpt-4"
    train(tmp_path, 5)
    left = [path.name for path in model.iterdir()]
    assert not set(left) & {*junk, *orphans, ours.name, theirs.name}
    assert "notes_temp" in left and "set_aside" not in left


KILLED = """
import functools, os, shutil, sys
from estimator_oracle import line_data, make
import pathlib
import re

class Killed:
    def __init__(self, at):
        self.left = at
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            setattr(os, name, functools.partial(self.call, getattr(os, name)))
    def call(self, function, *args, **kwargs):
        if self.left == 0:
            os._exit(9)
        self.left -= 1
        return function(*args, **kwargs)

root, number = pathlib.Path(sys.argv[1]), 0
while True:
    directory = root / str(number)
    shutil.copytree(root / "start", directory, copy_function=shutil.copy2)
    child = os.fork()  # TensorFlow is imported, and has done nothing yet
    if not child:
        Killed(number)
        make(directory, save_checkpoints_steps=1, keep_checkpoint_max=2, save_summary_steps=None).train(
            line_data, max_steps=3
        )
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
        break
    number += 1
"""


def steps_in(directory):
    """The steps of the checkpoints in a directory."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob("*.index"))


@parametrize(("keep", "runs"), [(2, 3), (1, 2)], first=[(2, 3)])
def test_what_a_kill_leaves_out_of_the_list_is_deleted_in_its_turn(tmp_path, monkeypatch, keep, runs):
    """Each run ends after it has put a checkpoint in place, and before the file `checkpoint` names it."""
    config, model = {"save_checkpoints_steps": 1, "keep_checkpoint_max": keep}, tmp_path / "model"
    make(tmp_path, **config).train(line_data, max_steps=keep)
    kept = steps_in(model)
    assert len(kept) == keep

    def kill(*_):
        raise SystemExit

    for _ in range(runs):
        with monkeypatch.context() as patch:
            patch.setattr(files, "delete_after", kill)
            with pytest.raises(SystemExit):
                make(tmp_path, **config).train(line_data, steps=1)
        kept.append(kept[-1] + 1)
        assert steps_in(model) == kept
    make(tmp_path, **config).train(line_data, steps=1)
    assert steps_in(model) == [*kept, kept[-1] + 1][-keep:]


@pytest.mark.parametrize("step", [2, 4])
def test_one_that_was_to_be_deleted_when_the_process_was_killed(step, model):
    """It is marked before the list is written without it: the mark of an earlier step or of the last one counts."""
    mark = model / f"model.ckpt-{step}_temp-0123456789abcdef"
    mark.mkdir()
    assert saver_lib.clear_leftovers(str(model)) == [mark.name] and step in steps_in(model)
    mark.mkdir()
    (mark / f"model.ckpt-{step}.deleted").touch()
    assert saver_lib.clear_leftovers(str(model)) == [mark.name]
    assert step not in steps_in(model) and not mark.exists()


def test_where_the_list_cannot_be_written_nothing_is_deleted(model):
    before = sorted(os.listdir(model))

    def write():
        with files.delete_after([f"{model}/model.ckpt-2"]):
            assert sorted(os.listdir(model)) != before
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert sorted(os.listdir(model)) == before
    with files.delete_after([f"{model}/model.ckpt-2"]):
        pass
    assert steps_in(model) == [0, 4]


@pytest.mark.full
def test_killed_at_any_moment_of_a_save(tmp_path):
    """Each time the process dies just before another renaming or deletion."""
    make(tmp_path / "start", save_checkpoints_steps=1, keep_checkpoint_max=2).train(line_data, max_steps=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "programs")])}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    runs = sorted((path for path in tmp_path.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    assert len(runs) > 12
    steps = []
    for run in runs:
        found = saver_lib.find(str(run / "model"))
        assert found.passed_over == ()
        steps.append(int(str(found.path).rsplit("-", 1)[1]))
    assert steps == sorted(steps) and set(steps) == {2, 3}
    for run in runs:
        model = run / "model"
        resumed = make(run, save_checkpoints_steps=1, keep_checkpoint_max=2).train(line_data, max_steps=4)
        assert trained_steps(resumed) == 4
        assert not list(model.glob("*temp*")) and not (model / "set_aside").exists()
        names = {path.name.split(".")[1] for path in model.glob("model.ckpt-*")}
        assert names == {"ckpt-3", "ckpt-4"}
        for name in names:
            assert saver_lib.find_damage(str(model / f"model.{name}")) is None


def test_two_runs_in_one_directory(tmp_path):
    model = tmp_path / "model"
    with hold_lock(model) as first:
        message = f"^model_dir is '{model}', where process {first.pid} on {os.uname().nodename} is training; wait"
        with pytest.raises(ValueError, match=message):
            train(tmp_path, 2)
        assert [path.name for path in model.iterdir()] == ["run.lock"]
    assert trained_steps(train(tmp_path, 2)) == 2  # what a killed process left is no obstacle


def test_a_thread_may_take_the_lock_again(tmp_path):
    errors = []

    def other():
        try:
            train(tmp_path, 2)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=other)
    with saver_lib.run_lock(str(tmp_path / "model")):
        thread.start()
        thread.join()
        train(tmp_path, 2)
    assert len(errors) == 1 and f"another thread of this process, {os.getpid()}, is training" in errors[0]
    train(tmp_path, 3)


@pytest.mark.parametrize("name", ["run.lock", "checkpoint", "graph.pbtxt"])
def test_a_link_in_the_directory_is_not_followed(tmp_path, name):
    (tmp_path / "model").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "model" / name).symlink_to(tmp_path / "mine")
    with pytest.raises((ValueError, saver_lib.WriteError), match=f"{name}.*it is a symbolic link, not a regular file"):
        train(tmp_path, 2)
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "model" / name).is_symlink()


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(ValueError, match="which cannot be written to: File exists; choose another directory"):
        train(tmp_path, 2)
    with pytest.raises(ValueError, match="^model_dir is 'gs://bucket'; it must be a local path"):
        Estimator(line_model, "gs://bucket").train(line_data, steps=1)


@pytest.fixture(name="small_files")
def _small_files():
    """Files may have a quarter of a megabyte, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, before[1]))
    yield functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def large_model(features, labels, mode, params):
    large = tf.get_variable("large", [params["size"]], initializer=tf.zeros_initializer())
    return line_model(features + 0 * large[0], labels, mode, params)


def test_a_disk_that_is_full_when_a_checkpoint_is_saved(tmp_path, small_files):
    config = {"save_checkpoints_steps": 2, "save_summary_steps": None}
    small_files()
    estimator = make(tmp_path, large_model, {"size": 2**17}, **config).train(line_data, max_steps=2)
    model = tmp_path / "model"
    before = snapshot(model)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(saver_lib.WriteError, match=f"^cannot save {model}/model.ckpt-4: File too large$"):
        estimator.train(line_data, max_steps=6)
    assert snapshot(model) == before
    small_files()
    assert trained_steps(estimator.train(line_data, max_steps=6)) == 6


def test_order(tmp_path):
    names = ["best", "best-900", "model.ckpt-10", "model.ckpt-9", "model.ckpt-100", "model.ckpt"]
    for name in names:
        for kind in ("index", "data-00000-of-00001"):
            (tmp_path / f"{name}.{kind}").touch()
    (tmp_path / "table.index").touch()  # somebody else's
    found = [os.path.basename(path) for path in files.candidates(str(tmp_path), "model.ckpt")]
    assert found == ["model.ckpt-100", "model.ckpt-10", "model.ckpt-9", "model.ckpt", "best-900", "best"]
    assert files.candidates(str(tmp_path / "nowhere"), "model.ckpt") == []


def test_a_state_file_of_tensorflow(tmp_path):
    text = 'model_checkpoint_path: "a\\303\\244 \\"b\\"-2"\nall_model_checkpoint_paths: "/else/c-1"\n'
    text += f'all_model_checkpoint_paths: "{tmp_path}/a-2"\nall_model_checkpoint_timestamps: 1.5e9\n'
    (tmp_path / "checkpoint").write_text(text)
    paths, wrong = files.read_state(str(tmp_path))
    assert paths == [f'{tmp_path}/aä "b"-2', f"{tmp_path}/a-2", "/else/c-1"] and wrong is None


def test_a_directory_with_a_state_file_alone(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "checkpoint").write_text("")
    assert Estimator(line_model, tmp_path / "model", RunConfig()).latest_checkpoint() is None
    assert trained_steps(train(tmp_path, 2)) == 2
