"""Meshes of two axes: searched exactly, priced and planned like those of one."""

import itertools
import math

import numpy as np
import pytest
from dense_steps import step
from tiers import parametrize

from mtf_hetero import mtf, placement, tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import transfers
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.cost.sample import Sample, crowds_by_kind
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import finding, outline, picture, search, show, verdict
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner import space as space_lib
from mtf_hetero.planner.explain import explain
from mtf_hetero.planner.planning import describe, find
from mtf_hetero.planner.space import Space, Split

SHAPE = (("rows", 2), ("columns", 2))
FAST_LINK = Link(1e-7, 1e12)


def make_machines(*rates, link=FAST_LINK):
    """A device for each rate, "cpu:0", ..."""
    return Machines(tuple(Machine(f"cpu:{n}", r * 1e10, r * 2e9, None, 1e-6) for n, r in enumerate(rates)), link)


def grid(graph, machines, shape=SHAPE):
    """The layouts of a step on a mesh of two axes."""
    return Space(Model(graph, machines, crowds_by_kind(machines, shape, ())), shape)


@parametrize("seed", range(4), first=[0, 1])
def test_the_search_is_as_good_as_trying_all(seed):
    """The sum over its tables is that of the best of all layouts, each priced as a whole."""
    rng = np.random.default_rng(seed)
    batch, inputs, units = (int(2 ** rng.integers(2, 7)) for _ in range(3))
    rates = sorted(rng.uniform(1, 6, 4), reverse=True)
    link = Link(10 ** rng.uniform(-7, -4), 10 ** rng.uniform(7, 12))
    with tf.Graph().as_default():
        space = grid(step(batch, inputs, (units, 6)[: 1 + seed % 2])[0], make_machines(*rates, link=link))
        menus = {name: splits for name, splits in space.menus().items() if splits}
        names = list(menus)[:6]
        menus = {name: menus[name] for name in names}
        found = search.minimize(*space.tables(menus, [1.0]))
        best = math.inf
        for choices in itertools.product(*([None, *menus[name]] for name in names)):
            sizes = {name: choice for name, choice in zip(names, choices, strict=True) if choice is not None}
            if space.is_allowed(sizes):
                layout = space.layout(sizes)
                units = space.model.families.units
                best = min(best, sum(space.model.sequential_seconds(unit.operations, layout) for unit in units))
    assert found.cost == pytest.approx(best)


def test_a_tensor_is_split_over_both_axes_and_no_two_names_over_one():
    with tf.Graph().as_default():
        space = grid(step()[0], make_machines(2, 2, 1, 1))
    sizes = {"batch": Split(0, (43, 21)), "inputs": Split(1, (24, 24))}
    assert space.is_allowed(sizes) and not space.is_allowed({**sizes, "inputs": Split(0, (24, 24))})
    layout = space.layout(sizes)
    assert layout.slice_shapes([mtf.Dimension("batch", 64), mtf.Dimension("inputs", 48)]) == [
        (43, 24),
        (43, 24),
        (21, 24),
        (21, 24),
    ]
    assert space.splits(layout) == sizes


def test_a_row_is_as_fast_as_its_slowest():
    with tf.Graph().as_default():
        space = grid(step(batch=300)[0], make_machines(2, 2, 2, 1))
    rows, columns = space.menus()["batch"]
    assert isinstance(rows, Split) and isinstance(columns, Split)
    assert (rows.axis, columns.axis) == (0, 1) and rows.sizes == columns.sizes
    assert rows.sizes == pytest.approx((200, 100), abs=2)


@pytest.fixture(scope="module")
def planned():
    """(graph, machines, plan on rows of 2) of dense layers, split by batch and by units."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        graph, *_ = step(batch=64)
        machines = make_machines(3, 3, 1, 1)
        space = grid(graph, machines)
        menus = space.menus()
        batch, units = (
            next(family for family in space.families if name in family) for name in ("batch", "dense1/outputs")
        )
        sizes = space.of_family(batch, menus, 0) | space.of_family(units, menus, 1)
        plan = describe(graph, machines, space.layout(sizes))
        yield graph, machines, plan


def test_a_plan_is_placed_from_its_file(planned, tmp_path):
    graph, *_, plan = planned
    path = tmp_path / "plan.json"
    plan_lib.save(plan, path)
    loaded = plan_lib.load(path)
    request = placement.Request(layout=loaded)
    layout = placement.place(request, Cluster.local(loaded.devices), lambda: graph, graph=graph).layout
    assert loaded == plan and layout.mesh_text == "rows:2;columns:2"
    assert {layout.axis_name_of(name) for name, _ in layout.sizes} == {"rows", "columns"}


def test_all_that_is_said_of_a_plan(planned, tmp_path):
    graph, machines, plan = planned
    assert "batch" in show.table(plan) and "over rows" in show.table(plan)
    assert "cpu:0-3" in verdict.verdict(plan)
    rows = {row.name: row for row in outline.outline(plan).rows}
    assert all(len(row.bars) == 4 for row in rows.values())
    picture.draw(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000
    layers = explain(graph, machines, plan)
    assert layers and all(layer.seconds[layer.chosen] == 0.0 for layer in layers)
    assert "The step would take" in show.alternatives(layers)
    assert plan.memory_bytes[0] > plan.memory_bytes[2] and plan.memory_bytes[0] == plan.memory_bytes[1]


@pytest.mark.full
def test_two_axes_are_taken_where_they_win(monkeypatch):
    """The batch over four rows of the devices, and the height of its images over the two of a row."""
    with tf.Graph().as_default():
        graph = build_step(MODELS["lenet"], 256, "momentum")
        rates = (6, 6, 6, 6, 3, 3, 3, 3)
        devices = [Machine(f"cpu:{n}", r * 1e12, r * 1e11, None, 1e-5, 1e-11, 1e-7) for n, r in enumerate(rates)]
        monkeypatch.setattr(finding, "MOST_DEVICES", 0)  # of plans with slots, of which one is faster
        plan = find(graph, Machines(tuple(devices), Link(1e-6, 1e11)))
        monkeypatch.setattr(space_lib, "mesh_shapes", lambda count: [])
        on_one_axis = find(graph, Machines(tuple(devices), Link(1e-6, 1e11)))
    assert len(plan.layout.mesh_shape) == 2 and sorted(plan.devices) == [f"cpu:{n}" for n in range(8)]
    assert len(on_one_axis.layout.mesh_shape) == 1 and plan.seconds < 0.999 * on_one_axis.seconds


def test_a_few_stand_for_all_on_two_axes():
    machines = Machines(
        tuple(
            Machine(f"{k}:{n}", r * 1e12, r * 1e11, None, 1e-5, 1e-11, 1e-7)
            for k, r in (("a", 6), ("b", 3))
            for n in range(12)
        ),
        Link(1e-5, 1e10),
    )
    with tf.Graph().as_default():
        graph = build_step(MODELS["vgg11"], 256, "momentum")
        few = grid(graph, machines, (("rows", 2), ("columns", 12)))
        exact = Space(Model(graph, machines), few.mesh_shape)
        menus = few.menus()
        batch, filters = (next(f for f in few.families if name in f) for name in ("batch", "conv4_1/filters"))
        for one, other in ((batch, filters), (filters, batch)):
            sizes = few.of_family(one, menus, 0) | few.of_family(other, menus, 1)
            sampled = few.model.timeline(few.layout(sizes))
            every = exact.model.timeline(exact.layout(sizes))
            assert sampled.seconds == pytest.approx(every.seconds, rel=0.03)
            layout = few.model.priced(few.layout(sizes))
            assert isinstance(layout, Sample)
            total = sum(t.bytes * t.times * layout.crowd.members[t.source] for t in sampled.sent)
            assert total == pytest.approx(sum(t.bytes for t in every.sent), rel=0.03)
            assert isinstance(every.sent[0], transfers.Transfer)
