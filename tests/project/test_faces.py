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
    "layers": "geometry",
    "layout": "blocks layout partition",
    "mesh": "collectives initial random_numbers",
    "planner": "left_out outline planning refine search show trying",
}
NAMES = {"Fraction": fractions.Fraction, "mtf": mtf}
MOST = {"checkpoint": 16, "estimator": 10}  # a namespace that the training loop uses; the names of tf.estimator and 3
MACHINES = """\
devices:
  - {name: "gpu:0", flops_per_second: 4e12, bytes_per_second: 3e11}
  - {name: "cpu:0", flops_per_second: 1e11, bytes_per_second: 2e10}
"""


@pytest.mark.parametrize("name", FACES)
def test_a_face_has_few_names_and_an_example(name):
    room = importlib.import_module(f"mtf_hetero.{name}")
    assert 0 < len(room.__all__) <= MOST.get(name, 6)
    assert all(hasattr(room, offered) for offered in room.__all__)
    text = room.__doc__ or ""
    assert doctest.DocTestParser().get_examples(text) or "    " in text


def run(room, names, *, compared):
    """Run the example of a room."""
    test = doctest.DocTestParser().get_doctest(room.__doc__, {**vars(room), **names}, room.__name__, None, 0)
    assert test.examples
    for example in test.examples:
        if not compared:
            example.want = ""
            example.source = f"_ = (\n{example.source})\n" if _is_expression(example.source) else example.source
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test).failed == 0


def _is_expression(source):
    try:
        compile(source, "example", "eval")
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("name", ["layout", "mesh"])
def test_pure_examples_say_what_is_so(name):
    run(importlib.import_module(f"mtf_hetero.{name}"), {"mtf": mtf}, compared=True)


@pytest.mark.parametrize("name", [f"{room}.{name}" for room, names in PURE.items() for name in names.split()])
def test_examples_of_functions_say_what_is_so(name):
    results = doctest.testmod(importlib.import_module(f"mtf_hetero.{name}"), extraglobs=NAMES)
    assert results.attempted and not results.failed


def test_examples_of_costs_and_plans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devices.yaml").write_text(MACHINES, encoding="utf-8")
    names = {name: getattr(cost, name) for name in cost.__all__} | {n: getattr(planner, n) for n in planner.__all__}
    with tf.Graph().as_default():
        names |= {"graph": step(batch=128)[0], "Layout": mtf_hetero.Layout}
        run(cost, names, compared=False)
        run(
            planner,
            {**names, "build": lambda: names["graph"], "cost": cost, "planner": planner, "mtf_hetero": mtf_hetero},
            compared=False,
        )


def test_the_example_of_layers():
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        dims = [mtf.Dimension(*dim) for dim in (("batch", 2), ("height", 6), ("width", 6), ("channels", 3))]
        run(layers, {"images": mtf.import_tf_tensor(mesh, tf.zeros([2, 6, 6, 3]), mtf.Shape(dims))}, compared=False)
