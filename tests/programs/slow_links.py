"""Pipelines that `auto` finds without a measurement: the devices have figures, and slow links between them."""

from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.planner import auto
from mtf_hetero.planner.choice import PLAN, Choice
from mtf_hetero.planner.fitting import find_fitting

SLOW = Link(1e-6, 1e5)


def plan_for_slow_links(monkeypatch, speeds):
    """Have `auto` plan for devices that make so many products of two in a microsecond."""

    def choose(build, cluster, recipes, **options):
        rated = zip(cluster.devices, speeds, strict=True)
        machines = Machines(tuple(Machine(name, 1e6 * speed, 1e15, None, 0.0) for name, speed in rated), SLOW)
        plan = find_fitting(build, machines)
        assert plan.layout.slots, "the plan is no pipeline"
        return Choice(PLAN, {PLAN: plan}, machines, {}, lines=("Layout: a pipeline",))

    monkeypatch.setattr(auto, "choose", choose)


def assert_pipeline(sizes, *devices):
    """Assert that each name of the batch, of {name: {device: size}}, is on one of some devices, and all are used."""
    runs = [{device for device, size in each.items() if size} for each in sizes.values()]
    assert all(len(run) == 1 for run in runs)
    assert set().union(*runs) == set(devices)
