"""A training that continues elsewhere in mid-run: its losses are those of one that stayed where it was."""

import dataclasses
import functools
import itertools
import math
import os
import signal
import tempfile
import threading
from typing import ClassVar

import numpy as np
import pytest
from estimator_oracle import await_wanted, line_model, log_lines
from tiers import losing_workers, parametrize

import mtf_hetero.layers
from mtf_hetero import Estimator, EstimatorSpec, Layout, Lowering, RunConfig, UnevenMeshImpl, mtf, tf
from mtf_hetero._support import threads
from mtf_hetero.checkpoint import saver as saver_lib
from mtf_hetero.cluster import UnreachableWorkerError, claim
from mtf_hetero.estimator import Elastic, Place, training
from mtf_hetero.estimator.elastic import CHECKPOINT, MEMORY
from mtf_hetero.estimator.hooks import SaverHook, read_global_step
from mtf_hetero.estimator.resume import ResumingSessionCreator
from mtf_hetero.estimator.summaries import LOSS_COLLECTION_KEY
from mtf_hetero.estimator.warm import WarmSession

BATCH, INPUTS, HIDDEN, OUTPUTS = (
    mtf.Dimension(name, size) for name, size in [("batch", 7), ("inputs", 5), ("hidden", 11), ("outputs", 3)]
)
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((63, INPUTS.size)), RNG.standard_normal((63, OUTPUTS.size))
LAYOUTS = {
    "batch": Layout("all:3", "batch:all", {"all": [4, 2, 1]}),
    "filters": Layout("all:2", "hidden:all", {"all": [3, 1]}),
    "one": Layout("all:1", ""),
    "both": Layout("rows:2;cols:2", "batch:rows;hidden:cols", {"rows": [2, 1], "cols": [1, 3]}),
}


class Adam(mtf.optimize.Optimizer):
    """mtf's own casts to float32."""

    def apply_grad(self, grad, var):
        dtype = mtf.VariableDType(tf.float64)
        mean, square = (
            mtf.get_variable(
                var.mesh,
                f"{var.name}/{name}",
                var.shape,
                dtype=dtype,
                trainable=False,
                initializer=tf.zeros_initializer(),
            )
            for name in ("mean", "square")
        )
        assert grad is not None
        next_mean, next_square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * mtf.square(grad)
        value = var.value - 0.01 * next_mean / (mtf.sqrt(next_square) + 1e-3)
        return [mtf.assign(var, value), mtf.assign(mean, next_mean), mtf.assign(square, next_square)]


OPTIMIZERS = {"momentum": lambda: mtf.optimize.MomentumOptimizer(0.05, 0.9), "adam": Adam}


def input_fn():
    """Batches in an order of their own, read once and dropped: each is another one."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(63, seed=3)
    return data.batch(BATCH.size, drop_remainder=True).repeat()


def model_fn(features, labels, mode, params):
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    dtype = mtf.VariableDType(tf.float64)
    x = mtf.import_tf_tensor(mesh, features, mtf.Shape([BATCH, INPUTS]))
    h = mtf.layers.dense(x, HIDDEN, reduced_dims=[INPUTS], activation=mtf.tanh, variable_dtype=dtype, name="first")
    h = mtf_hetero.layers.batch_norm(h, training=True, name="norm")
    h = mtf.dropout(h, is_training=True, keep_prob=0.7, name="drop")
    y = mtf.layers.dense(h, OUTPUTS, reduced_dims=[HIDDEN], variable_dtype=dtype, name="second")
    targets = mtf.import_tf_tensor(mesh, labels, mtf.Shape([BATCH, OUTPUTS]))
    loss = mtf.reduce_mean(mtf.square(y - targets))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = OPTIMIZERS[params["optimizer"]]().apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(graph)
    devices = params.get("devices") or [f"cpu:{number}" for number in range(params["layout"].size)]
    lowering = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(params["layout"], devices)})
    with tf.control_dependencies([lowering.lowered_operation(op) for op in updates]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    return EstimatorSpec(mode, loss=lowering.export_to_tf_tensor(loss), train_op=train_op)


def estimator(layout, directory, optimizer="momentum", **config):
    session_config = tf.ConfigProto(device_count={"CPU": LAYOUTS[layout].size})
    params = {"layout": LAYOUTS[layout], "optimizer": optimizer}
    return Estimator(model_fn, str(directory), RunConfig(session_config=session_config, **config), params)


class Losses(tf.train.SessionRunHook):
    """Notes the loss of each step, and moves the training after some steps."""

    def __init__(self, elastic=None, moves=None):
        self.elastic, self.moves, self.losses = elastic, moves or {}, {}

    def begin(self):
        self.fetched = tf.get_collection(LOSS_COLLECTION_KEY)[-1], read_global_step()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.fetched)

    def after_run(self, run_context, run_values):
        loss, step = run_values.results
        self.losses[int(step)] = float(loss)
        if int(step) + 1 in self.moves:
            self.elastic.move(Place(self.moves[int(step) + 1], input_fn), f"after step {step}")


@functools.cache
def undisturbed(optimizer):
    """The losses and the last values of six steps on one device."""
    with tempfile.TemporaryDirectory() as directory:
        hook, trained = Losses(), estimator("one", directory, optimizer)
        trained.train(input_fn, [hook], max_steps=6)
        return hook.losses, values(trained)


def values(trained):
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


def check(trained, hook, optimizer):
    losses, last = undisturbed(optimizer)
    assert sorted(hook.losses) == sorted(losses)
    for step, loss in losses.items():
        assert hook.losses[step] == pytest.approx(loss, rel=1e-12), f"step {step}"
    assert set(values(trained)) == set(last)
    for name, value in values(trained).items():
        np.testing.assert_allclose(value, last[name], rtol=1e-12, atol=1e-12, err_msg=name)


MOVES = [*itertools.permutations(["batch", "filters", "one"]), ("both", "batch", "both")]


@parametrize(
    ("layouts", "optimizer"),
    list(itertools.product(MOVES, OPTIMIZERS)),
    first=[(MOVES[0], "adam"), (MOVES[3], "momentum")],
)
def test_a_training_that_moves_has_the_losses_of_one_that_stays(layouts, optimizer, tmp_path):
    first, second, third = (estimator(layout, tmp_path, optimizer) for layout in layouts)
    events = []
    elastic = Elastic(report=events.append)
    hook = Losses(elastic, {2: second, 4: third})
    first.train(input_fn, [hook], max_steps=6, elastic=elastic)
    check(first, hook, optimizer)
    found = [(event.step, event.why, event.source, event.repeated_steps) for event in events]
    assert found == [(2, "after step 1", MEMORY, 0), (4, "after step 3", MEMORY, 0)]
    assert all(event.seconds > 0 for event in events)


@pytest.mark.parametrize(("grows", "memory"), [(False, math.inf), (True, math.inf), (True, 0.0)])
def test_a_step_that_was_built_in_a_thread_is_used_once(grows, memory, tmp_path, monkeypatch):
    """Without memory for the state, in another session, which restores a checkpoint."""
    monkeypatch.setattr(saver_lib, "free_bytes", lambda: memory)
    first, second, elastic = estimator("batch", tmp_path), estimator("filters", tmp_path), Elastic()
    built, taken, take = [], [], WarmSession.take
    monkeypatch.setattr(WarmSession, "take", lambda warm: taken.append(take(warm)) or taken[-1])

    def counted(features, labels, mode, params):
        built.append(mode)
        return model_fn(features, labels, mode, params)

    monkeypatch.setattr(second, "_model_fn", counted)

    class Preparing(Losses):
        def begin(self):
            super().begin()
            if grows:  # the graph of a session that is there already
                self.count = tf.Variable(3, collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True)
                self.summary = tf.summary.scalar("count", self.count)

        def after_create_session(self, session, coord):
            super().after_create_session(session, coord)
            if grows:
                assert session.run(self.count) == 3

        def after_run(self, run_context, run_values):
            if int(run_values.results[1]) == 1:
                threads.begin(lambda: second.prepare(input_fn, elastic), "preparing").result()
                assert len(built) == 1
            super().after_run(run_context, run_values)
            if grows:
                (summary,) = tf.get_collection("summary_op")
                assert any(added is self.summary for added in summary.op.inputs)

    hook = Preparing(elastic, {2: second, 3: first, 4: second})
    first.train(input_fn, [hook], max_steps=6, elastic=elastic)
    assert len(built) == 2  # in advance, and when it arrives again
    assert len(taken) == 1
    check(first, hook, "momentum")


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
    monkeypatch.setattr("mtf_hetero.estimator.elastic._LOOK_SECONDS", 0.01)
    looked = threading.Event()
    elastic = Elastic(within=looked.set, report=lambda event: None)
    elastic.move(Place(None, input_fn), "worker b:2 joined")
    elastic.begin_move("a state")
    with elastic.looking():
        assert not looked.wait(0.3)
        elastic.end_step(0)
        assert looked.wait(20)


def test_a_training_that_lacks_memory_moves_through_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(saver_lib, "free_bytes", lambda: 0.0)
    first, second, events = estimator("batch", tmp_path), estimator("filters", tmp_path), []
    elastic = Elastic(report=events.append)
    hook = Losses(elastic, {3: second})
    first.train(input_fn, [hook], max_steps=6, elastic=elastic)
    check(first, hook, "momentum")
    assert [(event.step, event.source) for event in events] == [(3, CHECKPOINT)]


def test_a_worker_may_be_lost_while_the_state_is_copied(tmp_path, monkeypatch):
    """The session begins anew, and that one is copied."""
    copied, count = training.copied, itertools.count()

    def lost_at_first(saver, session):
        if not next(count):
            raise tf.errors.UnavailableError(None, None, "worker 1 was lost")
        return copied(saver, session)

    monkeypatch.setattr(training, "copied", lost_at_first)
    first, elastic = estimator("batch", tmp_path, save_checkpoints_steps=1), Elastic()
    hook = Losses(elastic, {4: estimator("filters", tmp_path)})
    first.train(input_fn, [hook], max_steps=6, elastic=elastic)
    assert next(count) == 2
    check(first, hook, "momentum")


def test_a_training_that_is_resumed_has_the_losses_of_one_that_never_stopped(tmp_path):
    """Random numbers too: those of a step follow from the seed and the step."""
    hook = Losses()
    estimator("batch", tmp_path).train(follow_step, [hook], max_steps=3)
    trained = estimator("filters", tmp_path).train(follow_step, [hook], max_steps=6)
    check(trained, hook, "momentum")


def follow_step():
    """Batches from that of the global step on, which are not skipped once more."""
    return input_fn().skip(tf.cast(tf.train.get_global_step().read_value(), tf.int64))


def test_data_that_follow_the_global_step_move_too(tmp_path):
    first, second, elastic = estimator("batch", tmp_path), estimator("one", tmp_path), Elastic()
    hook = Losses(elastic)
    hook.moves = {3: second}
    first.train(follow_step, [hook], max_steps=6, elastic=elastic)
    check(first, hook, "momentum")


def test_listeners_and_a_saver_of_the_users_move_too(tmp_path):
    class Listener(tf.train.CheckpointSaverListener):
        steps: ClassVar[list] = []

        def after_save(self, session, global_step_value):
            self.steps.append(int(global_step_value))

    elastic = Elastic()
    hooks = [
        Losses(elastic, {3: estimator("filters", tmp_path)}),
        tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2),
    ]
    estimator("batch", tmp_path).train(input_fn, hooks, max_steps=6, saving_listeners=[Listener()], elastic=elastic)
    assert Listener.steps == [0, 2, 3, 5, 6]


def test_a_variable_of_a_hook_is_saved_and_moves_too(tmp_path):
    class Counting(tf.train.SessionRunHook):
        """Counts the steps in a variable that the graph gets once it has been prepared."""

        def begin(self):
            self.count = tf.get_variable("hook_steps", [], tf.int64, tf.zeros_initializer())
            self.add = self.count.assign_add(1)

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.add)

    elastic = Elastic()
    hooks = [Losses(elastic, {2: estimator("filters", tmp_path)}), Counting()]
    first = estimator("batch", tmp_path).train(input_fn, hooks, max_steps=6, elastic=elastic)
    assert first.get_variable_value("hook_steps") == 6
    names = {name for name, _ in tf.train.list_variables(tf.train.latest_checkpoint(tmp_path))}
    assert names == {*undisturbed("momentum")[1], "hook_steps"}


@pytest.mark.parametrize(("save_steps", "saved"), [(5, [0, 5, 6]), (1000, [0, 6])])
def test_a_move_through_memory_saves_nothing_more(save_steps, saved, tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(SaverHook, "_save", lambda self, session, step: steps.append(int(step)))
    elastic = Elastic()
    hook = Losses(elastic, {2: estimator("filters", tmp_path), 4: estimator("one", tmp_path)})
    first = estimator("batch", tmp_path, save_checkpoints_steps=save_steps)
    for place in hook.moves.values():
        place._config = first._config
    first.train(input_fn, [hook], max_steps=6, elastic=elastic)
    assert steps == saved


def test_a_model_with_other_variables_is_refused(tmp_path):
    other = Estimator(lambda features, labels, mode: line_model(X[:, 0], X[:, 1], mode, {}), str(tmp_path))
    elastic = Elastic()
    hook = Losses(elastic, {2: other})
    with pytest.raises(ValueError, match="the state of the training has no variable 'w'; continue with the model that"):
        estimator("batch", tmp_path).train(input_fn, [hook], max_steps=6, elastic=elastic)


def test_min_workers_is_a_positive_number():
    with pytest.raises(ValueError, match="Elastic: min_workers is 0; it must be a positive whole number"):
        Elastic(min_workers=0)


# Lost workers


LOST = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def on_devices(layout, directory, cluster, **config):
    """An Estimator on some devices of workers."""
    run_config = RunConfig(
        workers=cluster.workers_in_use,
        master=cluster.target,
        session_config=cluster.session_config(),
        save_checkpoints_steps=2,
        **config,
    )
    params = {"layout": LAYOUTS[layout], "optimizer": "momentum", "devices": cluster.devices}
    return Estimator(model_fn, str(directory), run_config, params)


class Lose(tf.train.SessionRunHook):
    """Loses a worker before a step, once."""

    def __init__(self, lose, at):
        self.lose, self.at = lose, at

    def begin(self):
        self.step = read_global_step()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.step)

    def after_run(self, run_context, run_values):
        if self.lose and int(run_values.results) + 1 == self.at:
            lose, self.lose = self.lose, None
            lose()


@pytest.fixture
def lose(workers):
    """Loses worker 1 in one of the ways, and has it back in the end."""
    yield lambda how: os.kill(workers.pids[1], LOST[how])
    workers.restart(1)


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "how", "source"),
    [
        ("batch", "killed", MEMORY),
        ("filters", "stopped", MEMORY),
        ("filters", "killed", CHECKPOINT),
        ("batch", "stopped", CHECKPOINT),
    ],
)
def test_a_training_continues_without_a_lost_worker(
    layout, how, source, workers, lose, impatient, tmp_path, monkeypatch
):
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", {CHECKPOINT: 1e-9, MEMORY: 1e9}[source])
    devices = {"batch": workers.cluster.devices, "filters": workers.cluster.devices[:2]}[layout]
    cluster = dataclasses.replace(workers.cluster, devices=devices)
    left = dataclasses.replace(cluster, devices=tuple(device for device in devices if "task:1" not in device))
    asked, events = [], []

    def without(lost):
        asked.append(lost)
        return Place(on_devices("filters" if layout == "batch" else "one", tmp_path, left), input_fn)

    hook, elastic = Losses(), Elastic(without=without, report=events.append)
    trained = on_devices(layout, tmp_path, cluster, wait_for_workers=1)
    hooks = [hook, Lose(lambda: lose(how), 5)]
    trained.train(input_fn, hooks, max_steps=6, elastic=elastic)
    check(trained, hook, "momentum")
    assert asked == [{1: workers.addresses[1]}]
    if layout == "batch":  # the devices that are left have all variables
        source = MEMORY
    step, again = {CHECKPOINT: (4, 1), MEMORY: (5, 0)}[source]
    assert [(event.step, event.source, event.repeated_steps) for event in events] == [(step, source, again)]
    assert events[0].why == f"worker 1 ({workers.addresses[1]}) was lost"
    assert 1 <= events[0].seconds < 60


@losing_workers
@pytest.mark.full
def test_a_lost_worker_that_answers_again_is_taken_in(workers, lose, tmp_path, monkeypatch):
    monkeypatch.setattr("mtf_hetero.estimator.elastic._LOOK_SECONDS", 0.2)
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e9)
    cluster, lost, events, hook = workers.cluster, {}, [], Losses()
    left = dataclasses.replace(cluster, devices=tuple(device for device in cluster.devices if "task:1" not in device))
    first = on_devices("batch", tmp_path, cluster, wait_for_workers=1)

    def without(gone):
        return Place(on_devices("filters", tmp_path, left, wait_for_workers=1), input_fn, lambda: lost.update(gone))

    def within():
        return (Place(first, input_fn, lost.clear), "it is back") if claim.find_free(lost) else None

    def restart():
        assert claim.find_free(lost) == {}
        workers.restart(1)
        await_wanted(elastic)

    elastic = Elastic(without=without, within=within, report=events.append)
    hooks = [hook, Lose(lambda: lose("killed"), 2), Lose(restart, 4)]
    with claim.WorkerClaim(cluster.workers_in_use):
        first.train(input_fn, hooks, max_steps=6, elastic=elastic)
    check(first, hook, "momentum")
    assert [(event.step, event.source, event.repeated_steps) for event in events] == [(2, MEMORY, 0), (4, MEMORY, 0)]
    assert events[1].why == "it is back"


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
@pytest.mark.parametrize(("when", "how"), [("made", "killed"), ("new", "stopped")])
def test_a_worker_may_be_lost_while_a_session_begins(when, how, workers, lose, impatient, tmp_path, monkeypatch):
    devices, asked, hook = workers.cluster.devices, {}, Losses()

    def lose_another():
        os.kill(workers.pids[2], LOST[how])

    def without(lost):
        asked.update(lost)
        left = [device for device in devices if not any(f"task:{index}" in device for index in asked)]
        cluster = dataclasses.replace(workers.cluster, devices=tuple(left))
        place = on_devices({2: "filters", 1: "one"}[len(left)], tmp_path, cluster, wait_for_workers=1)
        return Place(place, input_fn)

    create, calls = ResumingSessionCreator.create_session, []

    def lose_and_create(self):
        calls.append(self)
        if len(calls) == 2:
            lose_another()
        return create(self)

    hooks = [hook, Lose(lambda: lose("killed"), 5)]
    if when == "made":
        monkeypatch.setattr(ResumingSessionCreator, "create_session", lose_and_create)
    else:
        hooks.insert(0, LoseAtFirst(lose_another, devices[2]))
    trained = on_devices("batch", tmp_path, workers.cluster, wait_for_workers=1)
    try:
        trained.train(input_fn, hooks, max_steps=6, elastic=Elastic(without=without))
    finally:
        workers.restart(2)
    check(trained, hook, "momentum")
    assert asked == {1: workers.addresses[1], 2: workers.addresses[2]}


def test_a_worker_that_is_not_in_use_may_replace_a_lost_one():
    unused = [1]
    elastic = Elastic(without=lambda lost: None, unused=lambda: unused[0])
    assert elastic.may_leave({1}, {1})
    unused[0] = 0
    assert not elastic.may_leave({1}, {1})


@losing_workers
@pytest.mark.full
def test_a_training_waits_on_if_too_few_workers_are_left(workers, lose, tmp_path):
    cluster = dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])
    asked, hook = [], Losses()
    hooks = [hook, Lose(lambda: (lose("killed"), threading.Timer(8, workers.restart, [1]).start()), 5)]
    trained = on_devices("filters", tmp_path, cluster, wait_for_workers=1)
    trained.train(input_fn, hooks, max_steps=6, elastic=Elastic(without=asked.append, min_workers=2))
    check(trained, hook, "momentum")
    assert asked == []


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize("min_workers", [1, 2])
def test_a_training_that_waits_continues_with_another_worker(min_workers, workers, lose, tmp_path):
    """Too few workers are left, or no layout fits them; and then one comes that was not in use."""
    first, second, third = workers.cluster.devices
    clusters = [dataclasses.replace(workers.cluster, devices=devices) for devices in ((first, second), (first, third))]
    asked, is_lost, hook = [], threading.Event(), Losses()
    hooks = [hook, Lose(lambda: (lose("stopped"), is_lost.set()), 5)]
    trained, other = (on_devices("filters", tmp_path, cluster, wait_for_workers=1) for cluster in clusters)
    elastic = Elastic(
        without=asked.append,
        within=lambda: (Place(other, input_fn), "worker 2 joined") if is_lost.is_set() else None,
        min_workers=min_workers,
    )
    trained.train(input_fn, hooks, max_steps=6, elastic=elastic)
    check(trained, hook, "momentum")
    assert len(asked) == (min_workers == 1)


@losing_workers
@pytest.mark.full
def test_a_training_waits_on_if_no_layout_fits_what_is_left(workers, lose, tmp_path, monkeypatch):
    def without(lost):
        threading.Timer(5, workers.restart, [1]).start()
        raise ValueError("it is too large")

    lines = log_lines(monkeypatch)
    cluster = dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])
    hook = Losses()
    trained = on_devices("filters", tmp_path, cluster, wait_for_workers=1)
    hooks = [hook, Lose(lambda: lose("killed"), 5)]
    trained.train(input_fn, hooks, max_steps=6, elastic=Elastic(without=without))
    check(trained, hook, "momentum")
    assert f"training waits on for worker 1 ({workers.addresses[1]}): it is too large" in lines


@losing_workers
@pytest.mark.full
def test_a_training_that_cannot_continue_ends_after_the_wait(workers, lose, tmp_path):
    cluster = dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])
    trained = on_devices("filters", tmp_path, cluster, wait_for_workers=0.5)
    with pytest.raises(UnreachableWorkerError, match=r"^worker 1 \(.*\): ") as error:
        trained.train(input_fn, [Lose(lambda: lose("killed"), 5)], max_steps=6)
    assert error.value.workers == {1: workers.addresses[1]}
