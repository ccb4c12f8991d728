"""The rooms' faces: each offers a few names, and an example that runs."""

import doctest
import fractions
import importlib

import pytest
from dense_steps import step

import mtf_hetero
from mtf_hetero import cost, layers, mtf, planner, tf

FACES = ("checkpoint", "cluster", "cost", "estimator", "graph", "importer", "keras", "layout", "lowering", "mesh")
FACES = (*FACES, "placement", "planner")
# Modules whose functions have examples that need no names but these
PURE = {
    "_support": "graphs names sameness tables units",
    "checkpoint": "copying",
    "cluster": "devices probe",
    "cost": "hardware kinds machines microbenchmarks quick sample",
    "data": "laid_out listing",
    "estimator": "metrics_log progress_text",
    "graph": "identity",
    "importer": "naming",
    "layout": "blocks layout partition",
    "mesh": "collectives initial random_numbers",
    "ops": "windows",
    "planner": "left_out outline refine search show space trying",
}
NAMES = {"Fraction": fractions.Fraction, "mtf": mtf}
MOST = {"checkpoint": 16, "estimator": 10}  # a namespace that the training loop uses; the names of tf.estimator and 3
DEVICES = """\
devices:
  - {name: "gpu:0", flops_per_second: 4e12, bytes_per_second: 3e11}
  - {name: "gpu:1", flops_per_second: 1e12, bytes_per_second: 1e11}
link: {latency_seconds: 5.0e-5, bytes_per_second: 1.0e10}
"""


@pytest.mark.parametrize("name", FACES)
def test_a_face_has_few_names_and_an_example(name):
    room = importlib.import_module(f"mtf_hetero.{name}")
    assert 0 < len(room.__all__) <= MOST.get(name, 6)
    assert all(hasattr(room, offered) for offered in room.__all__)
    text = room.__doc__ or ""
    assert doctest.DocTestParser().get_examples(text) or "    " in text


def run(room, **names):
    """Run the example of a room, and compare what it prints."""
    test = doctest.DocTestParser().get_doctest(room.__doc__, vars(room) | names, room.__name__, None, 0)
    assert test.examples
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(test).failed == 0


@pytest.mark.parametrize("name", ["layout", "mesh"])
def test_pure_examples_say_what_is_so(name):
    run(importlib.import_module(f"mtf_hetero.{name}"), mtf=mtf)


@pytest.mark.parametrize("name", [f"{room}.{name}" for room, names in PURE.items() for name in names.split()])
def test_examples_of_functions_say_what_is_so(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one writes a file
    results = doctest.testmod(importlib.import_module(f"mtf_hetero.{name}"), extraglobs=NAMES)
    assert results.attempted and not results.failed


def offered_by(room):
    return {name: getattr(room, name) for name in room.__all__}


def test_the_example_of_costs():
    with tf.Graph().as_default():
        run(cost, **offered_by(cost), graph=step(batch=128)[0], Layout=mtf_hetero.Layout)


def test_the_example_of_plans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devices.yaml").write_text(DEVICES, encoding="utf-8")
    with tf.Graph().as_default():
        graph = step(batch=4096, inputs=1024, units=(1024, 1000))[0]
        run(planner, build=lambda: graph, cost=cost, planner=planner, mtf_hetero=mtf_hetero)


def test_the_example_of_layers():
    """It prints nothing."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        dims = [mtf.Dimension(*dim) for dim in (("batch", 2), ("height", 6), ("width", 6), ("channels", 3))]
        run(layers, images=mtf.import_tf_tensor(mesh, tf.zeros([2, 6, 6, 3]), mtf.Shape(dims)))
