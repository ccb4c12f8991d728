"""Slots: several processors on one device. Results are those of one device, and a device holds and does things once."""

import collections
import contextlib
import itertools

import oracle
from tiers import parametrize

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero._support import graphs
from mtf_hetero.cost import memory
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
    "pipeline of several devices": staged(6, [[2, 2, 2, 1, 0, 0], [0, 0, 0, 0, 4, 3], [2, 1, 2, 1, 1, 0]], x=[2, 2, 2]),
    "uneven pipeline": staged(5, [[4, 3, 0, 0, 0], [0, 2, 2, 2, 1], [0, 0, 4, 3, 0]], x=[2, 2, 1]),
    "last layers at once": staged(4, [[2, 2, 2, 1], [0, 4, 0, 3], [0, 0, 0, 7]], x=[4]),
    "last stage at once": staged(6, [[3, 2, 2, 0, 0, 0], [0, 0, 0, 3, 2, 2], [0, 2, 0, 0, 0, 5]], x=[3, 3]),
    "first layers at once": staged(5, [[0, 7, 0, 0, 0], [2, 2, 1, 1, 1], [0, 0, 2, 2, 3]], x=[2, 3]),
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


@contextlib.contextmanager
def residual_blocks(slots, devices):
    """Lower a step of SGD on 8 residual blocks, in as many stages as devices; yields the lowering and its fetches."""
    names, count = [f"s{stage}/batch" for stage in range(len(devices))], len(devices)
    sizes = {
        name: [512 // slots if number // slots == stage else 0 for number in range(count * slots)]
        for stage, name in enumerate(names)
    }
    layout = Layout(f"x:{count * slots}", [(name, "x") for name in names], sizes=sizes, slots={"x": [slots] * count})
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        width, hidden = mtf.Dimension("width", 32), mtf.Dimension("hidden", 64)
        x = mtf.import_tf_tensor(mesh, tf.ones([512, 32]), mtf.Shape([mtf.Dimension(names[0], 512), width]))
        for block in range(8):
            x = mtf.rename_dimension(x, x.shape.dims[0].name, names[block * count // 8])
            y = mtf.einsum([x, mtf.get_variable(mesh, f"w{block}", mtf.Shape([width, hidden]))], [x.shape[0], hidden])
            x += mtf.einsum([mtf.relu(y), mtf.get_variable(mesh, f"v{block}", mtf.Shape([hidden, width]))], x.shape)
        variables = graph.trainable_variables
        weights = mtf.import_tf_tensor(mesh, tf.ones([512]), x.shape.dims[:1])  # all slots wait for their sum
        loss = mtf.reduce_sum(mtf.square(x) * weights) / mtf.reduce_sum(weights)
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, variables)
        lowering = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(layout, devices)})
        fetches = [lowering.lowered_operation(op) for op in updates]
        traffic.arrange(fetches)
        yield lowering, fetches


@parametrize("stages", [1, 2, 3], first=[1, 2])
def test_a_device_holds_the_activations_of_few_slots(stages):
    """One slot on the last device, and two more on each one before it: a message takes as long as a stage."""
    found = {}
    for slots in (1, 8):
        with residual_blocks(slots, WORKERS[:stages]) as (lowering, fetches):
            found[slots] = [memory.estimate(lowering, fetches)[device].activations for device in WORKERS[:stages]]
    for stage, (alone, in_parts) in enumerate(zip(found[1], found[8], strict=True)):
        in_progress = 2 * (stages - stage) - 1
        assert in_parts < alone * (in_progress + 1) / 8


def test_a_slot_begins_when_an_earlier_one_has_ended():
    with residual_blocks(8, WORKERS[:2]) as (_, fetches):
        operations = graphs.operations_to_run(fetches)
        for task, in_progress in enumerate([3, 1]):
            products = [op for op in operations if op.type == "MatMul" and op.device == WORKERS[task]]
            in_slots = [[op for op in products if f"parallel_{8 * task + slot}/" in op.name] for slot in range(8)]
            for before, after in zip(in_slots, in_slots[in_progress:], strict=False):
                assert all(set(before) <= graphs.ancestors([op]) for op in after)
            if in_progress > 1:
                for before, after in zip(in_slots, in_slots[in_progress - 1 :], strict=False):
                    assert not set(before) <= graphs.ancestors(after[:1])


def test_a_gradient_is_added_in_the_turn_of_its_slot():
    """So one total is in memory. TensorFlow would add all slots at the end: the additions of a turn are its own."""
    with residual_blocks(4, WORKERS[:1]) as (_, fetches):
        operations = graphs.operations_to_run(fetches)
        for slot in range(1, 3):
            totals = [op for op in operations if op.type == "AddN" and op.outputs[0].shape.rank == 2]
            additions = [op for op in totals if f"parallel_{slot}/" in op.inputs[-1].name]
            assert len(additions) == 16
            following = [op for op in operations if op.type == "MatMul" and f"parallel_{slot + 1}/" in op.name]
            assert all(set(additions) <= graphs.ancestors([op]) for op in following)
            assert all(op._control_outputs for op in additions), "so TensorFlow does not join them with later ones"
