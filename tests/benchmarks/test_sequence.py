"""Random sequences of faults: what may happen to which worker."""

import random

import pytest

from benchmarks.faults import sequence


@pytest.mark.parametrize("seed", range(10))
def test_one_worker_is_up_at_any_time_and_each_happening_is_possible(seed):
    chosen = sequence.choose(random.Random(seed), workers=3, spare=1, count=6, steps=60)
    assert len(chosen) == 6
    states = [sequence.UP] * 3 + [sequence.AWAY]
    for happening in chosen:
        assert 10 <= happening.step < 45
        before = states[happening.worker]
        if happening.what in (sequence.STOP, sequence.LEAVE, sequence.QUOTA):
            assert before == sequence.UP
        elif happening.what == sequence.KILL:
            assert before in (sequence.UP, sequence.STOPPED)
        elif happening.what == sequence.JOIN:
            assert before == sequence.AWAY
        else:
            assert before in (sequence.KILLED, sequence.STOPPED)
        states[happening.worker] = sequence.AFTER[happening.what]
        assert sequence.UP in states
    assert [happening.step for happening in chosen] == sorted(happening.step for happening in chosen)


def test_all_kinds_are_chosen():
    found = {
        happening.what
        for seed in range(20)
        for happening in sequence.choose(random.Random(seed), workers=2, spare=1, count=6, steps=300)
    }
    assert found == set(sequence.AFTER)
