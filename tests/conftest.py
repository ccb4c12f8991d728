"""Fixtures and rules of all tests: the files of the second tier, and one cluster of workers per process."""

import gc
import os
import pathlib
import re
import signal
import sys
import zlib

import pytest
from tiers import TURNS

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup; the programs that tests start would inherit it
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = pathlib.Path(__file__).parent
FULL = {
    TESTS / name for name in ("benchmarks/test_run.py", "benchmarks/test_faults.py", "project/test_mesh_tensorflow.py")
}


# Of tiers.py, and what has them
SUBSETS = {"few": "all", "one": "all", "some": "all", "once": "all kinds", "some once": "all kinds"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses a tier
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path in FULL:
            item.add_marker(pytest.mark.full)
    names = {item.nodeid for item in items}
    again = [item for item in items if item.get_closest_marker("full") and any(name in names for name in _wholes(item))]
    config.hook.pytest_deselected(items=again)
    items[:] = [item for item in items if item not in again]
    if config.getoption("landing"):
        number, *reached = os.environ["TESTS_REACHED"].split()
        left_out = [item for item in items if not _is_of_landing(item, int(number), reached)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("xdist_group", "slow")])


def pytest_addoption(parser):
    parser.addoption(
        "--landing", action="store_true", help="run the tests that this landing reaches, and a third of the rest"
    )


def pytest_configure(config):
    if config.getoption("landing") and "TESTS_REACHED" not in os.environ:  # which processes of xdist inherit
        import rooms  # it reads the whole project

        landing = rooms.this_landing()
        reached = rooms.all_tests().values() if landing.changed is None else rooms.reached_tests(landing.changed)
        os.environ["TESTS_REACHED"] = " ".join([str(landing.number), *sorted(reached)])


def pytest_report_header(config):
    if config.getoption("landing"):
        number, *reached = os.environ["TESTS_REACHED"].split()
        part = f"part {int(number) % TURNS + 1} of {TURNS}"
        return f"landing {number}: the tests of {len(reached)} files that it reaches, and {part} of the rest"
    return None


def _is_of_landing(item, number, reached):
    is_reached = item.path.relative_to(TESTS.parent).as_posix() in reached
    return is_reached or zlib.crc32(item.nodeid.encode()) % TURNS == number % TURNS


def _wholes(item):
    """Yield the names of tests of the second tier that do what a test does on a subset, and more."""
    name, _, parameters = item.nodeid.partition("[")
    for part, whole in SUBSETS.items():
        changed = re.sub(rf"(?<=[\[-]){part}(?=[\]-])", whole, f"[{parameters}")
        if changed != f"[{parameters}":
            yield f"{name}{changed}"


@pytest.fixture(autouse=True)
def one_stack(request, monkeypatch):
    """All operations of a test have one stack: to look through pytest's for each takes a tenth of the time of tests.

    Tests marked `user_lines`, of messages that name the user's line, have those of TensorFlow.
    """
    tf_stack = sys.modules.get("tensorflow.python.util.tf_stack")  # None: the test has not needed TensorFlow so far
    if tf_stack is not None and request.node.get_closest_marker("user_lines") is None:
        stack = tf_stack.extract_stack()
        monkeypatch.setattr(tf_stack, "extract_stack", lambda stacklevel=1: stack)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what is imported stays: it is not looked through each time that a graph is thrown away
    gc.set_threshold(20_000, 10, 10)  # graphs are made of many small objects: 5 % of the processor time


@pytest.fixture
def own_graph():
    """A TensorFlow graph of the test's own, which is the default one meanwhile."""
    from mtf_hetero import tf  # tests that need no TensorFlow do not wait for it

    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="session")
def workers():
    """A LocalCluster of three workers, as `.cluster`, which is entered; for tests `on_workers` or `losing_workers`."""
    from mtf_hetero.cluster import LocalCluster  # tests that need no TensorFlow do not wait for it

    local = LocalCluster([1.0, 1.0, 1.0], report=lambda line: None)
    with local as cluster:
        vars(local)["cluster"] = cluster
        yield local


@pytest.fixture
def impatient(monkeypatch):
    """Each question to a worker may take 3 seconds, in place of 10: a test need not wait as long as a user."""
    from mtf_hetero.cluster import probe, watch  # tests that need no TensorFlow do not wait for it

    ask = probe.ask
    for module in (probe, watch):
        monkeypatch.setattr(module, "ask", lambda address, timeout_seconds: ask(address, min(timeout_seconds, 3.0)))
