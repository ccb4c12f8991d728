"""The Saver of slices: its checkpoints are TensorFlow's, and nobody holds two slices of one variable to make them."""

import itertools
import os
import pathlib

import numpy as np
import pytest
from estimator_oracle import log_lines
from regression import LAYOUTS, Program, ancestors, make_session, saver_names
from savers import SAVERS, assert_equal, read
from tiers import on_workers
from uneven_estimator import estimator, input_fn

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.checkpoint import Saver, SliceSaverBuilder, WriteError, find, save_once
from mtf_hetero.cost import trace


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of every Saver after three training steps of one program, and its values."""
    directory = tmp_path_factory.mktemp("checkpoints")
    layout = LAYOUTS["three"]
    with tf.Graph().as_default(), make_session(layout) as session:
        program = Program(layout, mtf.optimize.AdamWeightDecayOptimizer(0.01))
        tf.train.get_or_create_global_step()
        program.initialize(session)
        for _ in range(3):
            session.run(program.train)
        paths = {name: make().save(session, str(directory / name)) for name, make in SAVERS.items()}
        return paths, session.run(program.values)


@pytest.mark.xdist_group("savers")  # one training
@pytest.mark.parametrize("name", SAVERS)
def test_a_checkpoint_is_what_a_plain_saver_writes(checkpoints, name):
    paths, values = checkpoints
    found = read(paths[name])
    assert_equal(found, read(paths["plain"]))
    assert found.pop("global_step") == 0
    assert_equal(found, values)
    assert not list(pathlib.Path(paths[name]).parent.glob("*_temp*"))


def saved_names(op):
    return [str(name, "utf-8") for name in tf.get_static_value(op.inputs[1])]


def reading_op(x):
    """The operation that reads the variable that is saved."""
    while x.op.type == "Identity":
        x = x.op.inputs[0]
    assert x.op.type == "ReadVariableOp"
    return x.op


@pytest.mark.parametrize(("layout", "group_bytes"), [("six", 1), ("three", 100), ("three", 2**24)])
def test_no_operation_takes_two_slices_of_a_variable(layout, group_bytes):
    layout = LAYOUTS[layout]
    with tf.Graph().as_default() as graph:
        Program(layout, mtf.optimize.AdamWeightDecayOptimizer(0.01))
        saver = tf.train.Saver(builder=SliceSaverBuilder(group_bytes))
        save, restore = (graph.get_operation_by_name(name.split(":")[0]) for name in saver_names(saver))
        for end, kind in ((save, "SaveV2"), (restore, "RestoreV2")):
            ops = sorted((op for op in ancestors(end) if op.type == kind), key=lambda op: len(ancestors(op)))
            names = [saved_names(op) for op in ops]
            assert all(len(set(taken)) == len(taken) for taken in names)
            assert sorted(name for taken in names for name in taken) == sorted(
                v._save_slice_info.full_name for v in tf.global_variables()
            )
            assert group_bytes > 1 or len(ops) == len(tf.global_variables())
            for before, after in itertools.pairwise(ops):  # a group, and the reading of it, waits for the one before
                assert before in ancestors(after)
                if kind == "SaveV2":
                    assert all(before in ancestors(reading_op(x)) for x in after.inputs[3:])
            if kind == "SaveV2":
                sizes = [sum(x.shape.num_elements() * x.dtype.size for x in op.inputs[3:]) for op in ops]
                assert all(size <= group_bytes or len(saved_names(op)) == 1 for size, op in zip(sizes, ops))


def test_a_save_that_is_cut_short_leaves_the_last_checkpoint(tmp_path):
    layout = LAYOUTS["three"]
    with tf.Graph().as_default() as graph:
        program = Program(layout, mtf.optimize.SgdOptimizer(0.01))
        saver = SAVERS["slices"]()
        with make_session(layout) as session:
            program.initialize(session)
            first = saver.save(session, str(tmp_path / "model"), global_step=1)
            expected = session.run(program.values)
            session.run(program.train)
            write = [op for op in graph.get_operations() if op.type == "SaveV2"][1]
            session.run(write, {saver.saver_def.filename_tensor_name: str(tmp_path / "model-2")})
        assert tf.train.latest_checkpoint(str(tmp_path)) == first
        assert not tf.train.checkpoint_exists(str(tmp_path / "model-2"))
        assert (tmp_path / "model-2_temp").is_dir()
        with make_session(layout) as session:
            saver.restore(session, first)
            session.run(program.restored)
            assert_equal(session.run(program.values), expected)
            second = saver.save(session, str(tmp_path / "model"), global_step=2)
        assert_equal(read(second), expected)
        assert not (tmp_path / "model-2_temp").exists()


def _saver_after_save_once():
    saver = tf.train.Saver(max_to_keep=2)
    save_once(saver)
    save_once(saver)
    return saver


@pytest.mark.parametrize("make", [lambda: Saver(max_to_keep=2), _saver_after_save_once])
def test_a_checkpoint_is_written_once(tmp_path, monkeypatch, make):
    lines = log_lines(monkeypatch)
    path = str(tmp_path / "model")
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", initializer=0)
        step = tf.get_variable("step", initializer=3)
        saver, other = make(), Saver()
        session.run(tf.global_variables_initializer())
        first = saver.save(session, path, global_step=step)
        session.run(v.assign(1))
        assert saver.save(session, path, global_step=3) == first == f"{path}-3"
        assert read(first)["v"] == 0 and not lines
        other.save(session, path, global_step=3, write_meta_graph=False, write_state=False)
        assert read(first)["v"] == 1 and not os.path.exists(f"{path}-3.meta")
        assert lines == [f"{path}-3 already existed; it was moved to {tmp_path}/set_aside/model-3"]
        assert read(str(tmp_path / "set_aside" / "model-3" / "model-3"))["v"] == 0
        for value in range(2, 5):  # without a step, the name alone says which one is meant
            session.run(v.assign(value))
            assert saver.save(session, path) == path and read(path)["v"] == value
            saver.save(session, path, global_step=value * 10)
        assert saver.last_checkpoints == [path, f"{path}-40"]
        assert {file.stem for file in tmp_path.glob("*.index")} == {"model", "model-40"}
        assert tf.train.latest_checkpoint(str(tmp_path)) == f"{path}-40"
        with pytest.raises(WriteError, match=f"^cannot save {tmp_path}/none/model: No such file or directory$"):
            saver.save(session, str(tmp_path / "none" / "model"))


@pytest.mark.full
def test_the_estimator_saves_so_where_memory_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr("mtf_hetero.checkpoint.saver.free_bytes", lambda: 0.0)
    monkeypatch.setattr(SliceSaverBuilder.__init__, "__defaults__", (64,))

    class Look(tf.train.SessionRunHook):
        def begin(self):
            (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
            assert isinstance(saver._builder, SliceSaverBuilder)

    trained = estimator("three", tmp_path).train(input_fn, max_steps=2, hooks=[Look()])
    assert len(list(tmp_path.glob("model.ckpt-2.data-*"))) > 3
    assert trained.get_variable_value("first/kernel").shape == (5, 11)
    estimator("four", tmp_path).train(input_fn, max_steps=3)
    sorted(tmp_path.glob("model.ckpt-3.data-*"))[-1].unlink()
    assert find(str(tmp_path)).path == f"{tmp_path}/model.ckpt-2"


@on_workers
def test_workers_send_their_slices_to_the_chief_which_alone_writes(tmp_path, workers):
    layout, cluster = Layout("x:3", "f:x", {"x": [2, 1, 1]}), workers.cluster
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        shape = mtf.Shape([mtf.Dimension("c", 7), mtf.Dimension("f", 11)])
        mtf.get_variable(mesh, "w", shape, initializer=tf.random_normal_initializer())
        (w,) = graph.all_variables
        mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, cluster.devices)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        value = lowering.export_to_tf_tensor(w.outputs[0])
        zero = tf.group([tf.assign(v, tf.zeros_like(v)) for v in tf.global_variables()])
        saver = tf.train.Saver(builder=SliceSaverBuilder())
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            session.run(tf.global_variables_initializer())
            expected = session.run(value)
            metadata, path = tf.RunMetadata(), str(tmp_path / "model")
            session.run(
                saver.saver_def.save_tensor_name,
                {saver.saver_def.filename_tensor_name: path},
                options=trace.run_options(),
                run_metadata=metadata,
            )
            session.run(zero)
            assert not session.run(value).any()
            saver.restore(session, path)
            np.testing.assert_array_equal(session.run(value), expected)
    assert_equal(read(path), {"w": expected})
    events = [e for e in trace.read(metadata) if e.kind in ("SaveV2", "MergeV2Checkpoints")]
    assert [e.kind for e in events] == ["SaveV2", "SaveV2", "SaveV2", "MergeV2Checkpoints"]
    assert not any("job:worker" in e.device for e in events)
