"""Fixtures of the tests of Keras models."""

import os
import signal
import threading

import pytest

from mtf_hetero.training.runtime import Runtime


@pytest.fixture
def calls(monkeypatch):
    """The number of steps in each call of a session that takes some."""
    numbers, run = [], Runtime.run

    def note(runtime, fetches, *arguments):
        if isinstance(fetches, tuple):
            numbers.append(len(fetches[0]))
        return run(runtime, fetches, *arguments)

    monkeypatch.setattr(Runtime, "run", note)
    return numbers


@pytest.fixture
def elastic_place(workers):
    """Three workers, which are all back in the end."""
    yield {"workers": workers.addresses, "layout": "batch", "list_speed": "4,2,1", "wait_for_workers": 1}
    workers.restart(1)


@pytest.fixture
def check_loss_in_a_call(workers, elastic_place, calls, monkeypatch):
    """Check that all steps of a call that is cut off are taken again, from the state before it."""

    def check(undisturbed, kind, steps, seconds):
        """Have worker 1 killed some seconds after the fourth call of so many steps has begun."""
        run = Runtime.run

        def lose(runtime, fetches, *arguments):
            if isinstance(fetches, tuple) and len(fetches[0]) == steps and calls.count(steps) == 3:
                calls.append(0)
                threading.Timer(seconds, os.kill, [workers.pids[1], signal.SIGKILL]).start()
            return run(runtime, fetches, *arguments)

        monkeypatch.setattr(Runtime, "run", lose)
        undisturbed.check(kind, **elastic_place)
        assert calls.count(steps) >= 6

    return check
