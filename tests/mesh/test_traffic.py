"""Traffic: the graph, plain arithmetic and the trace of a step agree."""

import re

import numpy as np
import pytest
from allreduce import allreduce_bytes
from apart import WORKERS, A, B, on
from tiers import on_workers

from benchmarks.frameworks.cluster_nets import build_step, sent_by
from benchmarks.networks import NETWORKS, batch
from mtf_hetero import Lowering, UnevenMeshImpl, mtf, tf
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.cost import trace
from mtf_hetero.mesh import traffic

TOLERANCE = 0.05  # of the bytes on a link
pytestmark = pytest.mark.usefixtures("own_graph")


def summary(*args, **kwargs):
    return [(send.source, send.target, send.bytes) for send in traffic.sends(*args, **kwargs)]


def test_a_tensor_goes_once_to_each_device_that_reads_it():
    x = on(A, tf.random.normal, [3, 5])
    unneeded = on(B, tf.exp, x + 1)
    ys = [on(B, tf.exp, x), on(B, tf.square, x), on("/job:worker/replica:0/task:2/cpu:0", tf.exp, x), on(A, tf.exp, x)]
    found = traffic.sends([y.op for y in ys])
    assert [(send.source, send.target) for send in found] == [(A, B), (A, WORKERS[2])]
    assert [(send.bytes, send.shape, send.tensor_name) for send in found] == [(60, (3, 5), x.name)] * 2
    assert unneeded.op.name not in {send.consumer for send in found}
    assert traffic.links(found) == {(A, B): 60, (A, WORKERS[2]): 60}


def test_no_bytes_for_control_edges_and_handles():
    variable = on(A, tf.Variable, np.ones([7], np.float32), use_resource=True)
    with tf.control_dependencies([variable.initializer]):
        read = variable.value()  # has no device: it follows the variable
    assert summary(on(B, tf.exp, read).op) == [(A, B, 28)]
    with tf.control_dependencies([read]):
        assert summary(on(B, tf.no_op)) == []
    assert summary(variable.assign_add(on(B, tf.zeros, [7]) + np.ones([7], np.float32)).op)[-1][1:] == (A, 28)


def test_what_has_no_device_is_at_the_chief():
    two = tf.constant([1.0, 2.0])
    ys = [on(B, tf.exp, two)]
    assert summary(ys[0].op) == []  # its only reader has it
    ys.append(on(A, tf.exp, two))
    assert sorted(summary([y.op for y in ys])) == [(traffic.CHIEF, A, 8), (traffic.CHIEF, B, 8)]
    whole = on(A, tf.random.normal, [4])
    assert summary(tf.raw_ops.Shape(input=whole)) == [(A, traffic.CHIEF, 4)]  # the shape is found where the tensor is
    assert summary(tf.exp(whole).op) == [(A, traffic.CHIEF, 16)]
    assert summary(whole) == [(A, traffic.CHIEF, 16)]


def test_feeds_come_from_the_chief():
    x = on(A, tf.placeholder, tf.float64, [2])
    y = on(B, tf.exp, on(A, tf.square, x))
    assert summary(y.op) == [(traffic.CHIEF, A, 16), (A, B, 16)]
    assert summary([]) == []


def test_cpus_of_one_process_are_listed_and_not_counted():
    x = on("cpu:0", tf.random.normal, [3])
    found = traffic.sends(on("cpu:1", tf.exp, on("gpu:0", tf.square, on("cpu:1", tf.square, x))).op)
    assert [send.in_memory for send in found] == [True, False, False]
    assert list(traffic.links(found).values()) == [12, 12]
    assert traffic.CHIEF in {send.source for send in found}


def test_mistakes():
    x = on(A, tf.placeholder, tf.float32, [None, 2])
    with pytest.raises(ValueError, match=r"tensor 'Placeholder:0' is sent .* 2\), whose size is not known; give"):
        traffic.sends(on(B, tf.exp, x).op)
    with pytest.raises(NotImplementedError, match="is a loop; the traffic of loops cannot be counted"):
        traffic.sends(tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)]))
    with pytest.raises(ValueError, match="no graphs or no statistics; run the step with trace.run_options()"):
        traffic.received(tf.RunMetadata())


def test_operations_have_the_names_of_the_mtf_program():
    rows, units, others = (mtf.Dimension(name, size) for name, size in [("rows", 3), ("units", 8), ("others", 5)])
    program = mtf.Graph()
    mesh = mtf.Mesh(program, "mesh")
    x = mtf.import_tf_tensor(mesh, on(A, tf.random.normal, [3, 8]), mtf.Shape([rows, units]))
    w = mtf.get_variable(mesh, "w", mtf.Shape([units, others]))
    y = mtf.einsum([x, w], [rows, others], name="product")
    z = mtf.relu(y, name="rectified")
    lowering = Lowering(program, {mesh: UnevenMeshImpl("all:2", "units:all", [A, B], sizes={"units": [6, 2]})})
    last = lowering.tensors[z].to_laid_out_tensor().tensor_list
    found = traffic.sends([value.op for value in last], graph=program)
    assert {send.operation for send in found} <= {op.name for op in program.operations}
    sums = [send for send in found if send.shape == (3, 5)]
    assert [(send.source, send.target, send.bytes) for send in sums] == [(B, A, 60), (A, B, 60)]
    assert {send.operation for send in sums} == {y.operation.name}
    assert {send.consumer for send in sums} <= {y.operation.name, z.operation.name}
    (piece,) = (send for send in found if send.shape == (3, 2))
    assert (piece.operation, piece.target, piece.bytes) == (x.operation.name, B, 24)
    assert len(found) == 3  # each processor has its own slice of w
    scopes = {send.operation for send in traffic.sends([value.op for value in last])}
    assert any(scope.startswith(y.operation.name) for scope in scopes)


def sent_node(metadata, name, source, target, shape, dtype=tf.float32, op="_Send", slot=0):
    """One tensor that an operation puts out and another sends."""
    node = metadata.partition_graphs[0].node.add(name=f"{name}_S1", op=op, input=[f"{name}:{slot}" if slot else name])
    node.attr["send_device"].s, node.attr["recv_device"].s = (
        device.replace("/task", "/replica:0/task").encode() for device in (source, target)
    )
    output = metadata.step_stats.dev_stats.add(device=source).node_stats.add(node_name=name).output.add(slot=slot)
    output.tensor_description.dtype = dtype.as_datatype_enum
    for size in shape:
        output.tensor_description.shape.dim.add(size=size)


def test_what_a_trace_has_received():
    metadata = tf.RunMetadata()
    metadata.partition_graphs.add()
    sent_node(metadata, "x", A, B, [3, 5])
    sent_node(metadata, "x", A, B, [2], slot=1)
    sent_node(metadata, "y", A, B, [], tf.int64, "_HostSend")
    sent_node(metadata, "control", B, A, [0])
    sent_node(metadata, "own", A, A.replace("CPU:0", "CPU:1"), [9])
    sent_node(metadata, "needed here", B, A, [9], op="Relu")
    sent_node(metadata, "fetched", A, B, [9])
    metadata.partition_graphs[0].node[-1].attr["client_terminated"].b = True
    sent_node(metadata, "z", WORKERS[2], A, [100], tf.bfloat16)
    assert traffic.received(metadata) == {(WORKERS[2], A): 200, (A, B): 76}
    assert traffic.table(traffic.received(metadata)).splitlines() == [
        "from            to              bytes",
        "worker:2/cpu:0  worker:0/cpu:0    200",
        "worker:0/cpu:0  worker:1/cpu:0     76",
        "all                               276",
    ]
    assert traffic.table({}).splitlines()[-1].split() == ["all", "0"]


def check_transfers(metadata, sends):
    """Asserts that what TensorFlow notes of its transfers, which are not all of them, was expected."""
    sizes = {(send.tensor_name.split(":")[0], send.target): set() for send in sends}
    for send in sends:
        sizes[send.tensor_name.split(":")[0], send.target].add(send.bytes)
    nodes = [node for stats in metadata.step_stats.dev_stats for node in stats.node_stats]
    for node in nodes:
        if node.node_name == trace.RECEIVED:
            ((name, target),) = re.findall(r"edge_\d+_(\S+) from \S+ to (\S+)$", node.timeline_label)
            size = node.output[0].tensor_description.allocation_description.requested_bytes
            optimised = "Optimizer/" in name
            assert not size or optimised or size in sizes[name, target.replace("/replica:0", "")], node.timeline_label


def check_step(cluster, network, batch_size, **division):
    """Asserts that a step on workers sends over each link what its graph says."""
    chosen = NETWORKS[network]
    with tf.Graph().as_default():
        step = build_step(chosen, *batch(chosen, batch_size, 1), devices=cluster.devices, **division)
        metadata = tf.RunMetadata()
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            session.run(tf.global_variables_initializer())
            session.run([tf.local_variables_initializer(), step.lowering.copy_masters_to_slices()])
            session.run(list(step.fetches), options=trace.run_options(), run_metadata=metadata)

    expected, found = traffic.links(step.sends()), traffic.received(metadata)
    check_transfers(metadata, step.sends())
    assert found.keys() == expected.keys()
    for link, size in found.items():
        assert size == pytest.approx(expected[link], rel=TOLERANCE), link
    assert step.count_traffic()["sent_bytes"] == sum(expected.values())


@on_workers
@pytest.mark.parametrize(("recipe", "wire_dtype"), [("filters", None), ("batch", "bfloat16")])
def test_a_step_on_workers_sends_what_its_graph_says(recipe, wire_dtype, workers):
    check_step(workers.cluster, "toy", 6, recipe=recipe, shares=[4, 3, 2], wire_dtype=wire_dtype)


@pytest.mark.slow
def test_networks_on_workers_send_what_their_graphs_say():
    with LocalCluster([1.0] * 4, report=lambda line: None) as cluster:
        for recipe, wire_dtype in (("filters", None), ("batch", "bfloat16")):
            check_step(cluster, "vgg11", 12, recipe=recipe, shares=[4, 3, 2, 1], wire_dtype=wire_dtype)


def test_batch_layout_sends_gradients_alone():
    """Two processors exchange the gradient of each variable; beyond that a step sends a few numbers."""
    network = NETWORKS["toy"]
    step = build_step(network, *batch(network, 6, 1), recipe="batch", devices=[A, B], shares=[2, 1])
    elements = sum(variable.shape.size for variable in step.built.graph.trainable_variables)
    expected = allreduce_bytes(elements, 2)
    found = traffic.links(step.sends())
    assert expected[0, 1] <= found[A, B] <= expected[0, 1] + 64
    assert expected[1, 0] <= found[B, A] <= expected[1, 0] + 64
    sizes = {dim: list(step.layout.split(dim, 6)) for dim, _ in step.layout.rules}
    assert sent_by("toy", 6, "batch", sizes) == step.count_traffic()


def test_layout_of_one_device_sends_the_loss_alone():
    network = NETWORKS["toy"]
    step = build_step(network, *batch(network, 6, 1), recipe="batch", devices=[A])
    assert traffic.links(step.sends()) == {(A, traffic.CHIEF): 4}
    found = step.count_traffic()
    assert [found[f"busiest_link_{what}"] for what in ("bytes", "messages")] == [4, 1]
    assert found["sent_bytes"] == 4
