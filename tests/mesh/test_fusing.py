"""Messages that travel as one: the fewest, none that waits for another, and the same results."""

import numpy as np
import pytest
from apart import A, B, on
from tiers import on_workers, parametrize

from benchmarks.frameworks.cluster_nets import build_step
from benchmarks.frameworks.steps import worker_devices
from benchmarks.networks import NETWORKS, batch
from mtf_hetero import tf
from mtf_hetero._support import graphs
from mtf_hetero.mesh import traffic

pytestmark = pytest.mark.usefixtures("own_graph")


def make_tensor(*shape, dtype=tf.float32):
    """A tensor that A makes anew in each step."""
    return on(A, tf.random.stateless_uniform, shape, [1, 2], dtype=dtype)


def count(fetches):
    return sum((send.source, send.target) == (A, B) for send in traffic.sends(fetches))


def test_small_tensors_travel_as_one():
    xs = [make_tensor(3, 5), make_tensor(), make_tensor(7), make_tensor(0, 2)]
    step = [on(B, tf.exp, x).op for x in xs] + [on(A, tf.exp, xs[0]).op]
    links = traffic.links(traffic.sends(step))
    assert traffic.fuse(step) == 3
    assert count(step) == 1 and traffic.links(traffic.sends(step)) == links == {(A, B): 4 * 23}
    assert traffic.fuse(step) == 0


def test_what_reads_a_message_comes_after_it():
    step = [on(B, tf.exp, make_tensor(n)).op for n in (2, 3)]
    before = graphs.operations_to_run(step)
    assert before == sorted(before, key=step[0].graph.get_operations().index)
    traffic.fuse(step)
    order = graphs.operations_to_run(step)
    assert set(before) < set(order)
    for op in order:
        assert all(order.index(x.op) < order.index(op) for x in op.inputs)


def test_a_tensor_is_sent_once_however_often_it_is_read():
    x, y = make_tensor(3), make_tensor(5)
    step = [on(B, tf.add, x, x).op, on(B, tf.exp, x).op, on(B, tf.exp, y).op]
    assert traffic.fuse(step) == 1
    assert step[0].inputs[0] is step[0].inputs[1]
    assert count(step) == 1


def test_large_tensors_and_other_types_travel_alone():
    large = [make_tensor(2**20 + 1), make_tensor(2**20 + 2)]
    half = [make_tensor(3, dtype=tf.float16), make_tensor(2, dtype=tf.float16)]
    step = [on(B, tf.exp, x).op for x in [*large, *half, make_tensor(4), make_tensor(5)]]
    assert traffic.fuse(step) == 2
    assert count(step) == 4


def test_what_is_ready_is_sent_as_soon_as_there_is_enough():
    step = [on(B, tf.exp, make_tensor(2**18)).op for _ in range(10)]  # a mebibyte each
    assert traffic.fuse(step) == 7
    sizes = [send.bytes for send in traffic.sends(step) if (send.source, send.target) == (A, B)]
    assert sorted(sizes) == [2**21, 2**22, 2**22]


def test_what_waits_for_another_message_does_not_travel_with_it():
    x, y = make_tensor(3), make_tensor(3)
    there = on(B, tf.exp, x)
    back = on(A, tf.multiply, on(A, tf.exp, there), y)
    step = [on(B, tf.exp, back).op, on(B, tf.exp, y).op]  # y is needed late, back is made late, and x is needed early
    assert traffic.fuse(step) == 1
    assert count(step) == 2


def test_a_product_does_not_wait_for_what_is_ready_later():
    x, y = make_tensor(3, 3), make_tensor(3, 3)
    late = on(A, tf.exp, on(B, tf.exp, make_tensor(3, 3)))
    step = [on(B, tf.matmul, x, y).op, on(B, tf.matmul, late, late).op]
    assert traffic.fuse(step) == 1
    assert count(step) == 3  # x with y; what comes back late; and what goes there first


def test_who_runs_a_part_feeds_no_more_than_before():
    fed = [tf.placeholder(tf.float32, [3]) for _ in range(2)]
    xs = [on(A, tf.exp, x) for x in (fed[0], fed[1], fed[0])]
    step = [on(B, tf.exp, x).op for x in xs]
    assert traffic.fuse(step) == 1
    assert count(step) == 2


def test_loops_strings_unknown_sizes_and_one_process_are_left_alone():
    unknown = tf.placeholder(tf.float32, [None])
    xs = [
        on(A, tf.strings.as_string, make_tensor(3)),
        on(A, tf.strings.as_string, make_tensor(2)),
        on(A, tf.exp, unknown),
    ]
    assert traffic.fuse([on(B, tf.identity, x).op for x in xs]) == 0
    near = [on("/job:worker/task:0/device:CPU:1", tf.exp, make_tensor(3)).op for _ in range(2)]
    assert traffic.fuse(near) == 0
    x = on(A, tf.identity, 1.0)
    turns = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, on(B, tf.add, x, y)), [0, make_tensor()])
    assert traffic.fuse([turns, on(B, tf.exp, make_tensor(3)).op]) == 0


@parametrize("workers", [2, 4], first=[2])
def test_a_split_batch_of_vgg11_needs_few_messages(workers):
    step = build_step(
        NETWORKS["vgg11"], *batch(NETWORKS["vgg11"], 64, 1), recipe="batch", devices=worker_devices(workers)
    )
    assert step.count_traffic()["busiest_link_messages"] <= 6


@on_workers
def test_workers_get_what_one_message_carries(workers):
    a, b = workers.cluster.devices[:2]
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in ([3, 5], [], [7], [0, 2])]
    fed = [tf.placeholder(tf.float64, array.shape) for array in arrays]
    both = on(a, tf.concat, [tf.reshape(x, [-1]) for x in fed], 0)  # so that all depend on all that is fed
    count_traffic = [on(a, lambda x=x: x + 0 * tf.reduce_sum(both)) for x in fed]
    results = [on(b, tf.negative, x) for x in count_traffic]
    assert traffic.fuse(results) == 3
    with tf.Session(workers.cluster.target, config=workers.cluster.session_config()) as session:
        for step in range(1, 4):
            values = session.run(results, {x: step * array for x, array in zip(fed, arrays, strict=True)})
            for value, array in zip(values, arrays, strict=True):
                np.testing.assert_array_equal(value, -step * array)


def test_what_was_run_stays_as_it_is():
    """A session may have run a step; another one of the same graph reads what it computes too."""
    xs = [make_tensor(n) for n in (2, 3, 4)]
    old = [on(B, tf.exp, x) for x in xs]
    with tf.Session() as session:
        session.run([])
    count_run = len(tf.get_default_graph().get_operations())
    ys = [on(A, tf.negative, x) for x in xs]
    step = [*[x.op for x in old], *[on(B, tf.add, y, x).op for x, y in zip(old, ys)]]
    assert traffic.fuse(step, already_run=count_run) == 2
    assert [x.op.inputs[0].name for x in old] == [x.name for x in xs]
    assert traffic.prioritize(step, already_run=len(tf.get_default_graph().get_operations())) == 0
