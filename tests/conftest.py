"""What tests share: which files are of the second tier, and one cluster of workers of a run."""

import gc
import pathlib
import signal

import pytest

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup; the programs that tests start would inherit it
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = pathlib.Path(__file__).parent
FULL = {TESTS / name for name in ("benchmarks/test_run.py", "benchmarks/test_faults.py", "test_mesh_tensorflow.py")}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path in FULL:
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)  # one process has them all: they begin


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what is imported stays: it is not looked through each time that a graph is thrown away


@pytest.fixture
def own_graph():
    """A TensorFlow graph of the test's own, which is the default one meanwhile."""
    from mtf_hetero import tf  # tests that need no TensorFlow do not wait for it

    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="session")
def workers():
    """A LocalCluster of three workers, as `.cluster`, which is entered; for tests that are marked `on_workers`."""
    from mtf_hetero.cluster import LocalCluster  # tests that need no TensorFlow do not wait for it

    local = LocalCluster([1.0, 1.0, 1.0], report=lambda line: None)
    with local as cluster:
        vars(local)["cluster"] = cluster
        yield local
