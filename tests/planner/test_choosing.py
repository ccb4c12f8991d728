"""Time to choose a layout: the limit is kept, measurements that gain nothing are left out, the choice is printed."""

import contextlib
import dataclasses
import itertools
import math
import os
import time

import pytest
from dense_steps import MACHINES, batch, build
from tiers import on_workers, parametrize

from mtf_hetero import Layout, tf
from mtf_hetero._support import deadline
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import calibration, limited, microbenchmarks, quick
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.planner import auto, choice, planning, trying
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.search import NoAssignmentError


@pytest.fixture
def two(workers):
    return dataclasses.replace(workers.cluster, devices=workers.cluster.devices[:2])


@pytest.fixture
def unmeasured(monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", lambda *args, **kwargs: pytest.fail("nothing is to be measured"))


class TestDeadline:
    def test_an_inner_limit_is_no_longer_than_an_outer_one(self):
        assert deadline.seconds_left() == math.inf
        deadline.check()
        with deadline.within(100.0):
            with deadline.within(1000.0):
                assert 90 < deadline.seconds_left() <= 100
            with deadline.within(0.0), pytest.raises(OutOfTimeError):
                deadline.check()
            deadline.check()
        assert deadline.seconds_left() == math.inf

    def test_a_call_of_a_session_is_cancelled(self):
        self._long_call(None, "cpu:0")

    @on_workers
    def test_a_call_of_a_worker_too(self, two):
        self._long_call(two, two.devices[1])

    def _long_call(self, cluster, device):
        """And the session lives on."""
        with tf.Graph().as_default() as graph:
            operation, count = microbenchmarks.products(device)
            target, config = (cluster.target, cluster.session_config()) if cluster else ("", None)
            with tf.Session(target, graph=graph, config=config) as session:
                limited.run(session, operation, {count: 1})
                begin = time.monotonic()
                # on a busy machine the call takes a while to reach its device; before that TensorFlow cannot cancel it
                with deadline.within(1.0), pytest.raises(OutOfTimeError):
                    limited.run(session, operation, {count: 20_000})  # a minute or more
                with deadline.within(0.0), pytest.raises(OutOfTimeError):
                    limited.run(session, operation, {count: 1})
                assert time.monotonic() - begin < 30
                limited.run(session, operation, {count: 1})


def test_what_a_split_saves_at_most():
    figure = quick.Figure({"a": 1e10, "b": 3e10, "c": 2e10}, step_seconds=0.6, build_seconds=1.0)
    assert figure.fastest == "b"
    assert figure.most_saved(100) == pytest.approx(100 * 0.6 * 0.5)
    assert figure.trying_seconds < figure.measuring_seconds < figure.thorough_seconds


@on_workers
@parametrize("steps", [0, 1, 24], first=[24])
def test_a_short_training_is_not_measured(two, unmeasured, steps):
    chosen = auto.choose(build, two, {"batch": batch}, steps=steps)
    assert (chosen.name, len(chosen.plan.devices), chosen.trials) == ("alone", 1, {})
    assert f" alone; in {steps} steps a split saves at most " in chosen.headline
    assert chosen.headline.startswith("Layout: worker:") and "; chosen in " in chosen.headline
    assert chosen.plan.seconds > 0 and not chosen.is_measured


@on_workers
@parametrize("steps", [None, 10**9], first=[10**9])
def test_a_long_training_is_measured(two, unmeasured, steps):
    with pytest.raises(pytest.fail.Exception, match="nothing is to be measured"):
        auto.choose(build, two, {"batch": batch}, steps=steps)


@on_workers
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_a_time_limit_is_kept(two, seconds, monkeypatch):
    """Whatever would take longer; the fastest device alone is used, and why is said."""
    race = trying.race
    monkeypatch.setattr(trying, "race", lambda *args, **options: race(*args, **options | {"least": 10**9}))
    monkeypatch.setattr(trying, "race_seconds", lambda *args: 0.0)
    begin = time.monotonic()
    chosen = auto.choose(build, two, {"batch": batch}, seconds=seconds)
    assert time.monotonic() - begin < seconds + 20
    assert (chosen.name in ("alone", "first alone"), len(chosen.plan.devices)) == (True, 1)
    no_time = f"there was no time to try a split; set measure_seconds above {seconds:g}"
    assert no_time in chosen.headline or "no split is predicted to be faster" in chosen.headline


@on_workers
def test_where_there_is_no_time_to_measure_rates_are_estimated(two, monkeypatch):
    def slow(*args, **kwargs):
        raise OutOfTimeError

    monkeypatch.setattr(calibration, "calibrate", slow)
    monkeypatch.setattr(microbenchmarks, "HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})
    monkeypatch.setattr(trying, "_TURN_SECONDS", 0.01)
    chosen = auto.choose(build, two, {"batch": batch})
    assert "there was no time to measure the devices on the program; their rates are estimated" in chosen.lines
    assert chosen.machines.link_between(0, 1).bytes_per_second > 1e6
    with tf.Graph().as_default():
        speeds = calibration.speeds(build(), chosen.machines)
    assert all(speed > 0 for speed in speeds)


@on_workers
def test_what_does_not_fit_alone_is_divided_even_without_time(two):
    limits = dict.fromkeys(two.devices, 3.5e5)
    chosen = auto.choose(build, two, {"batch": batch}, memory_bytes=limits, seconds=0.01)
    assert chosen.name == "plan" and max(chosen.plan.memory_bytes) <= 3.5e5
    assert "no device alone has the memory for the whole batch; there was no time to try it" in chosen.headline
    for names in (None, {"batch"}):  # the batch alone leaves the weights whole
        limits = dict.fromkeys(two.devices, 4e5)
        with contextlib.nullcontext() if names is None else pytest.raises(NoAssignmentError):
            auto.choose(build, two, {}, names=names, memory_bytes=limits, seconds=0.01)


@on_workers
def test_of_two_devices_alone_the_faster_one_wins(two, monkeypatch):
    """Both devices are tried if the first figure and the measurement name different ones as the fastest."""
    slow, fast = Machine(two.devices[0], 1e9, 1e8), Machine(two.devices[1], 6e10, 1e10)
    monkeypatch.setattr(calibration, "calibrate", lambda *args, **kwargs: Machines((slow, fast)))
    monkeypatch.setattr(quick, "measure_rates", lambda cluster: dict(zip(two.devices, (2e10, 1e10), strict=True)))
    monkeypatch.setattr(
        auto,
        "_candidates",
        lambda *args: {"alone": make_plan(1e-3, two.devices[1:]), "plan": make_plan(5e-4, two.devices)},
    )
    monkeypatch.setattr(trying, "_TURN_SECONDS", 0.01)
    chosen = auto.choose(build, two, {})
    assert list(chosen.trials) == ["first alone", "alone", "plan"]
    assert [plan.split(" a step")[0].split(",")[0] for plan in chosen.lines[:2]] == [
        "tried: worker:0/cpu:0 alone",
        "tried: worker:1/cpu:0 alone",
    ]


def make_plan(seconds, devices=("a",)):
    return Plan(devices, Layout([("all", len(devices))], ()), seconds, ("a", 1.0), 0.0, (), (0,) * len(devices), {})


class FakeTrial:
    """A trial whose steps take no time, of which so many can be run."""

    def __init__(self, seconds, count=math.inf):
        self.seconds, self.count, self.devices = seconds, count, ("cpu:0",)

    def run(self):
        self.count -= 1
        if self.count < 0:
            raise OutOfTimeError
        return self.seconds


@pytest.mark.parametrize(("count", "rounds"), [(math.inf, 5), (2, 0), (3, 1), (4, 2), (5, 3), (8, 5)])
def test_only_complete_rounds_count(count, rounds):
    plans = {"alone": make_plan(1.0), "plan": make_plan(0.8, ("a", "b"))}
    opened = {"alone": FakeTrial(1.0), "plan": FakeTrial(0.8, count)}
    trials = trying.race(build, None, plans, opened=opened)
    assert {name: len(times) for name, times in trials.items()} == (dict.fromkeys(plans, rounds) if rounds else {})


def raced(machines, seconds, **changes):
    """Return the choice between a device alone, which takes a second, and a plan, if no trial ends in time."""
    cluster = Cluster.local(["cpu:0", "cpu:1"])
    options = {"seconds": 30.0, "may_extend": False, "steps": None, "cache_dir": None, "is_busy": False, **changes}
    search = auto._Search(build, cluster, {}, None, {}, bar=Bar(), **options)
    trial, figure = FakeTrial(1.0), quick.Figure({"cpu:0": 2.0, "cpu:1": 1.0}, 1.0, 1.0)
    candidates = {"alone": make_plan(1.0, ("cpu:0",)), "plan": make_plan(seconds, cluster.devices)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trying, "race", lambda *args, **kwargs: {})
        return search._raced(candidates, machines, trial, figure)


class Bar:
    def set_description(self, text):
        self.text = text

    def update(self, count=1):
        pass


MEASURED = Machines((Machine("cpu:0", 1e9, 1e9, factors={"product": 1.1}), Machine("cpu:1", 1e9, 1e9)))


@pytest.mark.parametrize(("seconds", "name"), [(0.7, "plan"), (0.8, "plan"), (0.85, "alone"), (1.2, "alone")])
def test_without_time_for_trials_a_large_predicted_gain_decides(seconds, name):
    """Predictions are wrong by at most 15 % in 147 of 154 layouts, but only of devices that were measured."""
    chosen = raced(MEASURED, seconds)
    assert (chosen.name, chosen.trials) == (name, {})
    assert ("there was no time to try it" in chosen.reason) == (name == "plan")
    assert raced(MACHINES, seconds).name == "alone"


def test_no_trial_begins_without_time_for_a_round(monkeypatch):
    monkeypatch.setattr(trying, "race_seconds", lambda *args: 9.0)
    monkeypatch.setattr(trying, "race", lambda *args, **kwargs: pytest.fail("there is no time"))
    with deadline.within(5.0):
        assert raced(MEASURED, 0.7).name == "plan"


@pytest.mark.parametrize(
    ("steps", "measure_seconds", "expected"),
    [(None, None, 30.0), (100, None, 30.0), (2000, None, 80.0), (10**6, None, 120.0), (10**6, 5.0, 5.0)],
)
def test_a_long_training_has_more_time_to_choose(steps, measure_seconds, expected, monkeypatch):
    """Steps of two seconds: 2 % of the training, at most two minutes, unless the user sets the limit."""
    cluster, limits = Cluster.local(["cpu:0", "cpu:1"]), []
    rates = {"cpu:0": 2e10, "cpu:1": 2e10}
    figure = quick.Figure(rates, 2.0, 0.1)
    monkeypatch.setattr(auto, "representatives", lambda devices: {device: device for device in devices})
    monkeypatch.setattr(quick, "measure_rates", lambda cluster: rates)
    monkeypatch.setattr(quick, "whole_step", lambda *args: contextlib.nullcontext((None, figure)))
    monkeypatch.setattr(auto._Search, "_not_worth", lambda *args: None)

    def find(self, trial, figure):
        limits.append((self.seconds, deadline.seconds_left()))
        return choice.Choice("alone", {"alone": make_plan(1.0)}, MACHINES, {})

    monkeypatch.setattr(auto._Search, "_find", find)
    auto.choose(build, cluster, {}, steps=steps, seconds=measure_seconds)
    ((limit, left),) = limits
    assert limit == expected and left <= expected


def test_a_search_that_runs_out_of_time_gives_the_best_so_far():
    with tf.Graph().as_default():
        graph = build()
        whole, searched = planning.find(graph, MACHINES), []
        real = deadline.check
        for calls in (0, 1, 3, 6):
            left = itertools.count(calls, -1)

            def check(left=left):
                if next(left) <= 0:
                    raise OutOfTimeError
                real()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(deadline, "check", check)
                searched.append(planning.find(graph, MACHINES))
    assert searched[0].devices == ("a",)
    seconds = [plan.seconds for plan in searched]
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] >= whole.seconds - 1e-12


def make_layer(name, along, sizes, seconds, kind="batch"):
    count = len(sizes)
    return LayerPlan(
        name, {along: sizes} if along else {}, (seconds,) * count, (0,) * count, along, kind if along else ""
    )


CONVOLUTIONS = [make_layer("conv1", "conv1/batch", (22, 10), 0.1), make_layer("conv2", "conv2/batch", (22, 10), 0.2)]
WHOLE = make_layer("loss", "", (0, 0), 0.9)
FILTERS = [
    make_layer("conv3", "conv3/filters", (45, 19), 0.1, "outputs"),
    make_layer("conv4", "conv4/filters", (180, 76), 0.3, "outputs"),
]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([*CONVOLUTIONS, WHOLE], "batch 22+10 of 32"),
        ([*CONVOLUTIONS, FILTERS[0]], "batch 22+10 of 32 and 1 more split"),
        ([*CONVOLUTIONS, *FILTERS], "filters 180+76 of 256 and 1 more split"),
        (
            [*CONVOLUTIONS, *FILTERS, make_layer("conv5", "conv5/filters", (256, 256), 0.1, "outputs")],
            "filters 180+76 of 256 and 2 more splits",
        ),
        ([make_layer("conv", "conv/kernel/3", (42, 18), 0.1, "outputs")], "conv/kernel/3 42+18 of 60"),
        ([WHOLE], ""),
    ],
)
def test_the_split_with_the_most_work_is_described(layers, text):
    plan = dataclasses.replace(make_plan(0.5, ("a", "b")), layers=tuple(layers))
    assert choice.describe_split(plan) == text


def test_of_two_mesh_axes_the_headline_names_one():
    layout = Layout("rows:2;columns:2", "batch:rows;units:columns")
    plan = Plan(
        tuple("abcd"), layout, 0.5, ("a", 1.0), 0.0, (make_layer("dense", "batch", (22, 10), 0.1),), (0,) * 4, {}
    )
    assert choice.describe_split(plan) == "batch 22+10 of 32 over rows"


SPLIT = dataclasses.replace(make_plan(0.8, ("a", "b", "c")), layers=(make_layer("dense", "batch", (22, 6, 4), 0.1),))
TRIALS = {"alone": (1.0, 1.2, 1.1), "plan": (1.0, 1.1, 0.9)}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            choice.Choice("batch", {"batch": make_plan(0.5, ("a", "b"))}, MACHINES, {}, "there was no time to try it"),
            "Layout: batch on a, b; no device alone has the memory for the whole batch; there was no time to try it",
        ),
        (
            choice.Choice(
                "plan", {"alone": make_plan(1.0), "plan": SPLIT}, MACHINES, {}, "there was no time to try it"
            ),
            "Layout: batch 22+6+4 of 32 on a, b, c; predicted 1.25x faster than a alone; there was no time to try it",
        ),
        (
            choice.Choice("plan", {"alone": make_plan(1.0), "plan": SPLIT}, MACHINES, TRIALS),
            "Layout: batch 22+6+4 of 32 on a, b, c; 1.10x faster than a alone (predicted 1.25x)",
        ),
        (
            choice.Choice(
                "plan", {"alone": make_plan(1.0), "plan": SPLIT}, MACHINES, {"alone": (1.0,), "plan": (1.05,)}
            ),
            "Layout: batch 22+6+4 of 32 on a, b, c; 0.95x as fast as a alone (predicted 1.25x)",
        ),
        (
            choice.Choice("alone", {"alone": make_plan(1.0)}, MACHINES, {"alone": (1.0, 1.0)}),
            "Layout: a alone",
        ),
        (
            choice.Choice(
                "alone", {"alone": make_plan(1.0), "plan": SPLIT}, MACHINES, {"alone": (1.0, 1.0), "plan": (1.2, 1.3)}
            ),
            "Layout: a alone; the best split was 0.80x as fast (predicted 1.25x)",
        ),
    ],
)
def test_what_was_chosen_is_said(found, line):
    assert choice.describe_choice(found) == line


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1.9, False), (4.0, False), (4.1, True), (80.0, True)])
def test_a_busy_machine_is_said(load, warned, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert bool(choice.busy_warning()) == warned
    if warned:
        assert f"busy (load average {load:.1f} on 4 cores)" in choice.busy_warning()
    monkeypatch.delattr(os, "getloadavg")
    assert not choice.busy_warning()


def test_devices_by_a_first_figure(monkeypatch):
    """Predict speeds in the ratio of matrix products; the fastest needs the measured step time."""
    monkeypatch.setattr(calibration, "memory_limits", lambda cluster, session: {"cpu:0": 5e9, "cpu:1": None})
    cluster, rates = Cluster.local(["cpu:0", "cpu:1"]), {"cpu:0": 1e10, "cpu:1": 4e10}
    with tf.Graph().as_default():
        graph = build()
        guess = calibration.guess(graph, cluster, rates)
        assert guess.fastest == "cpu:1" and guess.step_seconds > 0
        figure = quick.Figure(rates, step_seconds=0.25, build_seconds=1.0)
        machines = calibration.estimate(graph, cluster, figure, with_links=False)
        assert [machine.memory_bytes for machine in machines.devices] == [5e9, None]
        assert calibration.speeds(graph, machines) == pytest.approx((1.0, 4.0))


@on_workers
def test_on_a_busy_machine_the_first_of_those_nearly_as_fast_is_used(two, unmeasured, monkeypatch):
    monkeypatch.setattr(auto, "busy_warning", lambda: "busy")
    for rates, number in (((2e10, 3e10), 0), ((1e10, 3e10), 1), ((3e10, 1e10), 0)):
        monkeypatch.setattr(quick, "measure_rates", lambda cluster, r=rates: dict(zip(two.devices, r, strict=True)))
        chosen = auto.choose(build, two, {}, steps=1)
        assert (chosen.plan.devices, chosen.warning) == (two.devices[number : number + 1], "busy")


@on_workers
@pytest.mark.full
def test_rates_of_matrix_products(two):
    rates = quick.measure_rates(two)
    assert list(rates) == list(two.devices)
    assert all(1e8 < rate < 1e13 for rate in rates.values())
    with deadline.within(0.0), pytest.raises(OutOfTimeError):
        quick.measure_rates(two)
