"""Each processor of a mesh gets its slice of the batch, from pipelines that are shared where they can be."""

import functools

import numpy as np
import pytest
from small_sets import read_batches

from mtf_hetero import Layout, data, tf
from mtf_hetero.data.laid_out import host_cpu


def iterators():
    return [op for op in tf.get_default_graph().get_operations() if op.type == "IteratorV2"]


def run_laid_out(layout, devices, make, steps):
    """[step][pnum] -> (image, label), and the devices of the iterators."""
    with tf.Graph().as_default():
        features, labels = data.laid_out_batches(make, layout, {"batch": 10}, devices)
        with tf.train.MonitoredSession() as session:
            return [session.run(list(zip(features["image"], labels))) for _ in range(steps)], iterators()


def test_processors_share_the_pipelines_of_their_slice():
    dataset = data.load("mnist5k")
    make = functools.partial(dataset.train_input_fn, 10, 1, augment=data.Augmentation())
    layout = Layout("rows:2;cols:2", "batch:cols", shares={"cols": [7, 3]})
    steps, made = run_laid_out(layout, ["cpu:0"] * 4, make, 3)
    assert len(made) == 2
    for parts, (image, _, label) in zip(steps, read_batches(lambda: make().take(3))):
        for pnum, (begin, end) in enumerate([(0, 7), (7, 10)] * 2):
            np.testing.assert_array_equal(parts[pnum][0], image[begin:end])
            np.testing.assert_array_equal(parts[pnum][1], label[begin:end])


def test_two_dimensions_of_the_batch():
    make = functools.partial(data.load("mnist5k").train_input_fn, 15, 1, augment=data.Augmentation())
    layout = Layout("data:2;model:2", "outer_batch:data;batch:model", shares={"data": [2, 1], "model": [3, 2]})
    with tf.Graph().as_default():
        batch = {"outer_batch": 3, "batch": 5}
        features, labels = data.laid_out_batches(make, layout, batch, ["cpu:0"] * 4)
        with tf.train.MonitoredSession() as session:
            parts = session.run(list(zip(features["image"], labels)))
    image, _, label = read_batches(lambda: make().take(1))[0]
    image, label = image.reshape([3, 5, *image.shape[1:]]), label.reshape([3, 5])
    rows, columns = (slice(0, 2), slice(2, 3)), (slice(0, 3), slice(3, 5))
    boxes = [(row, column) for row in rows for column in columns]
    for part, box in zip(parts, boxes, strict=True):
        np.testing.assert_array_equal(part[0], image[box])
        np.testing.assert_array_equal(part[1], label[box])


def test_replicas_read_the_whole_batch_once():
    make = functools.partial(data.load("mnist5k").test_input_fn, 10)
    steps, made = run_laid_out(Layout("all:3", "filters:all"), ["cpu:0"] * 3, make, 2)
    assert len(made) == 1
    for parts, (image, _, label) in zip(steps, read_batches(lambda: make().take(2))):
        for part_image, part_label in parts:
            np.testing.assert_array_equal(part_image, image)
            np.testing.assert_array_equal(part_label, label)


def test_each_host_has_pipelines_of_its_own():
    hosts = [f"/job:worker/task:{task}/device:" for task in range(2)]
    devices = [hosts[0] + "GPU:0", hosts[0] + "GPU:1", hosts[1] + "GPU:0", hosts[1] + "CPU:0"]
    make = functools.partial(data.load("mnist5k").train_input_fn, 10, 2)
    for layout, expected in (
        (Layout("rows:2;cols:2", "batch:rows"), [hosts[0] + "CPU:0", hosts[1] + "CPU:0"]),
        (Layout("rows:2;cols:2", "batch:cols"), [hosts[0] + "CPU:0"] * 2 + [hosts[1] + "CPU:0"] * 2),
        (Layout("rows:2;cols:2", ""), [hosts[0] + "CPU:0", hosts[1] + "CPU:0"]),
    ):
        with tf.Graph().as_default() as graph:
            data.laid_out_batches(make, layout, {"batch": 10}, devices)
            assert [op.device for op in iterators()] == expected
            assert {op.device for op in graph.get_operations()} == set(expected)
            assert len(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)) == len(expected)


def test_hosts():
    assert host_cpu("gpu:1") == host_cpu("cpu:3") == host_cpu("") == "/device:CPU:0"
    assert host_cpu("/job:worker/task:2/device:GPU:1") == "/job:worker/task:2/device:CPU:0"
    assert host_cpu("/job:ps/replica:0/task:1") == "/job:ps/task:1/device:CPU:0"


def test_a_device_too_few():
    with pytest.raises(ValueError, match="1 devices are given for the 2 processors of mesh all:2"):
        data.laid_out_batches(data.load("mnist5k").test_input_fn, Layout("all:2", ""), {"batch": 10}, ["cpu:0"])
