"""Slots: several processors on one device. Results are those of one device, and a device holds and does things once."""

import collections
import contextlib
import itertools

import oracle
from tiers import parametrize

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero._support import graphs
from mtf_hetero.mesh import traffic

BATCH, WIDTH = 7, mtf.Dimension("width", 6)
WORKERS = [f"/job:worker/task:{task}/device:CPU:0" for task in range(3)]
STAGES = [f"s{i}/batch" for i in range(3)]


def blocks(feed):
    """Three blocks of one width, of which the last shares the first one's weights; batch norm, dropout, an L2 loss."""
    options = {"initializer": tf.random_normal_initializer(stddev=0.5, seed=1), "dtype": mtf.VariableDType(feed.dtype)}
    hidden = mtf.Dimension("hidden", 5)

    def weights(name, *dims):
        return mtf.get_variable(feed.mesh, name, mtf.Shape(dims), **options)

    x = feed("x", mtf.Shape([mtf.Dimension(STAGES[0], BATCH), WIDTH]))
    w = [weights(f"w{i}", WIDTH, hidden) for i in range(2)]
    v = [weights(f"v{i}", hidden, WIDTH) for i in range(3)]
    for i, stage in enumerate(STAGES):
        x = mtf.rename_dimension(x, x.shape.dims[0].name, stage)
        y = mtf.einsum([x, w[i % 2]], mtf.Shape([x.shape.dims[0], hidden]))
        y = layers.batch_norm(y, training=True, name=f"norm{i}")
        x += mtf.einsum([mtf.tanh(y), v[i]], x.shape)
    penalty = mtf.add_n([mtf.reduce_sum(mtf.square(each)) for each in v])
    return {"y": x, "loss": mtf.reduce_mean(mtf.square(x)) + 0.1 * penalty}


def staged(processors, sizes, **slots):
    """The layout of the three stages by the sizes of their batches, on one axis."""
    rules = ";".join(f"{stage}:x" for stage in STAGES)
    return Layout(f"x:{processors}", rules, sizes=dict(zip(STAGES, sizes)), slots=slots)


LAYOUTS = {
    "one device": staged(4, [[2, 2, 2, 1]] * 3, x=[4]),
    "two devices": staged(5, [[2, 2, 1, 1, 1]] * 3, x=[2, 3]),
    "stages": staged(3, [[7, 0, 0], [0, 7, 0], [0, 0, 7]]),
    "stages of several devices": staged(3, [[5, 2, 0], [0, 0, 7], [0, 3, 4]]),
    "pipeline": staged(6, [[3, 2, 2, 0, 0, 0], [3, 2, 2, 0, 0, 0], [0, 0, 0, 3, 2, 2]], x=[3, 3]),
    "uneven pipeline": staged(5, [[4, 3, 0, 0, 0], [0, 2, 2, 2, 1], [0, 0, 4, 3, 0]], x=[2, 2, 1]),
    "two axes": Layout(
        "x:3;y:4",
        f"{';'.join(f'{s}:x' for s in STAGES)};hidden:y",
        {"y": [1, 2, 3, 1]},
        slots={"x": [1, 2], "y": [2, 2]},
    ),
    "two axes and zeros": Layout(
        "x:4;y:2",
        f"{';'.join(f'{s}:x' for s in STAGES)};width:y",
        sizes={STAGES[0]: [4, 3, 0, 0], STAGES[1]: [0, 0, 4, 3], STAGES[2]: [2, 2, 2, 1], "width": [6, 0]},
        slots={"x": [2, 2]},
    ),
}


@parametrize("name", LAYOUTS, first=["one device", "uneven pipeline", "two axes and zeros"])
def test_results(name):
    oracle.check(blocks, LAYOUTS[name], averages=False)


@contextlib.contextmanager
def training(layout, devices):
    """Lower a step of Adam, clipped by the norm of all gradients; yields the lowering and what each step fetches."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        outputs = blocks(oracle.Feed(mesh, tf.float32, oracle.FED))
        variables = graph.trainable_variables
        gradients = mtf.gradients([outputs["loss"]], [v.outputs[0] for v in variables])
        norm = mtf.sqrt(mtf.add_n([mtf.reduce_sum(mtf.square(gradient)) for gradient in gradients]))
        gradients = [gradient / (norm + 1.0) for gradient in gradients]
        updates = mtf.optimize.AdamWeightDecayOptimizer(learning_rate=0.1).apply_grads(gradients, variables)
        lowering = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(layout, devices)})
        fetches = [*map(lowering.lowered_operation, updates), lowering.export_to_tf_tensor(outputs["loss"])]
        yield lowering, fetches


def where_variables_are():
    """{name of a variable: its devices, by their last number}."""
    places = collections.defaultdict(list)
    for op in tf.get_default_graph().get_operations():
        if op.type == "VarHandleOp" and "processor_" in op.name:
            places[op.name.rpartition("/")[0]].append(op.device)
    return {name: [WORKERS.index(device) for device in devices] for name, devices in places.items()}


def test_a_device_holds_a_variable_once_and_updates_it_once():
    with training(LAYOUTS["one device"], WORKERS[:1]) as (_, fetches):
        assert set(map(tuple, where_variables_are().values())) == {(0,)}
        types = collections.Counter(op.type for op in graphs.operations_to_run(fetches))
    with training(staged(1, [[7]] * 3), WORKERS[:1]) as (_, fetches):
        alone = collections.Counter(op.type for op in graphs.operations_to_run(fetches))
    assert types["AssignVariableOp"] == alone["AssignVariableOp"]
    assert types["ReadVariableOp"] == alone["ReadVariableOp"]
    assert types["Sqrt"] == alone["Sqrt"], "the updates are calculated once"
    assert types["MatMul"] + types["Einsum"] > 3 * (alone["MatMul"] + alone["Einsum"])


def test_a_variable_lives_where_it_is_read():
    """With what the optimizer keeps for it; a tied one on two devices."""
    with training(LAYOUTS["stages"], WORKERS) as (_, fetches):
        places = where_variables_are()
        sends = traffic.sends(fetches)
    for name, place in {"w0": [0, 2], "w1": [1], "v0": [0], "v1": [1], "v2": [2]}.items():
        assert {tuple(where) for other, where in places.items() if other.split("/")[0] == name} == {tuple(place)}
    between = [send for send in sends if {send.source, send.target} <= set(WORKERS)]
    weights, activations = 4 * WIDTH.size * 5, 4 * BATCH * WIDTH.size
    large = collections.Counter(
        (WORKERS.index(send.source), WORKERS.index(send.target), send.bytes) for send in between if send.bytes > 40
    )
    assert large == {
        (0, 1, activations): 1,
        (1, 2, activations): 1,
        (2, 1, activations): 1,
        (1, 0, activations): 1,
        (0, 2, weights): 1,
        (2, 0, weights): 1,
    }


def test_messages_of_several_slots_do_not_travel_together():
    """Each microbatch is sent to the next stage as soon as it is ready."""
    with training(LAYOUTS["pipeline"], WORKERS[:2]) as (_, fetches):
        traffic.arrange(fetches)
        sends = collections.Counter((send.source, send.bytes) for send in traffic.sends(fetches))
    for device in WORKERS[:2]:
        for examples, slots in {3: 1, 2: 2}.items():
            assert sends[device, 4 * WIDTH.size * examples] == slots


def test_slots_take_turns():
    """No product of a slot is ready before the last one of the slot before, in the order that the step gives them."""
    rules = f"{STAGES[0]}:x"
    layout = Layout("x:3", rules, slots={"x": [3]})
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = oracle.Feed(mesh, tf.float32, oracle.FED)("x", mtf.Shape([mtf.Dimension(STAGES[0], 6), WIDTH]))
        w = [mtf.get_variable(mesh, f"w{i}", mtf.Shape([WIDTH, mtf.Dimension("out", 6)])) for i in range(2)]
        y = mtf.rename_dimension(mtf.tanh(mtf.einsum([x, w[0]], [x.shape.dims[0], w[0].shape.dims[1]])), "out", "width")
        loss = mtf.reduce_sum(mtf.square(mtf.einsum([y, w[1]], [x.shape.dims[0], w[1].shape.dims[1]])))
        gradients = mtf.gradients([loss], [each.outputs[0] for each in graph.trainable_variables])
        updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
        lowering = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(layout, ["cpu:0"])})
        step = [*map(lowering.lowered_operation, updates), lowering.export_to_tf_tensor(loss)]
        assert traffic.take_turns(step) == 2
        products = [op for op in graphs.operations_to_run(step) if op.type in ("MatMul", "Einsum", "BatchMatMulV2")]
        of_slot = [[op for op in products if f"parallel_{slot}" in op.name] for slot in range(3)]
        assert [len(each) for each in of_slot] == [5, 5, 5] and len(products) == 15
        for before, after in itertools.pairwise(of_slot):
            assert all(set(before) <= graphs.ancestors([op]) for op in after)
