"""The memory that a layout is predicted to need, before anything is lowered, is what mtf_hetero.cost.memory reports."""

import pytest
from tiers import parametrize

from mtf_hetero import Layout, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.cost import memory
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner.planning import describe

TOLERANCE = 0.3  # of what the lowered graph needs, which has halos, messages and copies of gradients as well


def needed_bytes(model, optimizer, batch_size, recipe, shares):
    """Bytes that each device needs: as sketched, and as estimated from the lowered graph."""
    devices = [f"gpu:{index}" for index in range(len(shares))]
    found = MODELS[model]
    with tf.Graph().as_default():
        tf.train.create_global_step()
        image, label = tf.zeros([batch_size, *found.image_shape]), tf.zeros([batch_size], tf.int32)
        built = network.Program(found.build, network.Optimizer(optimizer)).build_training(image, label)
        layout = Layout("all:1", "")
        if len(devices) > 1:
            layout = LAYOUTS[recipe](built.graph, mesh_shape=f"all:{len(devices)}", shares={"all": shares})
        machines = Machines(tuple(Machine(device, 1e12, 1e11) for device in devices))
        sketched = describe(built.graph, machines, layout).memory_bytes
        lowering = network.lower(built, layout, devices)
        fetches = [*map(lowering.lowered_operation, built.updates), lowering.export_to_tf_tensor(built.loss)]
        estimates = memory.estimate(lowering, fetches)
    peaks = [estimates[device].peak - estimates[device].runtime for device in devices]
    return sketched, peaks


CASES = [
    ("lenet", "adam", 64, "batch", [1]),
    ("lenet", "sgd", 64, "batch", [3, 1]),
    ("paper_cifar", "sgd", 128, "filters", [3, 1]),
    ("alexnet", "sgd", 64, "filters", [2, 1]),
    ("vgg11", "adam", 64, "batch", [1]),
    ("resnet18", "sgd", 32, "batch", [2, 1]),
]


@parametrize(("model", "optimizer", "batch_size", "recipe", "shares"), CASES, first=CASES[1:3])
def test_both_agree(model, optimizer, batch_size, recipe, shares):
    sketched, reported = needed_bytes(model, optimizer, batch_size, recipe, shares)
    assert sketched == pytest.approx(reported, rel=TOLERANCE)


def test_one_device_is_within_a_twentieth_where_tensors_are_large():
    (sketched,), (reported,) = needed_bytes("paper_cifar", "sgd", 128, "batch", [1])
    assert sketched == pytest.approx(reported, rel=0.05)
