"""Reading the trace of a step."""

import json

import numpy as np
import pytest

from mtf_hetero import tf
from mtf_hetero.cost import trace
from mtf_hetero.cost.trace import Event

EVENTS = (
    Event("cpu:0", "conv1/conv2d/a", "Conv2D", 0.0, 2.0),
    Event("cpu:0", "conv1/conv2d/b", "Conv2D", 1.0, 3.0),
    Event("cpu:0", "relu/a", "Relu", 4.0, 5.0),
    Event("cpu:1", "dense/a", "Einsum", 0.0, 1.0),
    Event("cpu:1", "dense/b", "_Recv", 1.0, 9.0),
    Event("cpu:1", "dense/c", "MatMul", 9.0, 10.0),
)


def test_totals():
    assert trace.totals(EVENTS, lambda event: event.kind) == {
        "_Recv": 8.0,
        "Conv2D": 4.0,
        "Relu": 1.0,
        "Einsum": 1.0,
        "MatMul": 1.0,
    }
    assert trace.totals(EVENTS, lambda event: event.layer) == {"dense": 10.0, "conv1": 4.0, "relu": 1.0}
    assert trace.totals(EVENTS[3:], lambda event: event.work) == {"transfer and waiting": 8.0, "matrix product": 2.0}


def test_busy_counts_what_runs_side_by_side_once_and_no_waiting():
    used = trace.usage(EVENTS)
    assert used == {"cpu:0": trace.Usage(4.0, 0.0, 6.0), "cpu:1": trace.Usage(2.0, 0.0, 8.0)}
    assert trace.imbalance(EVENTS) == pytest.approx(4 / 3)
    with pytest.raises(ValueError, match="no events; run the step with"):
        trace.imbalance(())


def test_a_tensor_that_comes_while_the_device_computes_costs_nothing():
    name = "/job:worker/replica:0/task:{}/device:CPU:0".format
    events = (
        Event(name(0), "a", "MatMul", 0.0, 4.0),
        Event(name(1), "a", trace.RECEIVED, 3.0, 6.0),
        Event(name(1), "b", "MatMul", 0.0, 5.0),
        Event(name(1), "c", "MatMul", 6.0, 8.0),
        Event("/job:chief/replica:0/task:0/device:CPU:0", "d", "Add", 8.0, 10.0),
    )
    devices = ["/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"]
    used = trace.usage(events, devices)
    assert used == {name(0): trace.Usage(4.0, 0.0, 6.0), name(1): trace.Usage(7.0, 1.0, 2.0)}
    assert trace.imbalance(events, devices) == pytest.approx(7 / 5.5)
    assert len(trace.usage(events)) == 3
    assert trace.usage(EVENTS, ["cpu:1"]).keys() == {"cpu:1"}


def test_table():
    text = trace.table(EVENTS, rows=1)
    assert "step of 10000.0 ms, load imbalance (busiest device / mean) 1.333" in text
    assert "cpu:1: computing 2000.0 ms (20.0 %), receiving 0.0 ms (0.0 %), waiting 8000.0 ms (80.0 %)" in text
    assert text.count("Conv2D") == 1
    assert "Relu" not in text


def test_what_makes_a_tensor_keeps_its_kind_where_another_worker_receives_it():
    metadata = tf.RunMetadata()
    metadata.partition_graphs.add().node.add(name="layer/product", op="_MklMatMul")
    labels = {"RecvTensor": "[8.6MB] [3.1Gb/s] edge_6_layer/product from a to b", "layer/product": "= MatMul(x)"}
    for task, (name, label) in enumerate(labels.items()):
        device = metadata.step_stats.dev_stats.add(device=f"/job:worker/replica:0/task:{task}/device:CPU:0")
        device.node_stats.add(node_name=name, timeline_label=label, all_start_micros=7, op_end_rel_micros=10)
    found = {event.device[-14]: (event.kind, event.name) for event in trace.read(metadata)}
    assert found == {"0": (trace.RECEIVED, "layer/product"), "1": ("MatMul", "layer/product")}


def test_a_traced_step(tmp_path):
    with tf.Graph().as_default():
        x = tf.Variable(np.ones([2, 8, 8, 3], np.float32)).read_value()
        with tf.device("cpu:1"), tf.name_scope("layer"):
            y = tf.nn.relu(tf.nn.conv2d(x, tf.ones([3, 3, 3, 4]), 1, "SAME") @ tf.random.normal([4, 5]))
        hook = trace.TraceHook(str(tmp_path / "new"), [1])
        creator = tf.train.ChiefSessionCreator(config=tf.ConfigProto(device_count={"CPU": 2}))
        with tf.train.MonitoredSession(creator, hooks=[hook]) as session:
            for _ in range(3):
                session.run(y)
        metadata = tf.RunMetadata()
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf.global_variables_initializer())
            session.run(y, options=trace.run_options(), run_metadata=metadata)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["trace_1.json", "trace_1.txt"]
    assert json.loads((tmp_path / "new/trace_1.json").read_text())["traceEvents"]
    assert "load imbalance (busiest device / mean)" in (tmp_path / "new/trace_1.txt").read_text()
    events = trace.read(metadata)
    conv = [event for event in events if event.work == "convolution"]
    assert len(conv) == 1
    assert conv[0].device.endswith("CPU:1")
    assert conv[0].layer == "layer"
    assert 0 < conv[0].seconds < 60
    assert events[0].begin_seconds == 0
