"""Lookups in tables, as recipes, the planner and the memory report count them."""

import pytest
from oracle import Feed, cpu_mesh_impl

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.cost import memory, work
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.graph import assign_layers, list_layers, live_operations, names, roles
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.rules import Rules
from mtf_hetero.planner.planning import find

B, V, D, N = (mtf.Dimension(name, size) for name, size in [("b", 64), ("v", 5000), ("d", 8), ("n", 3)])
TABLE_BYTES = V.size * D.size * 4
pytestmark = pytest.mark.usefixtures("own_graph")


def step(look_up=layers.lookup):
    """(graph, mesh, loss, update) of a table whose rows go through a dense layer."""
    graph = mtf.Graph()
    feed = Feed(mtf.Mesh(graph, "mesh"), tf.float32)
    ids = feed("ids", [B], below=V.size)
    table = mtf.get_variable(feed.mesh, "words/embeddings", mtf.Shape([V, D]))
    kernel = mtf.get_variable(feed.mesh, "head/kernel", mtf.Shape([D, N]))
    y = mtf.einsum([look_up(table, ids, V), kernel], mtf.Shape([B, N]), name="head")
    loss = mtf.reduce_mean(mtf.square(y))
    gradients = mtf.gradients([loss], [v.value for v in graph.trainable_variables])
    updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
    return graph, feed.mesh, updates


def of(graph, kind):
    (op,) = (op for op in graph.operations if isinstance(op, kind))
    return op


def test_a_lookup_is_a_layer():
    graph, *_ = step()
    owners = assign_layers(live_operations(graph), graph.trainable_variables)
    forward, backward = of(graph, layers.LookupOperation), of(graph, layers.LookupGradientOperation)
    assert owners[forward] == owners[backward] == "words"
    found, kinds = roles.products(live_operations(graph), owners)["words"]
    assert found is forward
    assert kinds == {"v": roles.INPUTS, "d": roles.OUTPUTS, "b": roles.BATCH}


def test_what_is_read_and_written():
    """A lookup reads rows of the table; its gradient is as large as the table."""
    graph, *_ = step()
    forward, backward = of(graph, layers.LookupOperation), of(graph, layers.LookupGradientOperation)
    rows, ids = B.size * D.size * 4, B.size * 4
    assert work.of_operation(forward, Layout("x:1", ""), 0) == (0, ids + 2 * rows)
    assert work.of_operation(backward, Layout("x:1", ""), 0) == (0, ids + rows + TABLE_BYTES)
    none = Layout("x:2", "v:x", sizes={"v": [0, V.size]})
    assert work.of_processors(forward, none) == [(0, 0), (0, ids + 2 * rows)]


def test_rows_and_ids_are_not_split_over_one_axis():
    """No tensor has both."""
    graph, *_ = step()
    assert {"b", "d"} <= names.conflicts(live_operations(graph))["v"]
    rules = Rules(graph, "x:2", None, None)
    rules.add(["v"])
    assert not rules.allow(["b"]) and not rules.allow(["d"]) and rules.allow(["n"])


def test_recipes():
    graph, *_ = step()
    first, second = list_layers(graph)
    assert (first.inputs, first.outputs, first.work, first.weights) == (("v",), ("d",), 512, 40000)
    assert second.inputs == ("d",)
    for recipe, split in (("filters", {"d"}), ("batch", {"b"})):
        layout = LAYOUTS[recipe](graph, mesh_shape="x:2", shares={"x": [3, 1]})
        assert {name for name, _ in layout.rules} == split


@pytest.mark.parametrize("link", [Link(1e-9, 1e13), Link(1.0, 1e6)])
def test_a_plan_can_be_lowered(link):
    graph, mesh, updates = step()
    machines = Machines((Machine("a", 1e9, 1e8), Machine("b", 5e8, 5e7), Machine("c", 5e8, 5e7)), link)
    plan = find(graph, machines)
    assert len(plan.devices) == (3 if link.seconds(1) < 1e-3 else 1)
    lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(plan.layout)})
    assert lowering.lowered_operation(updates[0]) is not None
    assert {"words", "head"} <= {layer.name for layer in plan.layers}


def estimate_memory(rules, look_up=layers.lookup):
    graph, mesh, updates = step(look_up)
    layout = Layout("x:2" if rules else "x:1", rules, {"x": [3, 1]} if rules else ())
    lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
    return memory.estimate(lowering, [lowering.lowered_operation(op) for op in updates])["cpu:0"]


@pytest.mark.parametrize(("rules", "part", "copies"), [("", 1, 1), ("v:x", 0.75, 1), ("b:x", 1, 2), ("d:x", 0.75, 1)])
def test_memory(rules, part, copies):
    """A table, its gradient, and what becomes of the table: no more."""
    found = estimate_memory(rules)
    assert found.weights == pytest.approx(part * TABLE_BYTES, rel=0.01)
    assert found.gradients + found.activations < 1.1 * part * TABLE_BYTES * copies
