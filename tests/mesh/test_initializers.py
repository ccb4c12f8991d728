"""Initializers in every combination that programs have: replicas are what they are replicas of."""

import functools

import numpy as np
import pytest
from held import SHAPES, Held
from oracle import cpu_mesh_impl
from tiers import on_workers, parametrize

import mtf_hetero
from mtf_hetero import Layout, tf

LAYOUTS = {
    "one": Layout("x:1", ""),
    "replicated": Layout("x:3", ""),
    "partly": Layout("x:3;y:2", "f:x", {"x": [5, 2, 1]}),
    "split": Layout("x:3", "f:x", {"x": [70, 25, 5]}),  # but for the scalar
    "empty": Layout("x:3;y:2", "f:x", sizes={"f": [0, 9, 2]}),
}


def one_after_another(*names):
    return lambda program, session: [session.run(getattr(program, name)) for name in names]


WAYS = {
    "grouped": lambda p, s: s.run(tf.group(p.initialize, p.local)),
    "in one run": lambda p, s: s.run([p.initialize, p.local]),
    "in one run, copied": lambda p, s: s.run([p.copy, p.initialize]),
    "in one run, all": lambda p, s: s.run([p.copy, p.local, p.initialize]),
    "global, local": one_after_another("initialize", "local"),
    "local, global": one_after_another("local", "initialize"),
    "global, copied": one_after_another("initialize", "copy"),
    "global alone": one_after_another("initialize"),
    "of a list": lambda p, s: s.run(tf.variables_initializer(tf.global_variables())),
    "each alone": lambda p, s: [s.run(v.initializer) for v in tf.global_variables()],
    "each master": lambda p, s: [s.run(v.get_master().initializer) for v in p.variables],
    "each replica after it": lambda p, s: [s.run(v.initializer) for v in tf.global_variables() + tf.local_variables()],
}


def session_config(layout):
    return tf.ConfigProto(device_count={"CPU": layout.size}, inter_op_parallelism_threads=4)


def check_twice(way, program, session):
    """The second time, as the first: new values, the same ones everywhere."""
    way(program, session)
    first = program.values(session)
    way(program, session)
    second = program.values(session)
    assert all((first[name] != value).all() for name, value in second.items())
    assert session.run(tf.report_uninitialized_variables()).size == 0


@parametrize("layout", LAYOUTS, first=["partly"])
def test_every_combination_of_initializers(layout):
    layout = LAYOUTS[layout]
    for name, way in WAYS.items():
        with tf.Graph().as_default(), tf.Session(config=session_config(layout)) as session:
            program = Held(cpu_mesh_impl(layout))
            try:
                check_twice(way, program, session)
            except Exception as error:
                error.add_note(f"initialized {name}")
                raise


@pytest.mark.full
def test_initializers_in_one_run_many_times():
    """TensorFlow runs what is in one call in any order; each processor has its slice of the same new values."""
    layout = LAYOUTS["partly"]
    with tf.Graph().as_default(), tf.Session(config=session_config(layout)) as session:
        program = Held(cpu_mesh_impl(layout))
        before = dict.fromkeys(SHAPES, np.nan)
        for _ in range(30):
            session.run(tf.group(program.local, program.initialize))
            values = program.values(session)
            assert all(np.all(before[name] != value) for name, value in values.items())
            before = values


def test_what_depends_on_initializers_is_run():
    """Nothing is skipped with the copies of a variable that has no value yet."""
    layout = LAYOUTS["replicated"]
    with tf.Graph().as_default(), tf.Session(config=session_config(layout)) as session:
        program = Held(cpu_mesh_impl(layout))
        with tf.control_dependencies([program.local]):
            after_local = tf.constant(1) + 1
        with tf.control_dependencies([tf.group(program.initialize, program.local)]):
            after_both = tf.constant(2) + 1
        assert session.run(after_local) == 2
        names = set(session.run(tf.report_uninitialized_variables()).tolist())
        assert {b"w/processor_0", b"w/processor_1", b"w/processor_2"} <= names
        assert session.run(after_both) == 3
        program.values(session)


def values_in(program, step_context):
    return program.values(step_context.session)


SCAFFOLDS = {
    "grouped": lambda p: tf.train.Scaffold(init_op=tf.group(p.initialize, p.local)),
    "copied with tables": lambda p: tf.train.Scaffold(
        local_init_op=tf.group(p.local, tf.tables_initializer(), p.copy),
    ),
    "copied": lambda p: tf.train.Scaffold(init_op=p.initialize, local_init_op=p.copy),
    "half of it loaded": lambda p: tf.train.Scaffold(
        init_fn=lambda _, session: [v.load(v.eval(session), session) for v in tf.global_variables()[::2]],
    ),
    "none": lambda _: None,
}


@parametrize("name", SCAFFOLDS, first=["copied", "half of it loaded", "none"])
def test_monitored_sessions_with_scaffolds(name, tmp_path):
    layout = LAYOUTS["replicated"]
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        program = Held(cpu_mesh_impl(layout))
        scaffold, values = SCAFFOLDS[name](program), []
        for _ in range(2):  # the second restores what the first saved
            with tf.train.MonitoredTrainingSession(
                scaffold=scaffold,
                checkpoint_dir=str(tmp_path),
                config=session_config(layout),
                save_checkpoint_steps=1,
                log_step_count_steps=None,
            ) as session:
                values.append(session.run_step_fn(functools.partial(values_in, program)))
    for name, value in values[0].items():
        np.testing.assert_array_equal(values[1][name], value)


@pytest.mark.parametrize("layout", ["one", "replicated", "partly"])
def test_variables_that_are_loaded(layout):
    """tf.Variable.load sets the replicas too; what a Saver restores, the local initializer brings to them."""
    layout = LAYOUTS[layout]
    with tf.Graph().as_default(), tf.Session(config=session_config(layout)) as session:
        program = Held(cpu_mesh_impl(layout))
        session.run(program.initialize)
        for variable in tf.global_variables():
            variable.load(np.full(variable.shape.as_list(), 3.0, np.float32), session)
        assert all((value == 3.0).all() for value in program.values(session).values())


@pytest.mark.parametrize("last", ["local", "copy"])
def test_replicas_follow_a_restore_in_the_same_session(last, tmp_path):
    layout = LAYOUTS["partly"]
    with tf.Graph().as_default(), tf.Session(config=session_config(layout)) as session:
        program, saver = Held(cpu_mesh_impl(layout)), tf.train.Saver()
        session.run(program.initialize)
        expected, path = program.values(session), saver.save(session, str(tmp_path / "model"))
        session.run(program.initialize)
        saver.restore(session, path)
        session.run(getattr(program, last))
        for name, value in program.values(session).items():
            np.testing.assert_array_equal(value, expected[name])


@on_workers
@parametrize("name", ["grouped", "in one run, all"], first=["grouped"])
def test_initializers_on_workers(name, workers):
    devices = workers.cluster.devices
    layout = Layout(f"x:{len(devices)}", "")
    with tf.Graph().as_default():
        program = Held(mtf_hetero.UnevenMeshImpl.from_layout(layout, devices))
        with tf.Session(workers.cluster.target, config=workers.cluster.session_config()) as session:
            check_twice(WAYS[name], program, session)
