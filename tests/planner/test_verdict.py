"""The verdict on a plan, and the tables below it: sentences, thresholds, equal rows as one, and 80 columns."""

import dataclasses

import pytest
from dense_steps import FAST, LINKS, SLOW, step
from plans import ALONE, DEEP, MANY, MIXED, PLANS, STRANGERS, THREE, layer

from mtf_hetero import tf
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.planner import left_out, show, verdict
from mtf_hetero.planner.fitting import repeated_search
from mtf_hetero.planner.plan import BANDWIDTH, SPEED, LayerPlan, LeftOut, RunnerUp, Threshold
from mtf_hetero.planner.planning import Planner

NARROW = Machines((FAST, SLOW), LINKS["slow link"])
SPLIT = "Split over gpu:0-1, cpu:0: 14.00 s per step"


@pytest.mark.parametrize(
    ("plan", "changes", "text"),
    [
        (ALONE, {}, "Use a device with a long name alone: 4.00 s per step."),
        (THREE, {}, f"{SPLIT}, 1.5x faster than gpu:0 alone."),
        (MANY, {}, "Split over V100:0-31, P100:0-31: 10.00 s per step, 1.5x faster than V100:0 alone."),
        (THREE, {"alone": ("gpu:0", 7.0)}, f"{SPLIT}, 2.0x slower than gpu:0 alone."),
        (THREE, {"alone": ("gpu:0", 14.01)}, f"{SPLIT}, as fast as gpu:0 alone."),
        (THREE, {"alone_fits": False}, f"{SPLIT}. No device alone has the memory for the whole batch."),
    ],
)
def test_the_first_sentence(plan, changes, text):
    plan = dataclasses.replace(plan, **changes)
    assert verdict.sentence(plan) == text
    assert verdict.verdict(plan).replace("\n", " ").startswith(f"{text} Memory per device: ")


def test_devices_left_out_are_named():
    link, speed = Threshold(BANDWIDTH, 4.1, ("b:0",)), Threshold(SPEED, 1.6, ("c",), is_exact=False)
    others = [LeftOut("b:0-1", "b:0", 1.0, None, link), LeftOut("c", "c", 2.0, None, speed)]
    others.append(LeftOut("e", "e", None, None, None))
    offered = [*THREE.devices, "b:0", "b:1", "c", "d", "e"]
    assert verdict.sentences(THREE, offered, others)[1:] == [
        "b:0 would pay off from 4.1 Gbit/s on.",
        "c would pay off at 1.6x its speed, or less.",
        "e alone is short of memory.",
        "Not used: d.",
    ]
    assert verdict.sentences(THREE, offered)[1:] == ["Not used: b:0-1, c, d, e."]
    for seconds, text in ((14.2, "14.20 s"), (13.8, "13.80 s, less than 2 % faster"), (0.5, "500 ms")):
        together = RunnerUp(("gpu:0", "d"), seconds, 0.1)
        plan = dataclasses.replace(THREE, runner_up=together)
        said = verdict.sentences(plan, offered, others)[-2:]
        assert said == ["Not used: d.", f"The fastest layout with d takes {text}."]
    table = show.left_out_table([*others, LeftOut("d", "d", 2.5, together, None)])
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["not", "b:0-1", "c", "e", "d"]
    assert "too large" in table and "500 ms" in table and "from 4.1 Gbit/s on" in table and "unknown" in table


@pytest.mark.parametrize("name", PLANS)
def test_tables_have_80_columns(name):
    text = f"{show.table(PLANS[name])}\n{verdict.verdict(PLANS[name], [*PLANS[name].devices, *'pqrstuvw'])}"
    assert max(map(len, text.splitlines())) <= 80


def test_layers_that_are_split_alike_share_a_row():
    first, until, second, _, whole = (line.split() for line in show.table(DEEP).splitlines()[2:])
    assert first[:5] == ["stage/block0/conv", "to", "batch", "62+27+39", "50"]
    assert until == ["stage/block49/conv", "(50)"] and second[:4] == ["stage/block50/conv", "to", "filters", "62+27+39"]
    assert whole[:2] == ["all", "(60)"]
    assert len(show.table(MIXED).splitlines()) == 70 + 3
    lines = show.table(MANY).splitlines()
    assert len(lines) == 4 and "conv0 to conv4 (5)  batch 32 x 3+32 x 1" in lines[3]
    assert "each device" in show.table(STRANGERS)


def test_sizes_of_layers_that_differ_are_percentages():
    layers = (layer("conv1", "filters", (40, 20, 0)), layer("conv2", "filters", (80, 40, 0)))
    assert "conv1 to conv2 (2)  filters 67+33+0 %" in show.table(dataclasses.replace(THREE, layers=layers))


def test_cells_are_read_at_once():
    split = {"batch": (5, 2, 1), "fc1/kernel/1": (30, 10, 0)}
    imported = LayerPlan("fc1", split, (1e-3,) * 3, (0,) * 3, "fc1/kernel/1", "outputs")
    on_one = layer("conv2", "filters", (0, 20, 0))
    lines = show.table(dataclasses.replace(THREE, layers=(imported, on_one))).splitlines()
    assert [" ".join(line.split()[:3]) for line in lines[2:4]] == ["fc1 outputs 30+10+0", "conv2 filters on"]
    assert "filters on gpu:1 " in lines[3]
    assert [show.number_text(x) for x in (1234.5, 0.5, 1e-9, 0)] == ["1230", "0.5", "<0.001", "0"]
    sizes = "units 933+265+187+396+1525+282+321+187"
    assert show._broken(sizes, 26).split("\n") == ["units 933+265+187+396+", "1525+282+321+187"]
    assert show._shortened("convnext_base_stage_2_block_14_pointwise_conv_1") == "convnext...14_pointwise_conv_1"


def test_layers_whose_products_are_on_each_device_may_have_splits_of_their_own():
    whole = [layer(name, None, (1, 1, 1)) for name in ("one", "two")]
    split = dataclasses.replace(whole[1], split={"height": (1, 2, 3)})
    lines = show.table(dataclasses.replace(THREE, layers=(whole[0], split))).splitlines()
    assert [" ".join(line.split()[:-3]) for line in lines[2:4]] == ["one whole on each", "two height 1+2+3"]


@pytest.fixture(scope="module")
def narrow():
    """The search for a network that one device computes alone where links are slow."""
    with tf.Graph().as_default():
        planner = Planner(step(batch=256)[0])
        yield left_out.Search(planner, planner.find)


def test_links_from_which_another_device_pays_off(narrow):
    """Just at the threshold a new plan uses it, and with the next smaller number it does not."""
    machines, search = dataclasses.replace(NARROW, link=Link(1e-6, 1e7)), narrow.find
    plan = search(machines)
    assert plan.devices == ("fast",)
    assert plan.runner_up is not None and "slow" in plan.runner_up.devices
    quick = repeated_search(narrow.planner, lambda: pytest.fail("it is lowered"), machines, plan)
    (other,) = left_out.devices_left_out(quick, machines, plan, seconds=600)
    least = other.threshold
    assert least is not None and least.kind == BANDWIDTH and least.devices == ("slow",) and least.is_exact
    assert float(f"{least.value:.2g}") == least.value
    below = left_out._value(left_out._index(least.value) - 1)
    assert 0.9 * least.value <= below < least.value
    together = search(left_out.with_bandwidth(machines, least.value))
    assert together.devices == ("fast", "slow") and 1.02 * together.seconds < plan.seconds
    assert search(left_out.with_bandwidth(machines, below)).devices == ("fast",)
    assert other.alone_seconds == pytest.approx(search(machines.only([1])).seconds)


def test_a_speed_at_which_another_device_pays_off(narrow):
    """No bandwidth helps: messages take longer than the step."""
    machines, search = dataclasses.replace(NARROW, link=Link(1.0, 1e12)), narrow.find
    plan = search(machines)
    least = left_out.threshold(narrow, machines, plan, seconds=600)
    assert least is not None and least.kind == SPEED and least.is_exact
    below = left_out._value(left_out._index(least.value) - 1)
    assert search(left_out.with_speed(machines, plan, least.value)).devices == ("slow",)
    assert search(left_out.with_speed(machines, plan, below)).devices == ("fast",)


def test_no_time_is_no_exact_threshold(narrow):
    plan = narrow.find(NARROW)
    bound = left_out.threshold(narrow, NARROW, plan, seconds=0)
    assert bound is not None and not bound.is_exact
    assert verdict.threshold_text(dataclasses.replace(bound, value=float("inf"))) == "at a higher speed"
    assert left_out.devices_left_out(narrow, NARROW, plan, seconds=0) == ()
    both = narrow.find(dataclasses.replace(NARROW, link=LINKS["fast link"]))
    assert len(both.devices) == 2 and left_out.threshold(narrow, NARROW, both, seconds=60) is None


def test_a_slower_device_alone_where_it_has_the_memory(narrow):
    (needed,) = narrow.find(NARROW).memory_bytes
    small = Machine("small", 6e10, 1e10, 0.9 * needed)
    plan = narrow.find(Machines((small, SLOW), LINKS["slow link"]))
    assert plan.devices == ("slow",) and plan.alone[0] == "slow" and plan.alone_fits


@pytest.mark.parametrize("value", [0.003, 0.096, 1, 1.05, 4.1, 9.9, 10, 12.3, 99, 100, 1e5])
def test_numbers_of_two_digits(value):
    index = left_out._index(value)
    assert left_out._value(index) <= value < left_out._value(index + 1)
    assert float(f"{left_out._value(index):.2g}") == left_out._value(index)
