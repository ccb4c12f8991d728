"""Operations that others wait for come first: by edges, without a circle, with the same results."""

import pytest
from apart import A, B, on

from benchmarks.frameworks import volume_nets
from benchmarks.frameworks.cluster_nets import build_step
from benchmarks.networks import NETWORKS, batch
from mtf_hetero import tf
from mtf_hetero._support import graphs
from mtf_hetero.mesh import traffic

pytestmark = pytest.mark.usefixtures("own_graph")


def make_tensor(*shape, device=A):
    """A tensor that a device makes anew in each step."""
    return on(device, lambda: tf.random.stateless_uniform(shape, [1, 2]) + tf.random.stateless_uniform(shape, [3, 4]))


def product(x, device=A):
    return on(device, tf.matmul, x, make_tensor(3, 3, device=device))


def there_and_back(x):
    return on(A, tf.exp, on(B, tf.exp, x))


def test_what_is_sent_is_cut_before_anything_else_is_made_of_it():
    x = make_tensor(3, 3)
    own, pooled = product(x), on(A, tf.reduce_max, x)
    cut = on(A, tf.reshape, on(A, tf.slice, x, [0, 0], [1, 3]), [3])
    assert traffic.prioritize([own.op, pooled.op, on(B, tf.exp, cut).op]) == 2
    assert own.op.control_inputs == pooled.op.control_inputs == [cut.op]


def test_what_is_computed_and_sent_is_not_cut():
    x = make_tensor(3, 3)
    own = product(x)
    assert traffic.prioritize([own.op, on(B, tf.exp, on(A, tf.exp, x)).op]) == 0


def test_of_two_products_that_for_which_messages_wait_comes_first():
    x = make_tensor(3, 3)
    for_nobody, sent = product(x), product(x)
    back = there_and_back(sent)
    assert traffic.prioritize([for_nobody.op, back.op]) == 1
    assert for_nobody.op.control_inputs == [sent.op]


def test_of_two_products_for_which_as_many_messages_wait_none_comes_first():
    x = make_tensor(3, 3)
    assert traffic.prioritize([there_and_back(product(x)).op for _ in range(2)]) == 0


def test_a_product_does_not_wait_for_what_is_ready_later():
    x = make_tensor(3, 3)
    own, first = product(x), product(product(make_tensor(3, 3)))
    late = on(A, tf.matmul, x, there_and_back(make_tensor(3, 3)))
    behind = on(A, tf.matmul, x, first)
    step = [own.op, on(B, tf.exp, late).op, on(B, tf.exp, behind).op]
    traffic.prioritize(step)
    assert own.op.control_inputs == []


def test_of_what_is_sent_twice_no_circle_is_made():
    x = make_tensor(3, 3)
    first, second = product(x), product(x)
    step = [there_and_back(there_and_back(first)).op, there_and_back(second).op]
    step.append(on(B, tf.exp, on(A, tf.add, first, second)).op)  # made of both, cut from x
    traffic.prioritize(step)
    order = {op: place for place, op in enumerate(graphs.operations_to_run(step))}
    assert all(order[before] < order[op] for op in order for before in op.control_inputs)
    with tf.Session() as session:
        session.graph.as_graph_def()


def test_one_process_sends_nothing_and_a_loop_is_left_alone():
    x = make_tensor(3, 3)
    near = on("/job:worker/task:0/device:CPU:1", tf.exp, product(x))
    assert traffic.prioritize([product(x).op, near.op]) == 0
    turns = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, product(y)), [0, x])
    step = [*turns, there_and_back(product(x)).op, product(x).op]
    assert traffic.prioritize(step) == 1
    assert not any(op.control_inputs for op in graphs.operations_to_run(step) if "While" in op.type)


def network_of_images():
    return build_step(NETWORKS["paper_cifar"], *batch(NETWORKS["paper_cifar"], 8, 1), recipe="filters", devices=[A, B])


def network_of_volumes():
    return volume_nets.build_step("conv", (16, 16, 16), devices=[A, B], seed=1)


@pytest.mark.parametrize("build", [network_of_images, network_of_volumes])
def test_a_training_step_has_an_order_without_circles(build):
    operations = graphs.operations_to_run(tf.nest.flatten(build().fetches))
    order = {op: place for place, op in enumerate(operations)}
    added = [(before, op) for op in operations for before in op.control_inputs if "Conv" in op.type]
    assert added
    assert all(order[before] < order[op] and before.device == op.device for before, op in added)
