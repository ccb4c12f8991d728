"""Lookups in tables give what mtf.gather gives, on every layout, and wrong ids are errors."""

import functools
import re

import numpy as np
import oracle
import pytest
from lookups import LAYOUTS_BETWEEN_RESHAPES, B, D, E, L, V, between_reshapes, lookups_between_reshapes
from operations import variable
from oracle import ONCE, Feed, check, cpu_mesh_impl, of_cpus, one_device
from tiers import ONCE_OR_ALL_KINDS, ONE_OR_ALL, parametrize

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.layout import CannotSplitError
from mtf_hetero.layouts import LAYOUTS as LAYOUTS_BY_NAME

SHARES = {"x": [5, 2, 1], "y": [3, 1]}
RULES = ("", "v:x", "v:y", "d:x", "b:x", "l:y", "v:x;b:y", "v:y;b:x", "b:x;l:y", "v:x;d:y", "b:y;d:x", "v:x;e:y")
LAYOUTS = {rule: Layout("x:3;y:2", rule, SHARES) for rule in RULES}
ZEROS = {
    "no rows": Layout("x:3;y:2", "v:x;b:y", sizes={"v": [0, 9, 2], "b": [7, 0]}),
    "all rows": Layout("x:3;y:2", "v:x;b:y", sizes={"v": [0, 0, 11], "b": [0, 7]}),
    "few rows": Layout("x:3;y:2", "v:y;b:x", sizes={"v": [11, 0], "b": [0, 1, 6]}),
    "no columns": Layout("x:3;y:2", "d:x;v:y", sizes={"d": [0, 5, 0], "v": [10, 1]}),
    "no examples": Layout("x:3;y:2", "b:x;l:y", sizes={"b": [3, 0, 4], "l": [3, 0]}),
}


def program(look_up):
    """Tables of one to three dimensions, one of them used twice; ids of none to two dimensions, many repeated."""

    def build(feed):
        ids, some = feed("ids", [B, L], below=V.size), feed("some", [B], below=3)
        matrix, vector = variable(feed, "matrix", [V, D]), variable(feed, "vector", [V])
        volume = variable(feed, "volume", [V, E, D])
        return {
            "rows": look_up(matrix, ids, V),
            "of one dimension": look_up(vector, ids, V),
            "of three": look_up(volume, some, V) * 2.0,
            "again": mtf.square(look_up(matrix, some, V)),
            "one": look_up(matrix, feed("one", [], below=V.size), V),
            "of an input": look_up(feed("table", [V, D]), some, V),
            "integers": look_up(feed("integers", [V], below=99), ids, V),
        }

    return build


def last(table, ids, dim):
    """Gather like mtf.gather, from a table whose rows are its last dimension."""
    turned = mtf.transpose(table, mtf.Shape([*(d for d in table.shape.dims if d != dim), dim]))
    return layers.lookup(turned, ids, dim)


@functools.cache
def stock(dtype=tf.float64):
    return one_device(program(mtf.gather), dtype, exports=False)


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@pytest.mark.parametrize("chosen", ONE_OR_ALL)
@parametrize("look_up", [layers.lookup, last], first=[layers.lookup])
def test_they_are_what_mtf_gathers_on_every_layout(look_up, chosen, options):
    check(program(look_up), *chosen(LAYOUTS.values()), reference=stock(), **options | {"exports": False})


@parametrize("rule", LAYOUTS_BETWEEN_RESHAPES, first=["v:x;o:y;u:x", "v:x;c:x"])
def test_sums_that_are_scattered_and_ids_that_are_sent(rule):
    reference = one_device(between_reshapes(mtf.gather), exports=False)
    check(lookups_between_reshapes, Layout("x:3;y:2", rule, SHARES), reference=reference, **ONCE)


@parametrize("name", ZEROS, first=["no rows", "no columns"])
def test_some_processors_have_nothing(name):
    kind = oracle.CONSTANT if name == "no rows" else oracle.MIXED
    check(program(layers.lookup), ZEROS[name], reference=stock(), kinds=(kind,), exports=False)


@pytest.mark.full
def test_in_single_precision():
    tried = (LAYOUTS[rule] for rule in ("v:x", "b:x", "v:y;b:x"))
    check(program(layers.lookup), *tried, dtype=tf.float32, reference=stock(tf.float32), **ONCE)


@parametrize("dtype", [tf.int64, tf.uint8, tf.int8], first=[tf.uint8])
def test_types_of_ids(dtype):
    def build(feed):
        ids = mtf.cast(feed("ids", [B, L], below=V.size), dtype)
        return {"y": layers.lookup(variable(feed, "matrix", [V, D]), ids, V)}

    def plain(feed):
        return {"y": mtf.gather(variable(feed, "matrix", [V, D]), feed("ids", [B, L], below=V.size), V)}

    check(build, LAYOUTS["v:x;b:y"], reference=one_device(plain, exports=False), **ONCE)


def run(build, mesh_impl, lowering=mtf_hetero.Lowering):
    """Return the results of a program of tf.Tensors, on the CPUs of one process."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        outputs = build(mesh)
        lowered = lowering(graph, {mesh: mesh_impl})
        fetches = [lowered.export_to_tf_tensor(y) for y in outputs]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 6})) as session:
            return session.run(fetches)


def test_half_precision_adds_up_in_float32():
    """Two thousand ones are not a thousand and twenty-four, nor two hundred and fifty-six."""
    many = mtf.Dimension("b", 2000)

    def build(mesh):
        table = mtf.import_tf_tensor(mesh, tf.ones([V.size], tf.bfloat16), mtf.Shape([V]))
        ids = mtf.import_tf_tensor(mesh, tf.zeros([2000], tf.int32), mtf.Shape([many]))
        return mtf.gradients([mtf.reduce_sum(layers.lookup(table, ids, V))], [table])

    for layout in (Layout("x:1", ""), LAYOUTS["v:x"]):
        (gradient,) = run(build, cpu_mesh_impl(layout))
        assert gradient[0] == 2000 and not gradient[1:].any()


@pytest.mark.parametrize(
    ("rules", "lowering"),
    [
        ("", mtf.Lowering),
        ("v:x", mtf.Lowering),
        ("b:x", mtf.Lowering),
        ("d:y;v:x", mtf.Lowering),
        ("v:x;b:y", mtf.Lowering),
        ("v:x;b:y", mtf_hetero.Lowering),
    ],
)
def test_on_a_mesh_of_mtf(rules, lowering):
    dims = [mtf.Dimension(*dim) for dim in [("b", 4), ("v", 6), ("d", 2)]]
    table, ids = np.arange(12.0).reshape(6, 2), np.array([5, 0, 5, 3])

    def build(mesh):
        batch, rows, columns = dims
        x = mtf.import_tf_tensor(mesh, tf.constant(table), mtf.Shape([rows, columns]))
        y = layers.lookup(x, mtf.import_tf_tensor(mesh, tf.constant(ids), mtf.Shape([batch])), rows)
        return [y, *mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x])]

    shape = "x:2;y:2" if "b:x" in rules else "x:3;y:2"
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(shape, rules, [""] * (4 if "b:x" in rules else 6))
    y, gradient = run(build, mesh_impl, lowering=lowering)
    np.testing.assert_array_equal(y, table[ids])
    expected = np.zeros_like(table)
    np.add.at(expected, ids, 2 * table[ids])
    np.testing.assert_array_equal(gradient, expected)


WRONG = {"too large": [0, 3, 11, 2, 1, 0, 5], "negative": [0, 3, 1, 2, 1, 0, -1], "far": [2**31 - 1, *[0] * 6]}


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("wrong", WRONG)
@parametrize("rules", ["", "b:x", "v:x;b:y", "v:y;b:x", "d:x;v:y"], first=["v:x;b:y"])
def test_a_wrong_id_is_an_error(wrong, rules, dtype):
    check_error(WRONG[wrong], Layout("x:3;y:2", rules, SHARES), dtype)


@parametrize("name", ["", "no rows", "all rows", "few rows", "no columns"], first=["", "all rows"])
def test_a_wrong_id_is_an_error_where_some_have_nothing(name):
    for ids in WRONG.values():
        check_error(ids, ZEROS.get(name, Layout("x:1", "")), tf.int32)


def check_error(ids, layout, dtype):
    """It names the id and the rows that there are; right ids in its place are none."""

    def build(mesh, ids):
        table = mtf.import_tf_tensor(mesh, tf.ones([V.size, D.size]), mtf.Shape([V, D]))
        x = mtf.import_tf_tensor(mesh, tf.constant(ids, dtype), mtf.Shape([B]))
        y = layers.lookup(table, x, V, name="words")
        return [y, *mtf.gradients([mtf.reduce_sum(y)], [table])]

    run(lambda mesh: build(mesh, [0, 10, 3, 3, 3, 3, 3]), cpu_mesh_impl(layout))
    wrong = next(x for x in ids if not 0 <= x < V.size)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        run(lambda mesh: build(mesh, ids), cpu_mesh_impl(layout))
    message = str(error.value)
    assert re.search(rf"= {wrong} is not in \[0, 11\)", message) or (
        f"[id] [{wrong}] [is not in [0, 11) of lookup words]" in message
    )
    assert error.value.op.name.startswith("words/")


@of_cpus
def test_ids_are_checked_once():
    """One processor checks the ids for each group that splits the rows: the first that has some rows."""

    def checks(layout):
        with tf.Graph().as_default() as tf_graph:
            mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
            program(layers.lookup)(Feed(mesh, tf.float32))
            mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
            made = [op for op in tf_graph.get_operations() if op.type == "Assert" and op.name.startswith("lookup/")]
            return [op.device[-1] for op in made]

    assert checks(LAYOUTS["b:x;l:y"]) == []
    assert checks(LAYOUTS["v:x"]) == ["0", "1"]
    assert checks(LAYOUTS["v:x;b:y"]) == ["0", "1"]
    assert checks(ZEROS["all rows"]) == ["5"]


def test_a_table_is_not_copied_in_a_one_hot_tensor():
    """The largest tensor of a step is of the size of the table."""
    rows, columns, batch = mtf.Dimension("v", 20000), mtf.Dimension("d", 4), mtf.Dimension("b", 64)
    for layout in (Layout("x:1", ""), Layout("x:2", "v:x", {"x": [3, 1]}), Layout("x:2", "b:x", {"x": [3, 1]})):
        with tf.Graph().as_default() as tf_graph:
            mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
            ids = mtf.import_tf_tensor(mesh, tf.placeholder(tf.int32, [64]), mtf.Shape([batch]))
            table = mtf.get_variable(mesh, "table", mtf.Shape([rows, columns]))
            y = layers.lookup(table, ids, rows)
            (gradient,) = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [table])
            update = mtf.assign_sub(table.operation, gradient)
            lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
            lowering.lowered_operation(update)
            sizes = [y.shape.num_elements() or 0 for op in tf_graph.get_operations() for y in op.outputs]
            assert max(sizes) == rows.size * columns.size


def test_rows_and_ids_are_not_split_over_one_axis():
    def build(mesh):
        table = mtf.import_tf_tensor(mesh, tf.ones([V.size, D.size]), mtf.Shape([V, D]))
        return [layers.lookup(table, mtf.import_tf_tensor(mesh, tf.zeros([7], tf.int32), mtf.Shape([B])), V)]

    message = r"LookupOperation 'lookup' cannot all-reduce over mesh axis 'x', because its output's dimension 'b' is"
    with pytest.raises(CannotSplitError, match=message):
        run(build, cpu_mesh_impl(Layout("x:2", "v:x;b:x")))


def renamed(feed):
    """A program whose layers own their dimensions, as recipes expect it."""
    ids = feed("ids", [mtf.Dimension("batch", 7)], below=V.size)
    table, units = variable(feed, "table", [V, D]), mtf.Dimension("head/units", 9)
    rows = layers.lookup(table, mtf.reshape(ids, [mtf.Dimension("words/batch", 7)]), V)
    inputs = [mtf.Dimension("head/batch", 7), mtf.Dimension("head/inputs", D.size)]
    y = mtf.einsum(
        [mtf.reshape(rows, inputs), variable(feed, "kernel", [inputs[1], units])], mtf.Shape([inputs[0], units])
    )
    return {"y": mtf.square(mtf.reshape(y, [mtf.Dimension("batch", 7), mtf.Dimension("logits", 9)]))}


RECIPES = {
    "batch": {"batch", "words/batch", "head/batch"},
    "filters": {"d", "head/inputs"},
    "hybrid": {"batch", "v", "head/inputs"},
}


def test_recipes_split_them():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        renamed(Feed(mtf.Mesh(graph, "mesh"), tf.float64))
        layouts = {
            recipe: LAYOUTS_BY_NAME[recipe](graph, mesh_shape="all:3", shares={"all": [4, 2, 1]}) for recipe in RECIPES
        }
    assert {recipe: {name for name, _ in layout.rules} for recipe, layout in layouts.items()} == RECIPES
    check(renamed, layouts["hybrid"], **ONCE)
