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
    from mtf_hetero.importer import conditions  # as above

    monkeypatch.setattr(conditions, "_LEAST_WORK", 0)


@pytest.fixture
def seeded():
    """The seed of all operations that have none of their own."""
    from mtf_hetero import tf  # as above

    tf.compat.v2.random.set_seed(5)
    yield
    tf.compat.v2.random.set_seed(None)
