"""Plans of the least price: as good as the best of all sets of devices, within a limit of seconds and the memory."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from dense_steps import FAST, LINKS, SLOW, step

from mtf_hetero import tf
from mtf_hetero.cost.devices_file import parse_devices
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.planner import answering, fitting, left_out, verdict
from mtf_hetero.planner.errors import TooSlowError
from mtf_hetero.planner.fitting import ShortOfMemoryError, find_fitting
from mtf_hetero.planner.objective import COST, FASTEST, Objective
from mtf_hetero.planner.planning import Planner
from mtf_hetero.planner.search import NoAssignmentError
from mtf_hetero.planner.subsets import Subsets, combinations

CHEAPEST = Objective(COST)


@pytest.fixture(scope="module")
def planner():
    with tf.Graph().as_default():
        yield Planner(step(batch=512, inputs=64, units=(128, 64))[0])


def priced(*pairs, link="fast link"):
    """Machines of (device, price) pairs, named a, b, c."""
    devices = [dataclasses.replace(m, name=name, price_per_hour=price) for name, (m, price) in zip("abcd", pairs)]
    return Machines(tuple(devices), LINKS[link])


def find_price(machines, plan):
    price = machines.by_name(plan.devices).price(plan.seconds)
    assert price is not None
    return price


def list_subsets(machines):
    count = len(machines.devices)
    return [some for size in range(1, count + 1) for some in itertools.combinations(range(count), size)]


def test_the_price_of_a_step():
    machines = parse_devices("2 x A100 at 1.10, T4 at 0.35")
    assert machines.price(3600) == pytest.approx(2.55)
    assert machines.only([2]).price(1800) == pytest.approx(0.175)
    assert parse_devices("A100 at 1.10, T4").price(1.0) is None


def test_the_device_with_the_least_price_for_the_step(planner):
    """SLOW needs about three times as long."""
    dear, cheap = priced((FAST, 4.0), (SLOW, 1.0)), priced((FAST, 2.0), (SLOW, 1.0))
    assert planner.find(dear, objective=CHEAPEST).devices == ("b",)
    found = planner.find(cheap, objective=CHEAPEST)
    assert found.devices == ("a",) and found.runner_up is None
    assert planner.find(dear).devices == planner.find(cheap).devices == ("a", "b")


def test_prices_change_no_plan_of_the_least_time(planner):
    machines = Machines((FAST, SLOW, dataclasses.replace(SLOW, name="other")), LINKS["fast link"])
    for price in (0.0, 0.1, 7.0):
        devices = dataclasses.replace(machines.devices[1], price_per_hour=price), *machines.devices[::2]
        assert planner.find(dataclasses.replace(machines, devices=devices)) == planner.find(machines.some([1, 0, 2]))


def test_devices_without_a_price_to_pay_are_used_for_their_time(planner):
    machines = priced((SLOW, 0.0), (SLOW, 0.0), (FAST, 1.0))
    found = planner.find(machines, objective=CHEAPEST)
    assert found.devices == ("a", "b") and found.seconds < planner.find(machines.only([0])).seconds


def test_a_limit_of_seconds_buys_devices(planner):
    machines = priced((SLOW, 1.0), (SLOW, 1.0), (FAST, 10.0))
    one, two, all_three = (planner.find(machines.only(range(count))).seconds for count in (1, 2, 3))
    for limit, devices in ((1.01 * one, ("a",)), (1.01 * two, ("a", "b")), (1.01 * all_three, ("a", "b", "c"))):
        found = planner.find(machines, objective=Objective(COST, limit))
        assert found.devices == devices and found.seconds <= limit
    with pytest.raises(
        TooSlowError, match=r"most_seconds is .*, but the fastest layout takes .* per step, on a, b, c; "
    ):
        planner.find(machines, objective=Objective(COST, 0.9 * all_three))
    with pytest.raises(TooSlowError) as too_slow:
        planner.find(machines, objective=Objective(COST, 1e-9))
    assert too_slow.value.fastest.seconds == pytest.approx(all_three, rel=1e-3)
    enough = float(str(too_slow.value).partition("; give ")[2].partition(" or more")[0])
    assert all_three <= enough <= 1.02 * all_three
    assert planner.find(machines, objective=Objective(COST, enough)).devices == ("a", "b", "c")


def test_the_limit_holds_for_corrected_sizes(planner):
    """Sizes are corrected, if only so a layout is fast enough."""
    machines = priced((FAST, 1.0), (SLOW, 0.5))
    rough, fine = (planner.find(machines, refines=refines).seconds for refines in (False, True))
    assert fine < rough
    objective = Objective(COST, math.sqrt(fine * rough))
    assert planner.find(machines, objective=objective, refines=False).seconds <= objective.most_seconds


def random_machines(seed, count, memory_bytes=None):
    """Devices whose prices are more or less in proportion to their speed."""
    rng, devices = np.random.default_rng(seed), []
    for number in range(count):
        speed, own = 10 ** rng.uniform(9, 11), memory_bytes and memory_bytes * rng.uniform(0.3, 1.1)
        price = (speed / 1e10) ** rng.uniform(0.6, 1.4)
        devices.append(Machine(f"d{number}", speed, speed * rng.uniform(0.05, 0.5), own, price_per_hour=price))
    return Machines(tuple(devices), Link(10 ** rng.uniform(-7, -5), 10 ** rng.uniform(9, 11)))


@pytest.mark.parametrize(
    ("count", "seed", "is_short"),
    [
        (3, 0, False),
        (3, 1, True),
        *(pytest.param(4, seed, seed % 2 == 1, marks=pytest.mark.full) for seed in range(2, 8)),
    ],
)
def test_as_good_as_the_best_of_all_sets(planner, count, seed, is_short):
    """The least price of the fastest plans for each set of devices, with limits that need more and more of them."""
    whole = planner.find(Machines((FAST,))).memory_bytes[0] if is_short else None
    machines, plans = random_machines(seed, count, whole), []
    for some in list_subsets(machines):
        try:
            plans.append(planner.find(machines.only(some)))
        except NoAssignmentError:
            assert is_short
    fastest = min(plan.seconds for plan in plans)
    for limit in (None, 2.0 * fastest, 1.2 * fastest):
        found = planner.find(machines, objective=Objective(COST, limit))
        best = min(find_price(machines, plan) for plan in plans if limit is None or plan.seconds <= limit)
        assert find_price(machines, found) <= best * (1 + 1e-9)
        assert found.seconds <= (limit or math.inf)


def test_no_step_is_faster_than_its_bound(planner):
    machines = dataclasses.replace(random_machines(1, 3), step_seconds=1e-3)
    subsets = Subsets(planner.model(machines), machines, CHEAPEST)
    for some in list_subsets(machines):
        seconds, bound = planner.find(machines.only(some), refines=False).seconds, subsets.least_seconds(some)
        assert bound == pytest.approx(seconds) if len(some) == 1 else bound < seconds


def test_the_cheapest_that_fits():
    """The cheapest device lacks memory for the batch at once, as the lowered graph has it."""

    def build():
        return step(batch=4096, units=(96, 64))[0]

    with tf.Graph().as_default():
        needed = find_fitting(build, Machines((FAST,))).memory_bytes[0]
    machines = priced((FAST, 4.0), (SLOW, 1.0), (SLOW, 1.5))
    short = machines.with_memory({"b": 0.7 * needed})
    assert find_fitting(build, machines, objective=CHEAPEST).devices == ("b",)
    found = find_fitting(build, short, objective=CHEAPEST)
    assert fitting.fits(found, short)
    least = min(
        find_price(short, plan)
        for plan in (find_fitting(build, short.only(some)) for some in ((0,), (1,), (2,), (1, 2)))
    )
    assert find_price(short, found) <= least * (1 + 1e-9)
    with pytest.raises(ShortOfMemoryError):
        find_fitting(build, machines.with_memory(dict.fromkeys("abc", 1e4)), objective=CHEAPEST)


def test_many_devices_and_no_more_than_needed():
    machines = parse_devices("16 x A100 at 1.10, 16 x T4 at 0.35", "nvlink")
    with tf.Graph().as_default():
        planner = Planner(step(batch=8192, inputs=512, units=(1024, 1024, 512))[0])
    alone = planner.find(machines, objective=CHEAPEST)
    assert len(alone.devices) == 1
    for times, most in ((2, 3), (3, 5)):
        found = planner.find(machines, objective=Objective(COST, alone.seconds / times))
        assert found.seconds <= alone.seconds / times and len(found.devices) <= most
        assert find_price(machines, found) > find_price(machines, alone)


def test_all_numbers_of_each_kind():
    assert combinations(["a", "b", "b"], [2, 1, 0]) == [(0,), (2,), (2, 0), (2, 1), (2, 1, 0)]
    assert len(combinations("abcd", range(4))) == 15


@pytest.mark.parametrize(("limit", "others"), [(None, (3.0, 0.5)), (10.0, (3.0, 0.5)), (10.0, (30.0, 0.5))])
def test_seconds_that_are_as_good(limit, others):
    objective, seconds = Objective(COST, limit), 9.0
    mine, theirs = priced((FAST, 1.0)), priced(*((SLOW, price) for price in others))
    same = objective.as_good(seconds, mine, theirs)
    key = objective.key(seconds, mine)
    assert objective.key(0.99 * same, theirs) < key < objective.key(1.01 * same, theirs)
    assert FASTEST.as_good(seconds, mine, theirs) == pytest.approx(seconds / 1.02)  # several must be 2 % faster
    assert FASTEST.as_good(seconds, theirs, theirs) == FASTEST.as_good(seconds, mine, mine) == seconds
    assert objective.key(math.inf, priced((FAST, 0.0))) > key


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (("money",), "objective is 'money'; it must be time or cost"),
        ((COST, 0), "most_seconds is 0; it must be a number greater than zero"),
        ((COST, "1"), "most_seconds is '1'; it must be a number greater than zero"),
        (
            ("time", 1.0),
            "most_seconds is 1.0, but the objective is time, which has no limit; leave most_seconds out, or",
        ),
    ],
)
def test_mistakes(values, problem):
    with pytest.raises(ValueError, match=problem):
        Objective(*values)


def test_each_device_needs_a_price(planner):
    with pytest.raises(ValueError, match="device 'V100' has no price per hour, which the objective cost needs of each"):
        planner.find(parse_devices("T4 at 0.35, V100"), objective=CHEAPEST)


def test_the_verdict_on_a_price(planner):
    machines = priced((FAST, 4.0), (SLOW, 1.0))
    one, both = planner.find(machines, objective=CHEAPEST), planner.find(machines)
    assert verdict.sentence(one).startswith("Use b alone: ") and verdict.sentence(one).endswith(
        "x slower than a alone."
    )
    own, fast = (
        verdict.units.price_text(1000 * price) for price in (find_price(machines, one), 4 * one.alone[1] / 3600)
    )
    assert verdict.price_text(one, machines) == f"1,000 steps cost {own}; on a alone, {fast}."
    assert verdict.price_text(both, machines).endswith(f"; on a alone, {fast}.")
    fastest = planner.find(machines.only([0]))
    assert verdict.price_text(fastest, machines) == f"1,000 steps cost {fast}."
    too_large = dataclasses.replace(both, alone_fits=False)
    assert verdict.price_text(too_large, machines).count("cost") == 1 and "alone" not in verdict.price_text(
        too_large, machines
    )
    assert verdict.price_text(one, priced((FAST, None), (SLOW, 1.0))) == ""


def test_when_devices_left_out_become_cheaper(planner):
    """Just at the threshold the device is cheapest, and with the next smaller speed it is not."""
    machines = priced((FAST, 4.0), (SLOW, 1.0), link="slow link")
    plan = planner.find(machines, objective=CHEAPEST)
    assert plan.devices == ("b",)

    def search(machines):
        return planner.find(machines, objective=CHEAPEST, refines=False)

    (other,) = left_out.devices_left_out(left_out.Search(planner, search, CHEAPEST), machines, plan, seconds=600)
    least = other.threshold
    assert least is not None and least.kind == left_out.SPEED and least.is_exact and 1 < least.value < 2
    below = left_out._value(left_out._index(least.value) - 1)
    assert search(left_out.with_speed(machines, plan, least.value)).devices == ("a",)
    assert search(left_out.with_speed(machines, plan, below)).devices == ("b",)


def test_a_device_that_is_too_slow_alone_has_its_time(planner):
    machines = priced((FAST, 1.0), (SLOW, 1.0), link="slow link")
    times = [planner.find(machines.only([number])).seconds for number in (0, 1)]
    objective = Objective(COST, 1.1 * times[0])
    plan = planner.find(machines, objective=objective)

    def search(machines):
        return planner.find(machines, objective=objective, refines=False)

    (other,) = left_out.devices_left_out(left_out.Search(planner, search, objective), machines, plan, seconds=600)
    assert other.alone_seconds == pytest.approx(times[1])


def test_an_answer_with_another_link(planner):
    """Its assumptions flip by the same objective."""
    machines = dataclasses.replace(priced((FAST, 1.0), (SLOW, 0.4), link="fast link"), assumed={"link": "fast"})
    seconds = planner.find(machines).seconds
    network = answering.Network("the step", lambda: step(batch=512, inputs=64, units=(128, 64))[0])
    text = " ".join(str(answering.answer(network, machines, objective=Objective(COST, 1.05 * seconds))).split())
    assert text.startswith("Split over a, b: ") and " 1,000 steps cost " in text
    assert "Over 1 Gbit/s, the fastest layout takes " in text and " per step, which is too slow." in text
    assert str(answering.answer(network, machines, objective=CHEAPEST)).startswith("Use a alone: ")
