"""Fixtures that the tests of imported steps share."""

import pytest


@pytest.fixture
def real_loops(monkeypatch):
    """No loop is unrolled."""
    from mtf_hetero.importer import control  # tests that need no TensorFlow do not wait for it

    monkeypatch.setattr(control, "_MOST_TURNS", 0)


@pytest.fixture
def real_conditions(monkeypatch):
    """Every condition runs one branch alone."""
    from mtf_hetero.importer import control  # tests that need no TensorFlow do not wait for it

    monkeypatch.setattr(control, "_LEAST_WORK", 0)
