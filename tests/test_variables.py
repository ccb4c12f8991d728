"""Variables without masters: initial values, logical checkpoints, stacked variables, other meshes."""

import numpy as np
import pytest
from oracle import mesh_impl_of

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

SHAPE = [mtf.Dimension("c", 7), mtf.Dimension("f", 11)]
LAYOUTS = {
    "one": Layout("x:1", ""),
    "three": Layout("x:3", "f:x", {"x": [70, 25, 5]}),
    "three_even": Layout("x:3", "c:x"),
    "two": Layout("x:2", "c:x", {"x": [1, 6]}),
    "six": Layout("x:3;y:2", "f:x;c:y", {"x": [5, 2, 1], "y": [3, 1]}),
    "replicated": Layout("x:3", "batch:x"),
}


class Program:
    """A small regression with an optimizer whose slots are variables too."""

    def __init__(self, layout, optimizer, *, seed=3, autostack=True):
        tf.set_random_seed(seed)
        self.graph = mtf.Graph()
        mesh = mtf.Mesh(self.graph, "mesh")
        x = mtf.import_tf_tensor(mesh, np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7), [("batch", 5), SHAPE[0]])
        with tf.variable_scope("model"):
            w = mtf.get_variable(mesh, "w", mtf.Shape(SHAPE), initializer=tf.random_normal_initializer())
            u = mtf.get_variable(mesh, "u", mtf.Shape(SHAPE), initializer=tf.random_normal_initializer())
            s = mtf.get_variable(mesh, "s", mtf.Shape([]), initializer=tf.ones_initializer())
        y = mtf.einsum([x, w + u], [x.shape.dims[0], SHAPE[1]]) * s
        loss = mtf.reduce_mean(mtf.square(y - 1.0))
        grads = mtf.gradients([loss], [v.outputs[0] for v in self.graph.trainable_variables])
        updates = optimizer.apply_grads(grads, self.graph.trainable_variables)
        self.lowering = mtf_hetero.Lowering(self.graph, {mesh: mesh_impl_of(layout)}, autostack=autostack)
        self.loss = self.lowering.export_to_tf_tensor(loss)
        self.train = tf.group([self.lowering.lowered_operation(op) for op in updates])
        self.restored = self.lowering.copy_masters_to_slices()
        self.values = {v.name: self.lowering.export_to_tf_tensor(v.outputs[0]) for v in self.graph.all_variables}
        self.slices = {v.name: self.lowering.variables[v].value.tensor_list for v in self.graph.all_variables}

    def initialize(self, session):
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())


def session_of(layout):
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size}))


@pytest.mark.parametrize("optimizer", ["adafactor", "adam", "momentum"])
def test_a_checkpoint_is_logical(tmp_path, optimizer):
    """Trained on three unequal processors, resumed on every other layout with bit-equal weights."""

    def make():
        return {
            "adafactor": lambda: mtf.optimize.AdafactorOptimizer(min_dim_size_to_factor=4),
            "adam": lambda: mtf.optimize.AdamWeightDecayOptimizer(0.01),
            "momentum": lambda: mtf.optimize.MomentumOptimizer(0.01, 0.9),
        }[optimizer]()

    with tf.Graph().as_default(), session_of(LAYOUTS["three"]) as session:
        program = Program(LAYOUTS["three"], make())
        tf.train.get_or_create_global_step()
        program.initialize(session)
        for _ in range(3):
            session.run(program.train)
        expected = session.run(program.values)
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        continued = [session.run(program.train) or session.run(program.loss) for _ in range(3)]

    reader = tf.train.load_checkpoint(path)
    assert set(reader.get_variable_to_shape_map()) == {*expected, "global_step"}
    for name, value in expected.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value, err_msg=name)

    for layout in LAYOUTS.values():
        with tf.Graph().as_default(), session_of(layout) as session:
            program = Program(layout, make(), seed=99)
            tf.train.get_or_create_global_step()
            tf.train.Saver().restore(session, path)
            session.run(program.restored)
            for name, value in session.run(program.values).items():
                np.testing.assert_array_equal(value, expected[name], err_msg=name)
            for name, slices in session.run(program.slices).items():
                assert sum(s.size for s in slices) >= expected[name].size
            resumed = [session.run(program.train) or session.run(program.loss) for _ in range(3)]
            np.testing.assert_allclose(resumed, continued, rtol=1e-5)


def test_initial_values_do_not_depend_on_the_layout():
    values = []
    for layout in LAYOUTS.values():
        with tf.Graph().as_default(), session_of(layout) as session:
            program = Program(layout, mtf.optimize.SgdOptimizer(0.1))
            program.initialize(session)
            values.append(session.run(program.values))
    for other in values[1:]:
        for name, value in values[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_there_is_no_master():
    layout = LAYOUTS["three"]
    with tf.Graph().as_default(), session_of(layout) as session:
        Program(layout, mtf.optimize.SgdOptimizer(0.1))
        names = {v.op.name for v in tf.global_variables() + tf.local_variables() + tf.trainable_variables()}
        assert names == {f"model/{v}/processor_{p}" for v in "wus" for p in range(3)}
        assert sum(np.prod(v.shape.as_list()) for v in tf.trainable_variables()) == 2 * 77 + 1
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        assert session.run(tf.report_uninitialized_variables()).size == 0


def test_stock_checkpoints_can_be_read(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        with tf.variable_scope("model"):
            for name in ("w", "u"):
                mtf.get_variable(mesh, name, mtf.Shape(SHAPE), initializer=tf.random_normal_initializer())
            mtf.get_variable(mesh, "s", mtf.Shape([]), initializer=tf.ones_initializer())
        masters = {v.name: v.get_master() for v in graph.all_variables}
        mtf.Lowering(graph, {mesh: mtf.placement_mesh_impl.PlacementMeshImpl([], [], [""])})
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "stock.ckpt"))
        expected = session.run(masters)
    with tf.Graph().as_default(), session_of(LAYOUTS["six"]) as session:
        program = Program(LAYOUTS["six"], mtf.optimize.SgdOptimizer(0.1))
        tf.train.Saver().restore(session, path)
        session.run(program.restored)
        for name, value in session.run(program.values).items():
            np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("layout", ["three", "six", "replicated"])
def test_stacked_variables_keep_their_names(tmp_path, layout):
    layout = LAYOUTS[layout]

    class Stacking(mtf.optimize.SgdOptimizer):
        def apply_grads(self, grads, variables):
            updates = super().apply_grads(grads, variables)
            variables[0].graph.rewrite_stack_variables()
            return updates

    results = []
    for optimizer in (mtf.optimize.SgdOptimizer(0.1), Stacking(0.1)):
        with tf.Graph().as_default(), session_of(layout) as session:
            program = Program(layout, optimizer)
            stacked = [v for v in program.graph.all_variables if isinstance(v, mtf.StackedVariable)]
            assert bool(stacked) == isinstance(optimizer, Stacking)
            program.initialize(session)
            losses = [session.run(program.train) or session.run(program.loss) for _ in range(3)]
            path = tf.train.Saver().save(session, str(tmp_path / type(optimizer).__name__))
            reader = tf.train.load_checkpoint(path)
            results.append((losses, {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}))
    (losses, values), (stacked_losses, stacked_values) = results
    np.testing.assert_allclose(stacked_losses, losses, rtol=1e-6)
    assert set(values) == set(stacked_values) == {"model/w", "model/u", "model/s"}
    for name, value in values.items():
        np.testing.assert_allclose(stacked_values[name], value, rtol=1e-5, atol=1e-6)


def test_slice_dtype_is_what_is_kept_and_saved(tmp_path):
    layout = LAYOUTS["three"]
    with tf.Graph().as_default(), session_of(layout) as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        dtype = mtf.VariableDType(tf.bfloat16, tf.float32, tf.bfloat16)
        w = mtf.get_variable(mesh, "w", mtf.Shape(SHAPE), dtype=dtype, initializer=tf.random_normal_initializer())
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl_of(layout)})
        assert lowering.export_to_tf_tensor(w).dtype == tf.bfloat16
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert tf.train.load_checkpoint(path).get_tensor("w").dtype == np.float32


def test_a_read_after_an_assignment_sees_it():
    layout = LAYOUTS["six"]
    with tf.Graph().as_default(), session_of(layout) as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        w = mtf.get_variable(mesh, "w", mtf.Shape(SHAPE), initializer=tf.ones_initializer())
        update = mtf.assign_add(w, mtf.ones_like(w) * 2.0)
        after = mtf.depend(mtf.zeros_like(w), [update])
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl_of(layout)})
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        before, _ = session.run([lowering.export_to_tf_tensor(w), lowering.export_to_tf_tensor(after)])
        assert (before == 1).all()
        assert (session.run(lowering.export_to_tf_tensor(w)) == 3).all()
