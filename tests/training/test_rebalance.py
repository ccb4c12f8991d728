"""Shares that follow measured speeds: the decisions, on simulated series without a clock."""

import concurrent.futures
import functools
import random
import types

import pytest

from mtf_hetero.training import rebalancing
from mtf_hetero.training.balance import Balance, Proposal, go_back
from mtf_hetero.training.load import Sample
from mtf_hetero.training.rebalancing import RebalanceHook

DEVICES = ("worker:0/cpu:0", "worker:1/cpu:0")


class Training:
    """A training of two workers, whose step lasts as long as the busier one of them.

    A worker that is as fast as at the beginning is busy for `fixed` seconds, and for one second times its share.

    Args:
      slowness: from a step to how many times as long as usual each worker takes.
      noise: standard deviation of the logarithm of a worker's time.
      fixed: the seconds that do not depend on the share.
      believed: the same seconds by the model that proposes shares.
    """

    def __init__(self, slowness, *, noise=0.0, fixed=0.1, believed=0.1, steps=2000, pause=5.0, seconds=0.0, seed=0):
        self.random, self.noise, self.fixed, self.believed = random.Random(seed), noise, fixed, believed
        self.slowness, self.steps = slowness, steps
        self.shares, self.switches, self.looked, self.times = (0.5, 0.5), [], 0, []
        self.balance, self.pause, self.now = Balance(seconds, pause), pause, 0.0

    def run(self):
        for step in range(self.steps):
            slow = [each * self.random.lognormvariate(0.0, self.noise) for each in self.slowness(step)]
            busy = [each * (self.fixed + share) for share, each in zip(self.shares, slow)]
            seconds = max(busy)
            self.now += seconds
            self.times.append(seconds)
            if now := self.balance.add(self.now, dict(zip(DEVICES, busy))):
                self.looked += 1
                self.propose(step, [now[device] for device in DEVICES], seconds)
        return self

    def propose(self, step, busy, seconds):
        slow = [each / (self.believed + share) for each, share in zip(busy, self.shares)]
        first = [self.balance.first[device] / (self.believed + 0.5) for device in DEVICES]
        last = (slow[0] - slow[1]) * self.believed + slow[0]  # both workers end at the same time
        shares = (1 - last / sum(slow), last / sum(slow))
        before, after = (max(s * (self.believed + x) for s, x in zip(slow, of)) for of in (self.shares, shares))
        factors = {device: now / then for device, now, then in zip(DEVICES, slow, first)}
        proposal = Proposal(None, after / before, factors)
        if self.balance.accepts(proposal, self.now, step_seconds=seconds, steps=self.steps - step):
            self.shares = shares
            self.switches.append(step)
            self.factors = factors
            self.now += self.pause
            self.balance.end_switch(self.now, self.pause)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_steady_equal_workers_are_left_alone(noise, seed):
    assert Training(lambda step: (1, 1), noise=noise, seed=seed).run().switches == []


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_a_worker_cut_to_a_third_and_restored(noise):
    training = Training(lambda step: (1, 3 if 100 <= step < 400 else 1), noise=noise).run()
    cut, restored = training.switches[0], training.switches[-1]
    assert 102 <= cut < 130
    assert 402 <= restored < 440
    assert len(training.switches) <= (2 if noise < 0.3 else 4)
    assert training.shares[0] == pytest.approx(0.5, abs=0.03 if noise < 0.3 else 0.15)


def fastest(slowness, fixed):
    """Return the seconds of a step with the best shares."""
    return (1 + 2 * fixed) / sum(1 / each for each in slowness)


@pytest.mark.parametrize("fixed", [0.0, 0.1, 0.3])
def test_one_switch_reaches_the_fastest_step(fixed):
    training = Training(lambda step: (1, 3 if step >= 100 else 1), fixed=fixed, believed=fixed, steps=130).run()
    assert training.times[99] == pytest.approx(0.5 + fixed)
    assert training.times[101] == pytest.approx(3 * (0.5 + fixed))
    assert training.switches == [103]
    assert training.factors[DEVICES[1]] == pytest.approx(3.0)
    assert training.times[-1] == pytest.approx(fastest((1, 3), fixed))


@pytest.mark.parametrize(("fixed", "believed"), [(0.3, 0.1), (0.2, 0.1), (0.1, 0.3), (0.0, 0.1)])
def test_a_wrong_model_is_corrected_after_the_switch(fixed, believed):
    training = Training(lambda step: (1, 3 if step >= 100 else 1), fixed=fixed, believed=believed, steps=300).run()
    best = fastest((1, 3), fixed)
    assert training.switches[0] == 103
    assert len(training.switches) <= 3
    assert training.times[110] < 1.25 * best
    assert training.times[-1] < 1.08 * best


def test_a_change_in_the_middle_of_a_sample_is_measured_after_it():
    training = Training(lambda step: (1, 3 if step > 100 else 1.3 if step == 100 else 1), steps=300).run()
    assert len(training.switches) == 1
    assert training.factors[DEVICES[1]] == pytest.approx(3.0)


def test_one_slow_step_is_no_change():
    training = Training(lambda step: (1, 20 if step % 50 == 49 else 1)).run()
    assert training.looked == 0


def test_all_workers_slower_alike_is_no_reason():
    training = Training(lambda step: (2, 2) if step >= 100 else (1, 1)).run()
    assert training.looked == 1
    assert training.switches == []


def test_a_change_that_comes_and_goes_is_followed_as_rarely_as_asked():
    def slowness(step):
        return (1, 3 if step // 20 % 2 else 1)

    often = Training(slowness, pause=0.1).run().switches
    rarely = Training(slowness, pause=0.1, seconds=200.0).run()
    assert 50 < len(often) <= 100
    assert len(rarely.switches) <= rarely.now / 200 + 1


def test_a_switch_that_does_not_pay_is_left():
    assert Training(lambda step: (1, 3 if step >= 100 else 1), steps=110, pause=60.0).run().switches == []
    assert Training(lambda step: (1, 1.08 if step >= 100 else 1)).run().switches == []


@pytest.mark.parametrize(("alone", "goes_back"), [(0.9, True), (0.98, False), (1.5, False)])
def test_a_layout_that_was_not_tried_is_left_if_it_is_slower_than_one_device(monkeypatch, alone, goes_back):
    """Once, after the first samples: a step takes a second, but for the first two."""
    calls, load = [], types.SimpleNamespace(listeners=[], step=50)

    def begin(work, name):
        future = concurrent.futures.Future()
        future.set_result(work())
        return future

    monkeypatch.setattr(rebalancing.threads, "begin", begin)
    fallback = functools.partial(go_back, "there", DEVICES[0], alone)
    propose = functools.partial(pytest.fail, "no device has changed")
    options = {"fallback": fallback, "pause_seconds": 60.0}  # for five of which nothing else is proposed
    hook = RebalanceHook(load, propose, lambda proposal, why: calls.append((proposal.place, why)), **options)
    hook.begin()
    for step in range(30):
        load.listeners[0](Sample(step, 1.7 if step < 2 else 1.0, dict.fromkeys(DEVICES, 0.5)))
        hook.after_run(None, None)
        assert len(calls) == (goes_back and step >= 7)
    if goes_back:
        why = "a step takes 1.00 s, on worker:0/cpu:0 alone 900 ms, and a step is predicted to take 10% less"
        assert calls == [("there", why)]


@pytest.mark.parametrize("error", [None, ValueError("no memory")])
def test_the_new_place_is_prepared_before_the_switch(monkeypatch, error):
    calls, futures = [], []
    load = types.SimpleNamespace(listeners=[], step=50)

    def begin(work, name):
        futures.append((concurrent.futures.Future(), work))
        return futures[-1][0]

    def prepare(place):
        calls.append(f"prepare {place}")
        if error is not None:
            raise error

    def propose(first, busy):
        assert (first[DEVICES[1]], busy[DEVICES[1]]) == pytest.approx((0.5, 1.5))
        return Proposal("there", 0.6, {DEVICES[0]: 1.0, DEVICES[1]: 3.0})

    monkeypatch.setattr(rebalancing.threads, "begin", begin)
    hook = RebalanceHook(load, propose, lambda proposal, why: calls.append(why), prepare=prepare)
    hook.begin()
    for step in range(12):
        hook.after_run(None, None)
        load.listeners[0](Sample(step, 1.0, dict(zip(DEVICES, (0.5, 0.5 if step < 8 else 1.5)))))
    for expected in ([], ["prepare there"]):
        future, work = futures.pop()
        hook.after_run(None, None)
        try:
            future.set_result(work())
        except ValueError as raised:
            future.set_exception(raised)
        assert calls == expected
        hook.after_run(None, None)
    why = "worker:1/cpu:0 is 3.00x as slow as at the beginning, and a step is predicted to take 40% less"
    assert calls == ["prepare there", *([why] if error is None else [])]
    assert futures == []
