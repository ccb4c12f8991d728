"""Fixtures of the tests of the programs."""

import pytest
from absl.testing import flagsaver
from estimator_oracle import without_graph_optimizers  # noqa: F401 - a fixture
from training_runs import restored_logging, toys  # noqa: F401 - fixtures


@pytest.fixture(autouse=True, scope="module")
def _short_trainings(without_graph_optimizers):  # noqa: F811
    """Programs train a few steps each."""


@pytest.fixture(autouse=True)
def _restored_logging(restored_logging):  # noqa: F811
    """Each program sets the level of TensorFlow's log."""


@pytest.fixture(autouse=True)
def _restored_flags():
    """`launch` reads the flags of `train`, which absl keeps."""
    with flagsaver.flagsaver():
        yield
