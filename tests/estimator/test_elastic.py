"""A training that continues elsewhere in mid-run: its losses are those of one that stayed where it was."""

import dataclasses
import functools
import itertools
import math
import os
import signal
import tempfile
import threading

import numpy as np
import pytest
import uneven_estimator
from estimator_oracle import (  # noqa: F401 - one is a fixture
    ActionHook,
    await_wanted,
    line_model,
    log_lines,
    without_graph_optimizers,
)
from tiers import losing_workers, parametrize
from uneven_estimator import BATCH, LAYOUTS, X, Y, model_fn

from mtf_hetero import Estimator, RunConfig, tf
from mtf_hetero._support import threads
from mtf_hetero.checkpoint import saver as saver_lib
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.estimator import Elastic, Place, training
from mtf_hetero.estimator.hooks import SaverHook, read_global_step
from mtf_hetero.estimator.resume import ResumingSessionCreator
from mtf_hetero.estimator.summaries import LOSS_COLLECTION_KEY
from mtf_hetero.estimator.warm import WarmSession
from mtf_hetero.training.elastic import CHECKPOINT, MEMORY

pytestmark = pytest.mark.usefixtures("without_graph_optimizers")
NOISY = {"noisy": True}
estimator = functools.partial(uneven_estimator.estimator, params=NOISY)


def input_fn():
    """Batches in an order of their own, read once and dropped: each is another one."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(4).shuffle(72, seed=3)
    return data.batch(BATCH.size, drop_remainder=True).repeat()


class Losses(tf.train.SessionRunHook):
    """Notes the loss of each step."""

    def __init__(self):
        self.losses = {}

    def begin(self):
        self.fetched = tf.get_collection(LOSS_COLLECTION_KEY)[-1], read_global_step()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.fetched)

    def after_run(self, run_context, run_values):
        loss, step = run_values.results
        self.losses[int(step)] = float(loss)


def moves(elastic, estimators, data=input_fn):
    """Return a hook that moves a training, {number of steps: the Estimator that continues it}."""

    def move(steps):
        elastic.move(Place(estimators[steps], data), f"after {steps} steps")

    return ActionHook({steps: functools.partial(move, steps) for steps in estimators})


def train(first, elastic, *hooks, **options):
    """Train six steps, and check that their losses and the last values are those of one device."""
    losses = Losses()
    first.train(input_fn, [losses, *hooks], max_steps=6, elastic=elastic, **options)
    check(first, losses.losses)


@functools.cache
def undisturbed():
    """The losses and the last values of six steps on one device."""
    with tempfile.TemporaryDirectory() as directory:
        hook, trained = Losses(), estimator("one", directory)
        trained.train(input_fn, [hook], max_steps=6)
        return hook.losses, values(trained)


def values(trained):
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


def check(trained, found):
    losses, last = undisturbed()
    assert found == pytest.approx(losses, rel=1e-12)
    last_found = values(trained)
    assert last_found.keys() >= last.keys()
    for name, value in last.items():
        np.testing.assert_allclose(last_found[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


MOVES = [("batch", "two", "one"), ("one", "four", "batch"), ("four", "one", "two")]


@parametrize("layouts", MOVES, first=MOVES[:1])
def test_a_training_that_moves_has_the_losses_of_one_that_stays(layouts, tmp_path, monkeypatch):
    """It moves through memory, and saves no more than without the moves."""
    _, last = undisturbed()
    saved, save = [], SaverHook._save
    monkeypatch.setattr(
        SaverHook, "_save", lambda hook, session, step: saved.append(int(step)) or save(hook, session, step)
    )
    first, second, third = (estimator(layout, tmp_path, save_checkpoints_steps=5) for layout in layouts)
    events = []
    elastic = Elastic(report=events.append)
    train(first, elastic, moves(elastic, {2: second, 4: third}))
    found = [(event.step, event.why, event.source, event.repeated_steps) for event in events]
    assert found == [(2, "after 2 steps", MEMORY, 0), (4, "after 4 steps", MEMORY, 0)]
    assert all(event.seconds > 0 for event in events)
    assert saved == [0, 5, 6]
    assert set(values(first)) == set(last)


@pytest.mark.full
@pytest.mark.parametrize(("grows", "memory"), [(False, math.inf), (True, math.inf), (True, 0.0)])
def test_a_step_that_was_built_in_a_thread_is_used_once(grows, memory, tmp_path, monkeypatch):
    """Without memory for the state, in another session, which restores a checkpoint."""
    monkeypatch.setattr(saver_lib, "free_bytes", lambda: memory)
    events = []
    first, second, elastic = estimator("batch", tmp_path), estimator("two", tmp_path), Elastic(report=events.append)
    built, taken, take = [], [], WarmSession.take
    monkeypatch.setattr(WarmSession, "take", lambda warm: taken.append(take(warm)) or taken[-1])

    def counted(features, labels, mode, params):
        built.append(mode)
        return model_fn(features, labels, mode, params)

    monkeypatch.setattr(second, "_model_fn", counted)

    class Growing(tf.train.SessionRunHook):
        """Adds to the graph of a session that is there already."""

        def begin(self):
            self.count = tf.Variable(3, collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True)
            self.summary = tf.summary.scalar("count", self.count)

        def after_create_session(self, session, coord):
            assert session.run(self.count) == 3

        def after_run(self, run_context, run_values):
            (summary,) = tf.get_collection("summary_op")
            assert any(added is self.summary for added in summary.op.inputs)

    def prepare():
        threads.begin(lambda: second.prepare(input_fn, elastic), "preparing").result()
        assert len(built) == 1

    hooks = [Growing()] if grows else []
    train(first, elastic, ActionHook({2: prepare}), moves(elastic, {2: second, 3: first, 4: second}), *hooks)
    assert len(built) == 2  # in advance, and when it arrives again
    assert len(taken) == 1
    assert {event.source for event in events} == {MEMORY if memory else CHECKPOINT}


def test_a_change_that_another_one_follows_at_once_is_part_of_it():
    events = []
    elastic = Elastic(without=lambda lost: Place(None, input_fn), report=events.append)
    elastic.end_step(4)
    assert elastic.leave({1: "b:2"}, Place(None, input_fn)).why == "worker 1 (b:2) was lost"
    elastic.move(Place(None, input_fn), "worker c:3 joined")
    assert elastic.begin_move("a state").why == "worker 1 (b:2) was lost, and worker c:3 joined"
    elastic.end_step(2)
    assert elastic.leave({2: "c:3", 4: "e:5"}, Place(None, input_fn)).why == "worker 2 (c:3), worker 4 (e:5) were lost"
    elastic.end_step(3)
    assert [(event.step, event.why, event.source, event.repeated_steps) for event in events] == [
        (2, "worker 1 (b:2) was lost, and worker c:3 joined", CHECKPOINT, 3),
        (3, "worker 2 (c:3), worker 4 (e:5) were lost", CHECKPOINT, 0),
    ]


def test_no_workers_are_looked_for_while_the_place_changes(monkeypatch):
    monkeypatch.setattr("mtf_hetero.training.elastic._LOOK_SECONDS", 0.01)
    looked = threading.Event()
    elastic = Elastic(within=looked.set, report=lambda event: None)
    elastic.move(Place(None, input_fn), "worker b:2 joined")
    elastic.begin_move("a state")
    with elastic.looking():
        assert not looked.wait(0.3)
        elastic.end_step(0)
        assert looked.wait(20)


def test_a_worker_may_be_lost_while_the_state_is_copied(tmp_path, monkeypatch):
    """The session begins anew, and that one is copied."""
    copied, count = training.copied, itertools.count()

    def lost_at_first(saver, session):
        if not next(count):
            raise tf.errors.UnavailableError(None, None, "worker 1 was lost")
        return copied(saver, session)

    monkeypatch.setattr(training, "copied", lost_at_first)
    elastic = Elastic()
    first = estimator("batch", tmp_path, save_checkpoints_steps=1)
    train(first, elastic, moves(elastic, {4: estimator("two", tmp_path)}))
    assert next(count) == 2


def follow_step():
    """Batches from that of the global step on, which are not skipped once more."""
    return input_fn().skip(tf.cast(tf.train.get_global_step().read_value(), tf.int64))


def test_a_training_that_is_resumed_and_moves_has_the_losses_of_one_that_never_stopped(tmp_path):
    """Random numbers too: those of a step follow from the seed and the step. Here the data follow the step, too."""
    losses, trained, elastic = Losses(), estimator("two", tmp_path), Elastic()
    estimator("batch", tmp_path).train(follow_step, [losses], max_steps=2)
    hooks = [losses, moves(elastic, {4: estimator("one", tmp_path)}, follow_step)]
    trained.train(follow_step, hooks, max_steps=6, elastic=elastic)
    check(trained, losses.losses)


class Counting(tf.train.SessionRunHook):
    """Counts the steps in a variable that the graph gets once it has been prepared."""

    def begin(self):
        self.count = tf.get_variable("hook_steps", [], tf.int64, tf.zeros_initializer())
        self.add = self.count.assign_add(1)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.add)


class Listener(tf.train.CheckpointSaverListener):
    def __init__(self):
        self.steps = []

    def after_save(self, session, global_step_value):
        self.steps.append(int(global_step_value))


def test_hooks_listeners_and_a_saver_of_the_users_move_too(tmp_path):
    elastic, listener, first = Elastic(), Listener(), estimator("batch", tmp_path)
    hooks = [
        moves(elastic, {3: estimator("two", tmp_path)}),
        Counting(),
        tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2),
    ]
    train(first, elastic, *hooks, saving_listeners=[listener])
    assert listener.steps == [0, 2, 3, 5, 6]
    assert first.get_variable_value("hook_steps") == 6
    assert set(values(first)) == {*undisturbed()[1], "hook_steps"}


def test_a_model_with_other_variables_is_refused(tmp_path):
    other = Estimator(lambda features, labels, mode: line_model(X[:, 0], X[:, 1], mode, {}), str(tmp_path))
    elastic = Elastic()
    with pytest.raises(ValueError, match="the state of the training has no variable 'w'; continue with the model that"):
        estimator("batch", tmp_path).train(input_fn, [moves(elastic, {2: other})], max_steps=6, elastic=elastic)


# Lost workers


def on_devices(layout, directory, cluster, *, without=(), **config):
    """An Estimator on the devices of a cluster, without those of some workers."""
    devices = tuple(device for device in cluster.devices if not any(f"task:{index}" in device for index in without))
    cluster = dataclasses.replace(cluster, devices=devices)
    run_config = RunConfig(
        workers=cluster.workers_in_use,
        master=cluster.target,
        session_config=cluster.session_config(),
        save_checkpoints_steps=2,
        **{"wait_for_workers": 1, **config},
    )
    return Estimator(model_fn, str(directory), run_config, NOISY | {"layout": LAYOUTS[layout], "devices": devices})


@pytest.fixture
def lose(workers):
    """Ends or stops a worker, which is restarted in the end."""
    lost = set()

    def lose_worker(number, index=1):
        lost.add(index)
        os.kill(workers.pids[index], number)

    yield lose_worker
    for index in lost:
        workers.restart(index)


KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "how", "copies", "source"),
    [
        ("batch", STOP, False, MEMORY),  # the devices that are left have all variables
        ("two", STOP, True, MEMORY),
        ("two", KILL, False, CHECKPOINT),
    ],
)
def test_a_training_continues_without_a_lost_worker(
    layout, how, copies, source, workers, lose, impatient, tmp_path, monkeypatch
):
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e9 if copies else 1e-9)
    unused, rest = {"batch": ((), "two"), "two": ((2,), "one")}[layout]
    asked, events = [], []

    def without(lost):
        asked.append(lost)
        return Place(on_devices(rest, tmp_path, workers.cluster, without=(*unused, 1)), input_fn)

    elastic = Elastic(without=without, report=events.append)
    trained = on_devices(layout, tmp_path, workers.cluster, without=unused)
    train(trained, elastic, ActionHook({5: lambda: lose(how)}))
    assert asked == [{1: workers.addresses[1]}]
    step, again = {CHECKPOINT: (4, 1), MEMORY: (5, 0)}[source]
    assert [(event.step, event.source, event.repeated_steps) for event in events] == [(step, source, again)]
    assert events[0].why == f"worker 1 ({workers.addresses[1]}) was lost"
    assert 1 <= events[0].seconds < 60


class LoseAtFirst(tf.train.SessionRunHook):
    """Loses a worker once a second session is made, in the midst of a run that needs it."""

    def __init__(self, lose, device):
        self.lose, self.device, self.sessions = lose, device, 0

    def begin(self):
        self.sessions += 1
        with tf.device(self.device if self.sessions == 2 else ""):
            self.needed = tf.random.normal([])

    def after_create_session(self, session, coord):
        if self.sessions == 2:
            self.lose()
            session.run(self.needed)


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize(("when", "how"), [("made", KILL), ("new", STOP)])
def test_a_worker_may_be_lost_while_a_session_begins(when, how, workers, lose, impatient, tmp_path, monkeypatch):
    asked = {}

    def without(lost):
        asked.update(lost)
        layout = {1: "two", 2: "one"}[len(asked)]
        return Place(on_devices(layout, tmp_path, workers.cluster, without=asked), input_fn)

    create, calls = ResumingSessionCreator.create_session, []

    def lose_and_create(self):
        calls.append(self)
        if len(calls) == 2:
            lose(how, 2)
        return create(self)

    hooks = [ActionHook({5: lambda: lose(KILL)})]
    if when == "made":
        monkeypatch.setattr(ResumingSessionCreator, "create_session", lose_and_create)
    else:
        hooks.insert(0, LoseAtFirst(lambda: lose(how, 2), workers.cluster.devices[2]))
    train(on_devices("batch", tmp_path, workers.cluster), Elastic(without=without), *hooks)
    assert asked == {1: workers.addresses[1], 2: workers.addresses[2]}


def test_a_worker_that_is_not_in_use_may_replace_a_lost_one():
    unused = [1]
    elastic = Elastic(without=lambda lost: None, unused=lambda: unused[0])
    assert elastic.may_leave({1}, {1})
    unused[0] = 0
    assert not elastic.may_leave({1}, {1})


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize("min_workers", [1, 2])
def test_a_training_that_waits_continues_with_another_worker(
    min_workers, workers, lose, impatient, tmp_path, monkeypatch
):
    """Too few workers are left, or no layout fits them; and then one comes that was not in use."""
    monkeypatch.setattr("mtf_hetero.training.elastic._LOOK_SECONDS", 0.2)
    asked, is_lost = [], threading.Event()
    trained, other = (on_devices("two", tmp_path, workers.cluster, without=[unused]) for unused in (2, 1))
    elastic = Elastic(
        without=asked.append,
        within=lambda: (Place(other, input_fn), "worker 2 joined") if is_lost.is_set() else None,
        min_workers=min_workers,
    )
    train(trained, elastic, ActionHook({5: lambda: (lose(STOP), is_lost.set())}))
    assert len(asked) == (min_workers == 1)


@losing_workers
@pytest.mark.full
def test_a_training_waits_on_if_no_layout_fits_what_is_left(workers, lose, tmp_path, monkeypatch):
    def without(lost):
        threading.Thread(target=workers.restart, args=[1]).start()
        raise ValueError("it is too large")

    lines = log_lines(monkeypatch)
    trained = on_devices("two", tmp_path, workers.cluster, without=[2])
    train(trained, Elastic(without=without), ActionHook({5: lambda: lose(KILL)}))
    assert f"training waits on for worker 1 ({workers.addresses[1]}): it is too large" in lines


@losing_workers
@pytest.mark.full
def test_a_training_that_cannot_continue_ends_after_the_wait(workers, lose, tmp_path):
    trained = on_devices("two", tmp_path, workers.cluster, without=[2], wait_for_workers=0.5)
    with pytest.raises(UnreachableWorkerError, match=r"^worker 1 \(.*\): ") as error:
        trained.train(input_fn, [ActionHook({5: lambda: lose(KILL)})], max_steps=6)
    assert error.value.workers == {1: workers.addresses[1]}
