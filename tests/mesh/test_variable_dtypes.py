"""Variables of several types: what is saved has the master's, as in stock mtf, and either reads the other's."""

import numpy as np
import pytest
from held import SHAPES, C, F, Held
from oracle import cpu_mesh_impl
from tiers import parametrize

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.checkpoint import Saver, SliceSaverBuilder
from mtf_hetero.estimator import saved_model

LAYOUTS = {
    "one": Layout("x:1", ""),
    "replicated": Layout("x:3", ""),
    "six": Layout("x:3;y:2", "f:x;c:y", {"x": [5, 2, 1], "y": [3, 1]}),
    "empty": Layout("x:3;y:2", "f:x", sizes={"f": [0, 9, 2]}),
}
DTYPES = {
    "mixed": mtf.VariableDType(tf.bfloat16, tf.float32, tf.bfloat16),
    "double": mtf.VariableDType(tf.float64, tf.float32, tf.float32),
    "bfloat16": mtf.VariableDType(tf.bfloat16),
    "float64": mtf.VariableDType(tf.float64),
}
SAVERS = {
    "plain": lambda: tf.train.Saver(),
    "of a list": lambda: tf.train.Saver(tf.global_variables(), max_to_keep=2),
    "sharded": lambda: tf.train.Saver(sharded=True),
    "slices": lambda: Saver(builder=SliceSaverBuilder(group_bytes=40)),
}


def stock():
    return mtf.placement_mesh_impl.PlacementMeshImpl("x:1", [], ["cpu:0"])


def make_session(mesh_impl):
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": mesh_impl.size}))


def save(dtype, mesh_impl, path, saver=SAVERS["plain"]):
    """Trains a step and saves; what the slices were then."""
    with tf.Graph().as_default(), make_session(mesh_impl) as session:
        tf.train.get_or_create_global_step()
        program = Held(mesh_impl, dtype)
        saver = saver()
        session.run(tf.global_variables_initializer())
        session.run([tf.local_variables_initializer(), program.copy])
        session.run(program.step)
        session.run(program.to_masters)
        return program.values(session), saver.save(session, path)


def restore(dtype, mesh_impl, path, saver=SAVERS["plain"]):
    with tf.Graph().as_default(), make_session(mesh_impl) as session:
        tf.train.get_or_create_global_step()
        program = Held(mesh_impl, dtype)
        saver().restore(session, path)
        session.run([tf.local_variables_initializer(), program.copy])
        return program.values(session)


def rounded(values, dtype):
    return {name: value.astype(dtype.master_dtype.as_numpy_dtype).astype(np.float64) for name, value in values.items()}


def assert_equal(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@parametrize(
    ("dtype", "saver", "names"),
    [
        ("mixed", "slices", ["six"]),
        ("mixed", "plain", LAYOUTS),
        ("double", "of a list", LAYOUTS),
        ("bfloat16", "slices", LAYOUTS),
        ("float64", "sharded", LAYOUTS),
    ],
    first=[("mixed", "slices", ["six"])],
)
def test_stock_mtf_and_every_layout_read_each_others_checkpoints(dtype, saver, names, tmp_path):
    dtype, saver = DTYPES[dtype], SAVERS[saver]
    trained, path = save(dtype, stock(), str(tmp_path / "stock"))
    expected = rounded(trained, dtype)
    layouts = {name: cpu_mesh_impl(LAYOUTS[name]) for name in names}
    for mesh_impl in layouts.values():
        assert_equal(restore(dtype, mesh_impl, path, saver), expected)
    for name, mesh_impl in layouts.items():
        trained, path = save(dtype, mesh_impl, str(tmp_path / name), saver)
        reader = tf.train.load_checkpoint(path)
        assert {reader.get_variable_to_dtype_map()[v] for v in SHAPES} == {dtype.master_dtype}
        assert_equal(restore(dtype, stock(), path), rounded(trained, dtype))
        assert_equal(restore(dtype, layouts["six"], path, saver), rounded(trained, dtype))


@parametrize("layout", ["replicated", "six"], first=["replicated"])
def test_monitored_sessions_read_them(layout, tmp_path):
    """They train on from stock mtf's checkpoint, and stock mtf from theirs."""
    dtype = DTYPES["mixed"]
    mesh_impl = cpu_mesh_impl(LAYOUTS[layout])
    trained, _ = save(dtype, stock(), str(tmp_path / "model.ckpt-0"))
    tf.train.update_checkpoint_state(str(tmp_path), str(tmp_path / "model.ckpt-0"))
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        program = Held(mesh_impl, dtype)
        advance = tf.train.get_global_step().assign_add(1)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            save_checkpoint_steps=1,
            config=tf.ConfigProto(device_count={"CPU": mesh_impl.size}),
            log_step_count_steps=None,
        ) as session:
            found = session.run_step_fn(lambda step_context: program.values(step_context.session))
            assert_equal(found, rounded(trained, dtype))
            session.run([program.step, advance])
            after = session.run_step_fn(lambda step_context: program.values(step_context.session))
    third = np.float32(1) / np.float32(3)
    np.testing.assert_allclose(after["w"], found["w"] + np.float64(third), rtol=1e-2)
    assert_equal(restore(dtype, stock(), tf.train.latest_checkpoint(str(tmp_path))), rounded(after, dtype))


@parametrize("slice_dtype", [tf.float16, tf.float32], first=[tf.float16])
def test_float16_is_saved_in_float32(slice_dtype, tmp_path):
    """Each layout reads what another one wrote; TensorFlow cannot read slices of float16."""
    dtype = mtf.VariableDType(tf.float16, slice_dtype, tf.float16)
    for name, other in (("replicated", "six"), ("six", "empty"), ("empty", "one")):
        trained, path = save(dtype, cpu_mesh_impl(LAYOUTS[name]), str(tmp_path / name))
        assert set(tf.train.load_checkpoint(path).get_variable_to_dtype_map().values()) >= {tf.float32}
        assert_equal(restore(dtype, cpu_mesh_impl(LAYOUTS[other]), path), trained)
    _, path = save(dtype, stock(), str(tmp_path / "stock"))
    with pytest.raises(ValueError, match=r"variable '\w' as float16, .* convert the checkpoint to float32"):
        restore(dtype, cpu_mesh_impl(LAYOUTS["six"]), path, SAVERS["slices"])


def test_a_checkpoint_of_another_type_is_refused_in_one_line(tmp_path):
    _, path = save(DTYPES["mixed"], cpu_mesh_impl(LAYOUTS["six"]), str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"variable '\w' as bfloat16, .* as float32; give .*=tf.bfloat16"):
        restore(mtf.VariableDType(), cpu_mesh_impl(LAYOUTS["six"]), path, SAVERS["slices"])


def test_an_exported_model_has_variables_of_the_type_that_it_computes_with(tmp_path):
    dtype, mesh_impl = DTYPES["mixed"], cpu_mesh_impl(LAYOUTS["six"])
    trained, path = save(dtype, mesh_impl, str(tmp_path / "model"))

    def build(batch_size):
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        fed = tf.placeholder(tf.float32, [batch_size, 7])
        w = mtf.get_variable(mesh, "w", mtf.Shape([C, F]), dtype=mtf.VariableDType(tf.bfloat16, tf.float32, tf.float32))
        x = mtf.import_tf_tensor(mesh, fed, mtf.Shape([mtf.Dimension("batch", batch_size), C]))
        y = mtf.einsum([x, w], [x.shape.dims[0], F])
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(Layout("x:2", "f:x", {"x": [3, 1]}))})
        return fed, {"y": lowering.export_to_tf_tensor(y)}

    saved_model.write(tmp_path / "served", build, checkpoint=path, example_shape=[7], batch_size=4)
    reader = tf.train.load_checkpoint(str(tmp_path / "served" / "variables" / "variables"))
    assert reader.get_variable_to_dtype_map() == {"w": tf.float32}
    np.testing.assert_array_equal(reader.get_tensor("w"), rounded(trained, dtype)["w"])
