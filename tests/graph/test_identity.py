"""Functions share measured times if they compute the same, whatever they are called, and in every process."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mtf_hetero import layers, mtf, tf
from mtf_hetero.graph import assign_layers, group_key
from mtf_hetero.graph.identity import value_text

SCALE = 2.0


def scaled(scale):
    return lambda x: x * scale


def nested(scale):
    inner = scaled(scale)
    return lambda x: inner(x) + 1.0


def recursive(base):
    def function(n):
        return base if n == 0 else function(n - 1)

    return function


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return x * self.scale

    def plus(self, x):
        return x + self.scale


def make_callable(body):
    return type("Local", (), {"__call__": body})()


@dataclasses.dataclass(frozen=True)
class Window:
    size: int
    sides: tuple[str, ...] = ("left",)


def local_class(count):
    class Local:
        def get(self):
            return count

    return Local


MAKERS = {
    "a closure": scaled,
    "a default": lambda scale: lambda x, scale=scale: x * scale,
    "a default of a keyword": lambda scale: lambda x, *, scale=scale: x * scale,
    "a closure's closure": nested,
    "a recursion": recursive,
    "an object that is called": Scaled,
    "a bound method": lambda scale: Scaled(scale).plus,
    "a partial": lambda scale: functools.partial(max, scale),
    "a partial's keyword": lambda scale: functools.partial(scaled, scale=scale),
    "a partial of a partial": lambda scale: functools.partial(functools.partial(min, scale), 1),
    "a constant": lambda scale: eval(f"lambda x: x * {scale!r}"),
    "a set": lambda scale: scaled({"a", "b", "c", scale}),
    "a mapping": lambda scale: scaled({"b": 1, "a": scale}),
    "an array": lambda scale: scaled(np.full([3], scale)),
    "a dataclass": lambda scale: scaled(Window(int(scale))),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_differs_is_told_apart_and_what_is_equal_is_not(kind):
    make = MAKERS[kind]
    assert value_text(make(2.0)) == value_text(make(2.0))
    assert value_text(make(2.0)) != value_text(make(3.0))


def test_look_alikes():
    functions = [
        lambda x: tf.nn.relu(x),
        lambda x: tf.nn.elu(x),
        lambda x: tf.nn.relu(x) + 1,
        lambda x: tf.nn.relu(x) + 1.0,
        lambda x: tf.nn.relu(x) + True,
        lambda x, y=None: tf.nn.relu(x),
        lambda *x: tf.nn.relu(x),
        lambda x: [tf.nn.relu(y) for y in x],
        lambda x: x * SCALE,
        tf.nn.relu,
        tf.nn.elu,
        mtf.relu,
        functools.partial(tf.nn.relu),
        len,
        "abc".join,
        "abd".join,
        np.tanh,
        np.sinh,
    ]
    values = [*functions, -0.0, 0.0, 0, False, "0", b"0", None, (), ((),)]
    texts = [value_text(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert texts == [value_text(value) for value in values]
    assert value_text(lambda x: tf.nn.relu(x)) == texts[0]


def test_names_of_dimensions_do_not_matter_and_their_sizes_do():
    one, other, larger = (scaled(mtf.Dimension(name, size)) for name, size in (("a", 3), ("b", 3), ("a", 4)))
    assert value_text(one) == value_text(other) != value_text(larger)


def test_what_cannot_be_told_is_shared_with_nothing():
    unknown = scaled(object())
    assert value_text(unknown) != value_text(unknown)
    assert value_text(local_class(2.0)) != value_text(local_class(2.0))
    endless = []
    endless.append(endless)
    assert value_text(endless) != value_text(endless)


@pytest.mark.full
def test_it_is_the_same_in_every_process():
    """Whatever the seed of hashes is; and no text has an address."""
    program = (
        "import test_identity as t\n"
        "for kind, make in sorted(t.MAKERS.items()):\n"
        "    print(t.value_text(make(2.0)))\n"
        "print(t.value_text(t.Window), t.value_text(lambda x: t.tf.nn.relu(x)))\n"
    )
    here = pathlib.Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        command = [sys.executable, "-c", program]
        said.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert said[0] == said[1]
    assert " at 0x" not in said[0]
    assert "unknown" not in said[0]


def make_graph(*functions):
    """Layers of one shape, with one of the functions each."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    x = mtf.import_tf_tensor(mesh, tf.zeros([2, 3]), mtf.Shape([mtf.Dimension("batch", 2), mtf.Dimension("in0", 3)]))
    for number, function in enumerate(functions):
        x = mtf.layers.dense(x, mtf.Dimension(f"in{number + 1}", 3), name=f"dense{number}", use_bias=False)
        x = mtf.slicewise(function, [x], x.shape, x.dtype, splittable_dims=x.shape.dims)
    return graph


@pytest.mark.parametrize(
    ("functions", "alike"),
    [
        ((scaled(2.0), scaled(2.0)), True),
        ((scaled(2.0), scaled(3.0)), False),
        ((functools.partial(tf.multiply, 2.0), functools.partial(tf.multiply, 2.0)), True),
        ((functools.partial(tf.multiply, 2.0), functools.partial(tf.multiply, 3.0)), False),
        ((Scaled(2.0), Scaled(2.0)), True),
        ((Scaled(2.0), make_callable(scaled(2.0))), False),
    ],
)
def test_layers_share_their_times_if_their_functions_are_alike(functions, alike):
    with tf.Graph().as_default():
        graph = make_graph(*functions, tf.nn.relu)
        layers_of = assign_layers(graph.operations, graph.trainable_variables)
        keys = {name: group_key([op for op in layers_of if layers_of[op] == name]) for name in set(layers_of.values())}
    assert (keys["dense0"] == keys["dense1"]) is alike
    assert keys["dense2"] not in (keys["dense0"], keys["dense1"])


def test_windows_of_other_sizes_do_not_share_their_times():
    def key(**options):
        with tf.Graph().as_default():
            graph = mtf.Graph()
            shape = mtf.Shape([mtf.Dimension(n, 4) for n in ("batch", "height", "width", "channels")])
            x = mtf.import_tf_tensor(mtf.Mesh(graph, "mesh"), tf.zeros(shape.to_integer_list), shape)
            return group_key([layers.pool(x, strides=2, padding="SAME", **options).operation])

    keys = [key(kind=kind, size=size) for kind in ("max", "avg") for size in (2, 3)]
    assert len(set(keys)) == 4
    assert key(kind="max", size=2) == keys[0]
