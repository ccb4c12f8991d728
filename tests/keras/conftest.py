"""Fixtures of the tests of Keras models."""

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
