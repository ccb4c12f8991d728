"""Predicted and measured, layer by layer."""

import functools

from mtf_hetero import Layout, tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.trace import Event, TraceHook
from mtf_hetero.cost.trial import Trial
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import measured
from mtf_hetero.planner.planning import describe

DEVICES = ("cpu:0", "cpu:1")


def test_each_layer_of_a_traced_step_is_found_again():
    build = functools.partial(build_step, MODELS["lenet"], 32, "sgd")
    machines = Machines(tuple(Machine(name, 1e10, 1e10) for name in DEVICES))
    layout = {"conv1/filters": (5, 1), "conv2/batch": (20, 12), "dense1/batch": (32, 0)}
    with tf.Graph().as_default():
        graph = build()
        plan = describe(graph, machines, Layout("all:2", dict.fromkeys(layout, "all"), (), layout))
    with Trial(build, plan.layout, DEVICES, Cluster.local(DEVICES)) as trial:
        for _ in range(2):
            trial.run()
        events = trial.run_traced()
        seconds = measured.layer_seconds(trial.graph, events, DEVICES)
        text = measured.report(plan, trial.graph, events)
    for layer in ("conv1", "conv2", "dense1", "dense2", "dense3"):
        assert seconds[layer][0] > 0, layer
    assert seconds["conv1"][1] > 0 and seconds["conv2"][1] > 0
    lines = text.splitlines()
    assert lines[0].split() == list(DEVICES)
    assert lines[1].split() == ["layer", *["predicted", "ms", "measured"] * len(DEVICES)]
    assert {"conv1", "dense3", "all"} <= {line.split()[0] for line in lines if line}
    assert lines[-1].startswith("Step: ") and lines[-1].endswith("which tracing made longer.")


def test_what_is_sent_is_not_computed():
    with tf.Graph().as_default():
        graph = build_step(MODELS["lenet"], 2, "sgd")
        names = ("conv1/conv2d/Conv2D", "conv1/conv2d/edge", "nobody/knows")
        kinds = ("Conv2D", "_Recv", "Add")
        times = ((0.0, 1.0), (1.0, 4.0), (4.0, 4.5))
        device = "/job:localhost/replica:0/task:0/device:CPU:0"
        events = [Event(device, n, k, *t) for n, k, t in zip(names, kinds, times, strict=True)]
        assert measured.layer_seconds(graph, events, DEVICES) == {"conv1": (1.0, 0.0), measured.OTHER: (0.5, 0.0)}


def test_a_report_is_written_beside_the_trace(tmp_path):
    with tf.Graph().as_default():
        step = tf.train.create_global_step().assign_add(1)
        hook = TraceHook(str(tmp_path), [1], reports={"layers": lambda events: f"{len(events) > 0}"})
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(step)
    assert (tmp_path / "layers_1.txt").read_text() == "True\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers_1.txt", "trace_1.json", "trace_1.txt"]
