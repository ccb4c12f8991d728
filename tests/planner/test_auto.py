"""Layouts for the devices that are here: measured, planned, tried, and chosen by their times."""

import dataclasses
import functools
import math
import statistics
import time

import numpy as np
import pytest
from dense_steps import LINKS, MACHINES, batch, build, step
from tiers import on_workers

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, mtf, tf
from mtf_hetero.cli import network
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import calibration, memory, microbenchmarks, rates, trace, work
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.trial import Trial
from mtf_hetero.graph import live_operations
from mtf_hetero.graph.identity import operation_key
from mtf_hetero.models.registry import MODELS
from mtf_hetero.ops.traits import is_contraction
from mtf_hetero.planner import auto, fitting, trying
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.search import NoAssignmentError


@pytest.fixture
def quick(monkeypatch):
    """Short messages, and short turns."""
    monkeypatch.setattr(microbenchmarks, "HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})
    monkeypatch.setattr(microbenchmarks, "LOADS", {1 << 10: 4, 1 << 16: 4})
    monkeypatch.setattr(trying, "_TURN_SECONDS", 0.01)


def test_a_trial_runs_the_step_and_knows_whose_each_operation_is():
    layout = Layout("all:2", "dense1/outputs:all;dense2/inputs:all", {"all": (3, 1)})
    with Trial(build, layout, ("cpu:0", "cpu:1"), Cluster.local(["cpu:0", "cpu:1"])) as trial:
        assert trial.run() > 0
        events = trial.run_traced()
        seconds = [rates.operation_seconds(trial, [events], pnum) for pnum in range(2)]
    einsums = {op for op in live_operations(trial.graph) if isinstance(op, mtf.EinsumOperation)}
    products = {op for op in einsums if op.inputs[0].shape != op.outputs[0].shape}  # the others are elementwise
    owners = {
        trial.find_operation(event.name) for event in events if event.kind in ("MatMul", "BatchMatMulV2", "Einsum")
    }
    assert products <= owners <= einsums and all(seconds[0][op] > 0 for op in products)
    for pnum, of_operation in enumerate(seconds):
        own = [e for e in events if e.device.endswith(f"CPU:{pnum}") and not trace.TRANSFER.search(e.kind)]
        passed = max(e.end_seconds for e in own) - min(e.begin_seconds for e in own)
        assert math.fsum(of_operation.values()) == pytest.approx(passed)


def test_a_trial_leaves_the_input_where_it_is_used():
    with Trial(build, Layout("all:2", "batch:all"), ("cpu:0", "cpu:1"), Cluster.local(["cpu:0", "cpu:1"])) as trial:
        imported = [op for op in trial.graph.operations if isinstance(op, mtf.ImportOperation)]
        read = {e.device[-5:] for e in trial.run_traced() if trial.find_operation(e.name) in imported}
    assert read == {"CPU:0", "CPU:1"}


def close(trial):
    """Close a trial, and let a device that was between two steps try the next one."""
    trial.close()
    time.sleep(1.0)


def test_devices_are_busy_while_another_is_traced():
    """Each does its own part, and nothing is left running."""
    devices = ("cpu:0", "cpu:1")
    with Trial(build, Layout("all:2", "batch:all"), devices, Cluster.local(devices), alone=True) as trial:
        with trial.busy([1]):
            events = [trial.run_traced_on(0) for _ in range(2)][-1]
        alone = trial.run_traced_on(1)
        with pytest.raises((RuntimeError, tf.errors.CancelledError)), trial.busy([0]):
            close(trial)  # what a device cannot do is not lost
    for of_device, name in ((events, "CPU:0"), (alone, "CPU:1")):
        assert {event.device[-5:] for event in of_device if event.work == "matrix product"} == {name}


@pytest.mark.parametrize("batch_size", [4, 1])
def test_a_device_does_its_part_without_the_others(batch_size):
    """With batch norm too, whose moments are joined otherwise; and where neighbours exchange halos, of one image."""
    devices = ("cpu:0", "cpu:1")
    small = functools.partial(network.build_step, MODELS["resnet18"], batch_size, "sgd", blocks=(1,), filters=(4, 4))
    layout = next(calibration._parts(small, [1.0, 1.0]))
    assert ("batch" in dict(layout.sizes)) == (batch_size > 1)
    with Trial(small, layout, devices, Cluster.local(devices), alone=True) as trial:
        for pnum in range(2):
            events = trial.run_traced_on(pnum)
            assert {event.device[-5:] for event in events if event.work == "convolution"} == {f"CPU:{pnum}"}


def test_neighbours_are_on_one_host():
    workers = ("10.0.0.7:2222", "10.0.0.7:2223", "10.0.0.8:2222")
    names = [f"/job:worker/task:{task}/device:CPU:0" for task in range(3)]
    cluster = Cluster(workers, (*names, "/job:worker/task:0/device:GPU:0"))
    assert calibration._neighbours(cluster, names[0]) == set(names[:2])
    assert calibration._neighbours(cluster, names[2]) == {names[2]}


def test_rates_say_of_each_operation_what_was_measured():
    """Over the part that a device has had; the rates of the whole add up to the time that all took."""
    cluster = Cluster.local(["cpu:0"])
    with Trial(build, Layout([("all", 1)], ()), ["cpu:0"], cluster) as trial:
        trial.run()
        steps = [trial.run_traced() for _ in range(3)]
    flops, moved, factors, moved_factors = rates.find_rates(rates.Traced(trial, steps, 0))
    machine = Machine("cpu:0", flops, moved, factors=factors, moved_factors=moved_factors)
    measured = rates.operation_seconds(trial, steps, 0)
    predicted = {
        op: machine.seconds(*work.of_operation(op, trial.layout, 0), operation_key(op))
        for op in live_operations(trial.graph)
    }
    # of each operation at least what it takes to start a kernel is predicted
    least = rates.OPERATION_SECONDS * len([op for op in predicted if is_contraction(op)])
    of_products = [sum(s for op, s in each.items() if is_contraction(op)) for each in (predicted, measured)]
    assert of_products[0] == pytest.approx(of_products[1], rel=0.2, abs=least)


def test_rates_say_how_long_a_small_part_takes(monkeypatch):
    """As measured: the weights are read for it all the same. Without a small part, a typical time is assumed."""

    def find_seconds(trial, steps, pnum):
        amounts = {op: work.of_operation(op, trial.layout, pnum) for op in live_operations(trial.graph)}
        return {op: rates.OPERATION_SECONDS + 1e-9 * flops + 3e-9 * moved for op, (flops, moved) in amounts.items()}

    monkeypatch.setattr(rates, "operation_seconds", find_seconds)
    traced = []
    for slots in (1, 8):
        layout = Layout(f"all:{slots}", "batch:all", slots={"all": [slots]})
        with Trial(build, layout, ["cpu:0"], Cluster.local(["cpu:0"]), alone=True) as trial:
            traced.append(rates.Traced(trial, (), 0))
    flops, moved, factors, moved_factors = rates.find_rates(*traced)
    machine = Machine(
        "cpu:0", flops, moved, None, rates.OPERATION_SECONDS, factors=factors, moved_factors=moved_factors
    )
    for trial, steps, pnum in traced:
        for op, seconds in find_seconds(trial, steps, pnum).items():
            if is_contraction(op):
                amount = work.of_operation(op, trial.layout, pnum)
                assert machine.seconds(*amount, operation_key(op)) == pytest.approx(seconds, rel=1e-6)
    _, _, factors, moved_factors = rates.find_rates(traced[0])
    assert [moved_factors[kind] / factors[kind] for kind in moved_factors] == pytest.approx([4.0] * len(moved_factors))


def make_plan(devices, seconds, layout=None):
    layout = layout or Layout([("all", len(devices))], ())
    return Plan(devices, layout, seconds, (devices[0], 1.0), 0.0, (), (0,) * len(devices), {})


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"alone": (1.0, 1.0, 1.0), "plan": (0.9, 0.9, 0.9)}, "plan"),
        ({"alone": (1.0, 1.0, 1.0), "plan": (0.9, 1.1, 1.1)}, "alone"),
        ({"alone": (1.0, 1.0, 1.0), "plan": (0.9, 0.9, 1.4)}, "plan"),  # one slow round
        ({"alone": (1.0, 1.0, 1.0), "plan": (0.99, 0.99, 0.99)}, "alone"),  # too little to use more devices
        ({"alone": (1.0, 1.0, 1.0), "batch": (0.8, 0.8, 0.8), "plan": (0.9, 0.9, 0.9)}, "batch"),
        ({"batch": (0.8, 0.8, 0.8)}, "batch"),
    ],
)
def test_the_least_expected_time_wins(times, expected):
    predicted = {name: statistics.median(each) for name, each in times.items()}
    assert trying.winner(times, predicted) == expected


@pytest.mark.parametrize(("predicted", "expected"), [(0.9, "plan"), (1.1, "alone")])
def test_of_two_rounds_the_prediction_is_a_third(predicted, expected):
    times = {"alone": (1.0, 1.0), "plan": (0.9, 1.1)}
    assert trying.winner(times, {"alone": 1.0, "plan": predicted}) == expected


def test_logical_devices_of_one_cpu_are_one(monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", lambda *args, **kwargs: pytest.fail("nothing is to be measured"))
    choice = auto.choose(build, Cluster.local(["cpu:0", "cpu:1"]), {"batch": batch})
    assert (choice.name, choice.plan.devices, choice.trials) == ("alone", ("cpu:0",), {})
    assert choice.lines[0] == "not split over 2 devices: cpu:1 shares the cores of cpu:0"


def test_what_is_tried_is_the_fastest_alone_the_best_recipe_and_the_plan():
    candidates = auto._candidates(build, MACHINES, {"batch": batch, "filters": _refused})
    assert list(candidates)[:2] == ["alone", "batch"]
    assert candidates["alone"].devices == ("a",)
    for plan in candidates.values():
        assert plan.seconds >= candidates.get("plan", plan).seconds - 1e-12


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.5])
def test_no_gain_is_predicted_beyond_the_sum_of_the_speeds(factor):
    """Also if a measurement says that a device is slower while the others rest."""
    devices = tuple(dataclasses.replace(machine, alone_factor=factor) for machine in MACHINES.devices)
    machines = Machines(devices, LINKS["fast link"])

    def build_large():
        return step(batch=4096, inputs=256, units=(256, 256))[0]

    candidates = auto._candidates(build_large, machines, {"batch": batch})
    with tf.Graph().as_default():
        speeds = calibration.speeds(build_large(), machines)
    gains = [candidates["alone"].seconds / plan.seconds for plan in candidates.values()]
    assert 1.0 < max(gains) <= math.fsum(speeds) / max(speeds) + 1e-9


def test_a_device_is_not_slower_while_the_others_rest():
    machine, cluster = Machine("cpu:0", 1e10, 1e9), Cluster.local(["cpu:0", "cpu:1"])
    with tf.Graph().as_default():
        graph = build()
        seconds = 1.0 / calibration.speeds(graph, Machines((machine,)))[0]
        factors = [
            calibration._with_alone_factor([machine], cluster, "cpu:0", graph, times * seconds)[0].alone_factor
            for times in (0.8, 1.3)
        ]
    assert factors == pytest.approx([0.8, 1.0])


def _refused(graph, speeds):
    raise ValueError("nothing to split")


def test_what_does_not_fit_is_not_tried():
    """By the lowered graph, in which a step holds more than the search believes."""
    little = Machines(tuple(dataclasses.replace(m, memory_bytes=3.5e5) for m in MACHINES.devices))
    candidates = auto._candidates(build, little, {"batch": batch})
    assert list(candidates) == ["plan"]
    assert max(candidates["plan"].memory_bytes) <= 3.5e5


def lowered_bytes(layout):
    """Return the memory of each device in bytes, from the graph lowered for workers."""
    devices = [f"/job:worker/task:{number}/device:CPU:0" for number in range(layout.size)]
    with tf.Graph().as_default():
        graph = build()
        updates = [op for op in graph.operations if isinstance(op, mtf.Assign)]
        lowering = Lowering(graph, {updates[0].mesh: UnevenMeshImpl.from_layout(layout, devices)})
        found = memory.estimate(lowering, [lowering.lowered_operation(op) for op in updates])
    return tuple(sum(dataclasses.astuple(found[device])[:-1]) for device in devices)  # all but TensorFlow's own


@pytest.mark.parametrize("limit", [None, 7e5, 5e5, 3.5e5, 2.6e5, 1e5])
def test_a_plan_fits_by_the_lowered_graph(limit):
    limited = Machines(tuple(dataclasses.replace(m, memory_bytes=limit) for m in MACHINES.devices))
    if limit == 1e5:
        with pytest.raises(
            NoAssignmentError,
            match=r"no layout of .* nearest needs about \d+ kB on a \(100 kB\), \d+ kB on b .*; add dev",
        ):
            fitting.find_fitting(build, limited)
        return
    plan = fitting.find_fitting(build, limited)
    lowered = lowered_bytes(plan.layout)
    assert limit is None or max(lowered) <= limit
    assert plan.memory_bytes == lowered or 2 * max(plan.memory_bytes) <= (limit or math.inf)


@pytest.mark.full
def test_a_batch_that_fits_is_found_by_one_search():
    shapes = []

    def build_with(count):
        shapes.append(count)
        return functools.partial(network.build_step, MODELS["lenet"], count, "momentum")

    limited = MACHINES.with_memory({machine.name: 2e7 for machine in MACHINES.devices})
    with pytest.raises(fitting.ShortOfMemoryError, match="nearest needs about .* or use a smaller batch") as short:
        fitting.find_fitting(build_with(20_000), limited)
    largest = fitting.largest_batch(build_with, 20_000, limited, short.value.nearest)
    assert largest is not None and largest > 100 and shapes[1:] == [largest]
    with pytest.raises(fitting.ShortOfMemoryError) as short:
        fitting.find_fitting(build_with(round(1.3 * largest)), limited)
    tiny = MACHINES.with_memory({machine.name: 1e5 for machine in MACHINES.devices})
    assert fitting.largest_batch(build_with, 8, tiny, short.value.nearest) == 0
    error = fitting.ShortOfMemoryError(short.value.nearest, limited, 0)
    assert "use a smaller network: a batch of 1 does not fit either" in str(error)


@pytest.mark.full
@on_workers
def test_measured_planned_and_tried(workers, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "busy_warning", str)
    cluster = dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])
    choice = auto.choose(build, cluster, {"batch": batch}, cache_dir=tmp_path)
    if choice.trials:
        predicted = {name: plan.seconds for name, plan in choice.candidates.items()}
        assert choice.name == trying.winner(choice.trials, predicted)
        assert set(choice.trials) == set(choice.candidates)
        assert all(len(times) >= 2 and min(times) > 0 for times in choice.trials.values())
    else:
        assert len(choice.plan.devices) == 1
    machines = choice.machines
    assert machines.names == cluster.devices and machines.step_seconds > 0
    assert all(machine.factors and machine.flops_per_second > 1e8 for machine in machines.devices)
    assert machines.link_between(0, 1).bytes_per_second > 1e6
    assert choice.lines[-1] == choice.headline and choice.headline.startswith("Layout: ")
    with tf.Graph().as_default():
        speeds = calibration.speeds(build(), machines)
    assert len(speeds) == 2 and statistics.fmean(speeds) > 0 and np.isfinite(speeds).all()

    monkeypatch.setattr(calibration, "calibrate", lambda *args, **kwargs: pytest.fail("all of it is known"))
    again = auto.choose(build, cluster, {"batch": batch}, cache_dir=tmp_path)
    assert again.machines == machines
    (path,) = tmp_path.iterdir()
    assert path.stem.endswith("-light") and any(f"measured before: {path}" in line for line in again.lines)
    with pytest.raises(pytest.fail.Exception, match="all of it is known"):  # lightly, which is not enough
        auto.choose(build, cluster, {"batch": batch}, seconds=600.0, cache_dir=tmp_path)
    with monkeypatch.context() as busy:
        busy.setattr(auto, "busy_warning", lambda: "busy")
        again = auto.choose(build, cluster, {"batch": batch}, cache_dir=tmp_path)
        assert (again.machines, again.warning) == (machines, "busy")
        busy.setattr(calibration, "calibrate", lambda *args, **kwargs: machines)
        auto.choose(build, cluster, {"batch": batch}, cache_dir=tmp_path / "busy")
        assert not (tmp_path / "busy").exists()
    path.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="all of it is known"):
        auto.choose(build, cluster, {"batch": batch}, cache_dir=tmp_path)


@pytest.mark.full
@on_workers
def test_measured_thoroughly(workers, quick, monkeypatch):
    figures, calibrate = [], calibration.calibrate

    def record(*args, figure, done):
        figures.append(figure)
        return calibrate(*args, figure=figure, done=done)

    monkeypatch.setattr(calibration, "calibrate", record)
    cluster = dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])
    choice = auto.choose(build, cluster, {"batch": batch}, seconds=600.0)
    assert all(machine.factors for machine in choice.machines.devices) and figures == [None]
