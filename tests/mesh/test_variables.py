"""Variables without masters: initial values, logical checkpoints, stacked variables, other meshes."""

import numpy as np
import pytest
from oracle import cpu_mesh_impl
from regression import LAYOUTS, SHAPE, Program, ancestors, make_session, saver_names
from savers import SAVERS, assert_equal, read
from tiers import parametrize

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.checkpoint import SliceSaverBuilder
from mtf_hetero.mesh import initial, initial_value_feed

OPTIMIZERS = {
    "adafactor": lambda: mtf.optimize.AdafactorOptimizer(min_dim_size_to_factor=4),
    "adafactor_unfactored": lambda: mtf.optimize.AdafactorOptimizer(factored=False),
    "adam": lambda: mtf.optimize.AdamWeightDecayOptimizer(0.01, weight_decay_rate=0.1),
    "momentum": lambda: mtf.optimize.MomentumOptimizer(0.01, 0.9),
}


@parametrize(
    ("optimizer", "saver", "start"),
    [
        ("momentum", "plain", "three"),
        ("momentum", "slices once", "empty"),
        ("momentum", "slices once", "slots"),
        ("adam", "slices sharded once", "empty"),
        ("adafactor", "plain", "three"),
    ],
    first=[("momentum", "plain", "three"), ("momentum", "slices once", "empty"), ("momentum", "slices once", "slots")],
)
def test_a_checkpoint_is_logical(tmp_path, optimizer, saver, start):
    """Trained on unequal processors, resumed on other layouts with bit-equal weights."""
    with tf.Graph().as_default(), make_session(LAYOUTS[start]) as session:
        program = Program(LAYOUTS[start], OPTIMIZERS[optimizer]())
        tf.train.get_or_create_global_step()
        program.initialize(session)
        for _ in range(3):
            session.run(program.train)
        expected = session.run(program.values)
        path = SAVERS[saver]().save(session, str(tmp_path / "model.ckpt"))
        continued = [session.run(program.train) or session.run(program.loss) for _ in range(3)]
    assert_equal({name: value for name, value in read(path).items() if name != "global_step"}, expected)

    for layout in (LAYOUTS[name] for name in ("six", "replicated", "slots", "empty")):
        with tf.Graph().as_default(), make_session(layout) as session:
            program = Program(layout, OPTIMIZERS[optimizer](), seed=99)
            tf.train.get_or_create_global_step()
            SAVERS[saver]().restore(session, path)
            session.run(program.restored)
            assert_equal(session.run(program.values), expected)
            resumed = [session.run(program.train) or session.run(program.loss) for _ in range(3)]
            np.testing.assert_allclose(resumed, continued, rtol=1e-5)


def test_there_is_no_master():
    layout = LAYOUTS["three"]
    with tf.Graph().as_default(), make_session(layout) as session:
        Program(layout, mtf.optimize.SgdOptimizer(0.1))
        names = {v.op.name for v in tf.global_variables() + tf.local_variables() + tf.trainable_variables()}
        assert names == {f"model/{v}/processor_{p}" for v in "wus" for p in range(3)}
        assert sum(np.prod(v.shape.as_list()) for v in tf.trainable_variables()) == 2 * 77 + 1
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        assert session.run(tf.report_uninitialized_variables()).size == 0


@parametrize("layout", ["six", "replicated"], first=["six"])
def test_stacked_variables_keep_their_names(tmp_path, layout):
    layout = LAYOUTS[layout]

    class Stacking(mtf.optimize.SgdOptimizer):
        def apply_grads(self, grads, variables):
            updates = super().apply_grads(grads, variables)
            variables[0].graph.rewrite_stack_variables()
            return updates

    results = []
    for optimizer in (mtf.optimize.SgdOptimizer(0.1), Stacking(0.1)):
        with tf.Graph().as_default(), make_session(layout) as session:
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


def test_a_read_after_an_assignment_sees_it():
    layout = LAYOUTS["six"]
    with tf.Graph().as_default(), make_session(layout) as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        w = mtf.get_variable(mesh, "w", mtf.Shape(SHAPE), initializer=tf.ones_initializer())
        update = mtf.assign_add(w, mtf.ones_like(w) * 2.0)
        after = mtf.depend(mtf.zeros_like(w), [update])
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        before, _ = session.run([lowering.export_to_tf_tensor(w), lowering.export_to_tf_tensor(after)])
        assert (before == 1).all()
        assert (session.run(lowering.export_to_tf_tensor(w)) == 3).all()


CUBE = [mtf.Dimension("c", 9), mtf.Dimension("f", 10), mtf.Dimension("g", 14)]
CUBE_LAYOUTS = [
    *(Layout("x:8", f"{dim}:x") for dim in "cfg"),
    *(Layout("x:8", f"{dim}:x", {"x": [1, 1, 2, 1, 1, 1, 1, 1]}) for dim in "cfg"),
    Layout("x:2;y:3", "c:x;f:y", {"x": [1, 2], "y": [3, 1, 2]}),
    Layout("x:2;y:3", "f:x;g:y"),
    Layout("x:2;y:3", "c:x;f:y", sizes={"c": [9, 0], "f": [0, 7, 3]}),
    Layout("x:2;y:3", "c:y;g:x", {"y": [1, 5, 1]}),
]
LARGE = [mtf.Dimension("h", 3), mtf.Dimension("w", 3), mtf.Dimension("in", 512), mtf.Dimension("out", 512)]
INITIALIZERS = {
    "normal": lambda: tf.random_normal_initializer(1.0, 0.3),
    "normal_with_seed": lambda: tf.random_normal_initializer(seed=5),
    "uniform": lambda: tf.random_uniform_initializer(-1.0, 2.0),
    "truncated": lambda: tf.truncated_normal_initializer(stddev=0.1),
    "scaled": lambda: tf.variance_scaling_initializer(2.0, "fan_out", "uniform"),
    "glorot": lambda: tf.glorot_normal_initializer(),
    "zeros": lambda: tf.zeros_initializer(),
    "ones": lambda: tf.ones_initializer(),
    "constant": lambda: tf.constant_initializer(0.25),
    "array": lambda: tf.constant_initializer(np.arange(1260)),
    "own": lambda: lambda shape, dtype, **_: tf.maximum(tf.random.uniform(shape, dtype=dtype) - 0.5, 0.1) / 3.0,
    "orthogonal": lambda: tf.orthogonal_initializer(),
}


def variable_on(layout, initializer, dtype=tf.float32, shape=CUBE, devices=None):
    """A variable's master, its lowered self, and where its slices begin."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    mtf.get_variable(mesh, "v", mtf.Shape(shape), dtype=dtype, initializer=initializer)
    (variable,) = graph.all_variables
    mesh_impl = cpu_mesh_impl(layout) if devices is None else mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)
    lowered = mtf_hetero.Lowering(graph, {mesh: mesh_impl}).variables[variable]
    boxes = [
        tuple(slice(b, b + s) for b, s in zip(mesh_impl.slice_begin(variable.shape, p), size))
        for p, size in ((p, mesh_impl.slice_shape(variable.shape, p)) for p in range(layout.size))
    ]
    return variable.get_master(), lowered, boxes


def initial_value(master, layout):
    """Return stock mtf's initial value. A random operation with seeds repeats itself in a new session."""
    whole = tf.Variable(master.initial_value, collections=[], use_resource=True)
    with make_session(layout) as session:
        session.run(whole.initializer)
        return session.run(whole)


def largest(ops):
    """The operation with the largest output of known shape, and that output's number of elements."""
    sizes = [(x.shape.num_elements() or 0, op.name) for op in ops for x in op.outputs if x.shape.is_fully_defined()]
    return max(sizes)


def initialize(session):
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())


def check_slices(layout, dtype, names=INITIALIZERS):
    """Slices are the whole's bit for bit; returns per variable the largest operation of its slices, and its size."""
    largest_of = {}
    for name in names:
        with tf.Graph().as_default(), make_session(layout) as session:
            tf.set_random_seed(7)
            master, lowered, boxes = variable_on(layout, INITIALIZERS[name](), dtype)
            ops = ancestors(tf.global_variables_initializer(), tf.local_variables_initializer())
            whole = initial_value(master, layout)
            initialize(session)
            for value, box in zip(session.run(lowered.laid_out_tensor.tensor_list), boxes, strict=True):
                np.testing.assert_array_equal(value, whole[box], err_msg=f"{name} on {layout}")
            largest_of[name] = largest(ops)
    return largest_of


@parametrize("layout", CUBE_LAYOUTS, first=CUBE_LAYOUTS[6:9:2])
def test_slices_start_with_the_numbers_that_stock_mtf_draws(layout, monkeypatch):
    """But for matrices that must be made whole, nothing is as large as the whole."""
    monkeypatch.setattr(initial, "_BLOCK", 16)
    monkeypatch.setattr(initial, "_SHARED_BLOCK", 16)
    for name, (size, operation) in check_slices(layout, tf.float32).items():
        assert (size >= mtf.Shape(CUBE).size) == (name == "orthogonal"), operation


@pytest.mark.full
def test_slices_of_a_process_that_may_have_large_blocks():
    check_slices(CUBE_LAYOUTS[6], tf.float64)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_slices_of_short_numbers_too(dtype):
    check_slices(CUBE_LAYOUTS[-1], dtype, ["normal", "uniform", "truncated"])


@pytest.mark.parametrize("dim", ["in", "out"])
def test_a_large_weight_is_drawn_where_it_is_kept(dim):
    """By every worker on its own, and little more of the weight at a time than its slice has."""
    layout = Layout("x:8", f"{dim}:x")
    workers = [f"/job:worker/task:{task}/device:CPU:0" for task in range(layout.size)]
    with tf.Graph().as_default():
        master, *_ = variable_on(layout, tf.truncated_normal_initializer(), shape=LARGE, devices=workers)
        for worker, slice_ in zip(workers, tf.global_variables(), strict=True):
            ops = ancestors(slice_.initializer)
            large = [op for op in ops for x in op.outputs if (x.shape.num_elements() or 0) > 4]
            assert {op.device for op in large} == {worker}
            assert largest(ops)[0] < master.shape.num_elements() / 2


@pytest.mark.parametrize("dim", ["in", "out"])
def test_a_process_draws_the_numbers_of_its_slices_once(dim):
    layout = Layout("x:8", f"{dim}:x")
    with tf.Graph().as_default(), make_session(layout) as session:
        tf.set_random_seed(7)
        master, lowered, boxes = variable_on(layout, tf.truncated_normal_initializer(), shape=LARGE)
        draws = [op for op in ancestors(tf.global_variables_initializer()) if op.type == "StatelessTruncatedNormalV2"]
        assert sum(op.outputs[0].shape.num_elements() for op in draws) == master.shape.num_elements()
        whole = initial_value(master, layout)
        initialize(session)
        for value, box in zip(session.run(lowered.laid_out_tensor.tensor_list), boxes, strict=True):
            np.testing.assert_array_equal(value, whole[box])


def test_nothing_is_drawn_when_the_graph_is_optimised():
    """TensorFlow computes what depends on constants alone in advance, in the chief, and keeps it."""
    layout = CUBE_LAYOUTS[0]
    with tf.Graph().as_default(), make_session(layout) as session:
        tf.set_random_seed(7)
        variable_on(layout, INITIALIZERS["own"]())
        metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
        session.run(tf.global_variables_initializer(), options=options, run_metadata=metadata)
        drawn = [n for graph in metadata.partition_graphs for n in graph.node if n.op == "StatelessRandomUniformV2"]
        assert len(drawn) == 1


def test_slices_on_other_kinds_of_devices_are_drawn_on_the_cpu_beside_them():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        mtf.get_variable(mesh, "v", mtf.Shape(CUBE), initializer=tf.random_normal_initializer())
        devices = ["/job:worker/task:1/device:GPU:2", "/job:worker/task:2/device:CPU:1"]
        mtf_hetero.Lowering(graph, {mesh: mtf_hetero.UnevenMeshImpl("x:2", "f:x", devices)})
        drawn = [
            {op.device for op in ancestors(v.initializer) if "Stateless" in op.type} for v in tf.global_variables()
        ]
        assert drawn == [{"/job:worker/task:1/device:CPU:0"}, {"/job:worker/task:2/device:CPU:1"}]


@pytest.mark.parametrize(
    ("draw", "mean", "deviation", "bounds"),
    [
        (tf.random.normal, 0.0, 1.0, (-6, 6)),
        (tf.random.truncated_normal, 0.0, 0.8796, (-2, 2)),
        (tf.random.uniform, 0.5, 1 / np.sqrt(12), (0, 1)),
    ],
)
def test_without_a_seed_every_initialisation_draws_anew_and_its_slices_fit(draw, mean, deviation, bounds):
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        columns = [(0, 150), (100, 103), (150, 153)]
        slices = [(f"cpu:{i}", [0, begin], [200, size]) for i, (begin, size) in enumerate(columns)]
        value = initial.InitialValue(draw([200, 303]), tf.float32, slices)
        left, middle, right = (value.part(begin, size, device) for device, begin, size in slices)
        runs = [session.run([left, middle, right]) for _ in range(2)]
    for a, b, c in runs:
        whole = np.concatenate([a, c], 1)
        np.testing.assert_array_equal(b, whole[:, 100:203])
        assert len(np.unique(whole)) > 0.99 * whole.size
        assert abs(whole.mean() - mean) < 0.02
        assert abs(whole.std() - deviation) < 0.02
        assert bounds[0] <= whole.min()
        assert whole.max() <= bounds[1]
    assert (runs[0][0] != runs[1][0]).mean() > 0.99


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("share", ["the numbers", "what they are computed of"])
def test_random_numbers_that_two_variables_share_are_the_same_in_both(share, seed):
    """Without a seed too, where a slice cannot draw the numbers that another part of the graph sees."""
    with tf.Graph().as_default(), make_session(CUBE_LAYOUTS[-1]) as session:
        drawn = tf.random.uniform([9, 10, 14], seed=seed)
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        scales = (1.0, 1.0) if share == "the numbers" else (2.0, 3.0)
        for name, scale in zip("vw", scales):
            initial = drawn if scale == 1.0 else drawn * scale
            mtf.get_variable(mesh, name, mtf.Shape(CUBE), initializer=lambda *_, value=initial, **__: value)
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(CUBE_LAYOUTS[-1])})
        initialize(session)
        v, w = session.run([lowering.export_to_tf_tensor(x.outputs[0]) for x in graph.all_variables])
    np.testing.assert_allclose(v / scales[0], w / scales[1], rtol=1e-6)
    assert len(np.unique(v)) > 1000


def test_what_an_initial_value_waits_for_is_waited_for():
    def checked(shape, dtype, **_):
        with tf.control_dependencies([tf.debugging.Assert(limit > 0.0, ["the limit is not positive"])]):
            return tf.fill(shape, limit)

    for name in ("whole", "scalar"):
        with tf.Graph().as_default(), make_session(CUBE_LAYOUTS[0]) as session:
            limit = tf.placeholder_with_default(-1.0, [])
            own = checked if name == "whole" else lambda shape, dtype, **_: tf.fill(shape, checked([], dtype) * 2.0)
            _, lowered, _ = variable_on(CUBE_LAYOUTS[0], own)
            with pytest.raises(tf.errors.InvalidArgumentError, match="the limit is not positive"):
                session.run(tf.global_variables_initializer())
            session.run(tf.global_variables_initializer(), {limit: 3.0})
            expected = 3.0 if name == "whole" else 6.0
            assert (session.run(lowered.laid_out_tensor.tensor_list[0]) == expected).all()


def test_what_slices_are_made_without_cannot_be_fed():
    with tf.Graph().as_default(), make_session(CUBE_LAYOUTS[0]) as session:
        drawn = tf.random.uniform([9, 10, 14])
        variable_on(CUBE_LAYOUTS[0], lambda *_, **__: drawn * 2.0)
        with pytest.raises(ValueError, match="may not be fed"):
            session.run(tf.global_variables_initializer(), {drawn: np.ones([9, 10, 14])})


@pytest.mark.parametrize("layout", ["six", "empty"])
def test_variables_start_with_what_is_fed(layout):
    layout = LAYOUTS[layout]
    value = np.arange(77, dtype=np.float32).reshape(7, 11)
    with tf.Graph().as_default(), make_session(layout) as session:
        program = Program(layout, mtf.optimize.MomentumOptimizer(0.1, 0.9))
        session.run(tf.global_variables_initializer(), initial_value_feed({"model/w": value}))
        session.run(tf.local_variables_initializer())
        found = session.run(program.values)
        np.testing.assert_array_equal(found["model/w"], value)
        assert (found["model/u"] != value).all()
        assert found["model/s"] == 1
        with pytest.raises(
            ValueError, match=r"'model/w' has shape \[11, 7\]; give the shape of the variable, \[7, 11\]"
        ):
            initial_value_feed({"model/w": value.T})
        with pytest.raises(ValueError, match="the graph has no global variable 'w'"):
            initial_value_feed({"w": value})


def test_a_master_is_fed_or_refused():
    """Orthogonal matrices are cut out of the master's value; of normal numbers each slice makes its own."""
    value = np.arange(1260, dtype=np.float32).reshape(9, 10, 14)
    for name in ("orthogonal", "normal"):
        with tf.Graph().as_default(), make_session(CUBE_LAYOUTS[0]) as session:
            master, lowered, boxes = variable_on(CUBE_LAYOUTS[0], INITIALIZERS[name]())
            if name == "normal":
                with pytest.raises(ValueError, match="may not be fed"):
                    session.run(tf.global_variables_initializer(), {master.initial_value: value})
                continue
            session.run(tf.global_variables_initializer(), {master.initial_value: value})
            for found, box in zip(session.run(lowered.laid_out_tensor.tensor_list), boxes, strict=True):
                np.testing.assert_array_equal(found, value[box])


@parametrize(
    ("optimizer", "rules"),
    [
        ("adafactor", "c:y;f:x"),
        ("adafactor", "b:y;f:x"),
        ("adafactor_unfactored", "f:x"),
        ("adam", "b:y;f:x"),
        ("momentum", "c:x"),
    ],
    first=[("adafactor", "c:y;f:x"), ("momentum", "c:x")],
)
def test_gradients_and_slots_live_with_their_slice(optimizer, rules, monkeypatch):
    """From initialisation through a step, no tensor anywhere has the shape of the weight, of its gradient or a slot.

    As long as the weight is larger than what a process with all slices draws at a time.
    """
    monkeypatch.setattr(initial, "_SHARED_BLOCK", 16)
    layout = Layout("x:3;y:2", rules, {"x": [5, 2, 1], "y": [2, 1]})
    b, c, f = mtf.Dimension("b", 5), mtf.Dimension("c", 23), mtf.Dimension("f", 29)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = mtf.import_tf_tensor(mesh, np.ones((5, 23), np.float32), mtf.Shape([b, c]))
        y = mtf.layers.dense(x, f, reduced_dims=[c], activation=mtf.relu, name="dense")
        loss = mtf.reduce_mean(mtf.square(y - 1.0))
        variables = graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        updates = OPTIMIZERS[optimizer]().apply_grads(gradients, variables)
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        step = tf.group([lowering.lowered_operation(op) for op in updates])
        saver = tf.train.Saver(builder=SliceSaverBuilder())
        ops = ancestors(
            tf.global_variables_initializer(),
            tf.local_variables_initializer(),
            lowering.copy_masters_to_slices(),
            step,
            *(tf.get_default_graph().get_operation_by_name(name.split(":")[0]) for name in saver_names(saver)),
        )
    whole = {(23, 29), (29, 23), (23 * 29,)}
    outputs = [x for op in ops for x in op.outputs if x.shape.is_fully_defined()]
    assert not [x for x in outputs if tuple(x.shape.as_list()) in whole]
    kernels = [v for v in graph.all_variables if set(v.shape.dims) >= {c, f}]
    assert len(kernels) == {"adafactor": 1, "adam": 3}.get(optimizer, 2)
    for kernel in kernels:
        slices = lowering.variables[kernel].value.tensor_list
        mesh_impl = lowering.mesh_to_impl[mesh]
        assert [s.shape.as_list() for s in slices] == [mesh_impl.slice_shape(kernel.shape, p) for p in range(6)]
