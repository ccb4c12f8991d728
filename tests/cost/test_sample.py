"""Many devices: a few that stand for all cost what all of them cost, and no more is worked out for thousands."""

import collections
import itertools
import math

import pytest
from dense_steps import step

from mtf_hetero import tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cost import sample, transfers, work
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.model import AXIS, Model
from mtf_hetero.cost.sample import EXACT, Sample, crowd_by_kind, crowds_by_kind, crowds_for
from mtf_hetero.cost.transfers import sketch
from mtf_hetero.layout import Layout
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import show, verdict
from mtf_hetero.planner.planning import describe, find
from mtf_hetero.planner.space import Space

LINK = Link(1e-5, 1e10)


def make_machines(*counts, link=LINK):
    """So many devices of each of a few kinds, whose processors messages keep busy."""
    devices = [
        Machine(f"{kind}:{number}", rate * 1e12, rate * 1e11, None, 1e-5, 1e-11, 1e-7)
        for kind, rate, count in zip("abc", (6, 3, 1), counts)
        for number in range(count)
    ]
    return Machines(tuple(devices), link)


def conv_net(batch=64, name="lenet"):
    """A training step of a CNN."""
    return build_step(MODELS[name], batch, "momentum")


def make_space(graph, machines, subsets=None):
    """Its layouts, with each device priced, or a few for all."""
    shape = [(AXIS, len(machines.devices))]
    return Space(Model(graph, machines, None if subsets is None else crowds_by_kind(machines, shape, subsets)))


@pytest.fixture(scope="module", params=[(12,), (5, 8, 2), pytest.param((16, 16), marks=pytest.mark.full)], ids=str)
def both(request):
    """Each device priced, and a few for all; and what some layouts split."""
    machines = make_machines(*request.param)
    count = len(machines.devices)
    subsets = [range(request.param[0]), range(count)]
    with tf.Graph().as_default():
        graph = conv_net(256, "vgg11")
        exact, few = make_space(graph, machines), make_space(graph, machines, subsets)
        menus = exact.menus(subsets)
        ways = [splits for family in exact.largest(6) if (splits := exact.of_family(family, menus))]
        first = {name: menus[name][0] for name in ways[0]}  # among the first kind alone
        mixed = collections.ChainMap(*ways[:2])
        mixed = {name: split for name, split in mixed.items() if exact.is_allowed({**ways[0], name: split})}
        space = "height", "width"
        yield exact, few, [way for way in (*ways, first, mixed) if not any(x in " ".join(way) for x in space)]


def test_the_vectors_are_the_same(both):
    exact, few, _ = both
    subsets = [range(3), range(len(exact.model.machines.devices))]
    assert exact.menus(subsets) == few.menus(subsets)


def test_a_step_takes_what_it_takes_where_each_device_is_priced(both):
    exact, few, ways = both
    assert few.model.crowd.is_sample or len(few.model.machines.devices) < 16
    for splits in ways:
        every, sampled = (space.model.seconds(space.layout(splits)) for space in (exact, few))
        assert sampled == pytest.approx(every, rel=0.03)


def test_as_much_is_sent_in_as_many_messages(both):
    exact, few, ways = both
    for splits in ways:
        every = transfers.of_step(exact.model.operations, exact.layout(splits))
        layout = few.model.priced(few.layout(splits))
        if not isinstance(layout, Sample):
            continue
        sampled = transfers.of_step(few.model.operations, layout)
        total = sum(t.bytes * t.times * layout.crowd.members[t.source] for t in sampled)
        messages = sum(t.messages * t.times * layout.crowd.members[t.source] for t in sampled)
        assert total == pytest.approx(sum(t.bytes for t in every), rel=0.02)
        assert messages == pytest.approx(len(every), rel=0.02)


def test_what_an_operation_costs(both):
    exact, few, ways = both
    for unit, splits in itertools.product(exact.model.families.units, ways):
        own = {name: split for name, split in splits.items() if name in unit.names}
        if own:
            expected = exact.model.sequential_seconds(unit.operations, exact.layout(own))
            assert few.model.sequential_seconds(unit.operations, few.layout(own)) == pytest.approx(expected, rel=0.03)


def test_a_height_is_about_right():
    """At the ends of a group the neighbours are others; the ones in its middle are taken for all."""
    machines = make_machines(16)
    with tf.Graph().as_default():
        graph = conv_net()
        exact, few = make_space(graph, machines), make_space(graph, machines, [range(16)])
        splits = next(exact.of_family(f, exact.menus()) for f in exact.families if "height" in f)
        every, sampled = (space.model.seconds(space.layout(splits)) for space in (exact, few))
    assert splits and sampled == pytest.approx(every, rel=0.15)


def test_those_that_stand_and_for_whom():
    crowd = crowd_by_kind(["a"] * 8 + ["b"] * 3)
    assert crowd.shown == (0, 1, 4, 8, 9, 10) and sum(crowd.counts) == sum(crowd.members) == 11
    assert crowd.groups == (tuple(range(8)), (8, 9, 10)) and crowd.is_sample
    assert not crowd_by_kind("abcdefghijk").is_sample and not sample.unsampled(3).is_sample


def test_sizes_that_differ_within_a_kind_are_priced_one_by_one():
    with tf.Graph().as_default():
        graph = step(batch=256)[0]
        uneven = {"batch": (*range(1, 16), 256 - 120)}
        even = Layout("all:16", "batch:all", (), {"batch": (16,) * 16})
        layout = Layout("all:16", "batch:all", (), uneven)
        assert not crowds_for(make_machines(16), layout)[0].is_sample
        assert crowds_for(make_machines(16), even)[0].is_sample
        plan = describe(graph, make_machines(16), layout)
        assert plan.memory_bytes[0] < plan.memory_bytes[15]


def test_devices_with_links_of_their_own_stand_for_themselves():
    machines = make_machines(16)
    own = Machines(machines.devices, LINK, {("a:3", "a:4"): Link(1e-6, 1e11)})
    (crowd,) = crowds_by_kind(own, [(AXIS, 16)], [range(16)])
    assert {3, 4} <= set(crowd.shown)


def made_values(monkeypatch, space, splits):
    """Return the number of values in a sketch of a step."""
    made = []
    keep = sketch.Sketch.value

    def value(self, *arguments, **options):
        made.append(1)
        return keep(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sketch.Sketch, "value", value)
        space.model.timeline(space.layout(splits))
    return len(made)


def test_thousands_take_no_more_work_than_tens(monkeypatch):
    with tf.Graph().as_default():
        graph = conv_net(batch=8192)
    counts = []
    for count in (16, 4096):
        space = make_space(graph, make_machines(count), [range(count)])
        splits = space.of_family(space.families[0], space.menus())
        counts.append(made_values(monkeypatch, space, splits))
    assert counts[0] == counts[1]


def test_a_plan_of_many_names_all_of_them():
    with tf.Graph().as_default():
        plan = find(step(batch=65536, inputs=256, units=(512,))[0], make_machines(20, 20, link=Link(1e-7, 1e12)))
    assert len(plan.devices) > EXACT and len(plan.layout.mesh_shape) == 1
    for _, sizes in plan.layout.sizes:
        assert len(sizes) == len(plan.devices)
        assert max(sizes[:20]) - min(sizes[:20]) <= 1
    assert plan.seconds < plan.alone[1]
    text = f"{verdict.verdict(plan)}\n{show.table(plan)}"
    assert "Split over a:0-19, b:0-19: " in text and "a:1," not in text and max(map(len, text.splitlines())) <= 80


def test_slices_and_amounts_of_all_processors_are_those_of_each():
    with tf.Graph().as_default():
        space = make_space(conv_net(), make_machines(2, 2))
    for family in space.families:
        layout = space.layout(space.of_family(family, space.menus([range(4), range(1)])))
        for op in space.model.operations:
            for x in op.outputs:
                assert layout.slice_shapes(x.shape) == [tuple(layout.slice_shape(x.shape, pnum)) for pnum in range(4)]
            amounts = [work.of_operation(op, layout, pnum) for pnum in range(4)]
            sizes = [[math.prod(layout.slice_shape(x.shape, p)) for x in (*op.inputs, *op.outputs)] for p in range(4)]
            moved = [sum(4 * size for size in of_processor) for of_processor in sizes]
            assert all(own[1] in (0, expected) for own, expected in zip(amounts, moved, strict=True))
