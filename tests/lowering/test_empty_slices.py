"""Exact sizes with zeros: a processor with an empty slice, in every operation, in models, checkpoints and inputs.

The programs are those of the other tests of the oracle.
"""

import dataclasses
import itertools

import graph_operations
import numpy as np
import pytest
import reshapes
import rounds
import upsampling
from allreduce import allreduce_bytes
from language_model import random_tokens
from operations import FLOAT32_PROGRAMS, K3, PROGRAMS, B, C, F, H, W, variable
from oracle import ONCE, TOLERANCE, Feed, assert_same, check, cpu_mesh_impl, of_cpus, one_device, run
from regression import LAYOUTS, Program, make_session
from savers import SAVERS, assert_equal, read
from tiers import FEW_OR_ALL, ONCE_OR_ALL_KINDS, ONE_OR_ALL, each_of_a_kind, few, on_workers, parametrize
from toy_models import toy_graph, toy_layout, toy_program

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero.cost import memory
from mtf_hetero.layout.convert import convert_to_rules
from mtf_hetero.mesh import collectives

COUNTS = {"x": 3, "y": 2}


def program_extents(build, dtype=tf.float64):
    """{name of a dimension: its largest extent} in a program."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        build(Feed(mtf.Mesh(graph, "mesh"), dtype))
        return extents_in(graph)


def extents_in(graph):
    """{name of a dimension: its largest extent} in an mtf graph."""
    dims = [dim for op in graph.operations for x in op.outputs for dim in x.shape.dims]
    return {dim.name: max(other.size for other in dims if other.name == dim.name) for dim in dims}


def sizes_with_zeros(extent, count, variant):
    """The first, the last or one in the middle has none; or one has all."""
    choices = {2: [(0, extent), (extent, 0)], 3: [(extent - 2, 0, 2), (0, 1, extent - 1), (0, extent, 0)]}[count]
    sizes = choices[variant % len(choices)]
    return sizes if min(sizes) >= 0 else choices[-1]


def over(processors, rule, **sizes):
    return Layout(f"x:{processors}", rule, sizes=sizes)


def layouts_with_zeros(build, rules, dtype=tf.float64):
    """Layouts by these rules, each dimension with exact sizes of which one at least is zero."""
    extents = program_extents(build, dtype)
    for number, rule in enumerate(rules):
        pairs = convert_to_rules(rule)
        if any(dim not in extents for dim, _ in pairs):
            continue
        mesh = [(axis, COUNTS[axis]) for axis in sorted({axis for _, axis in pairs})]
        for variant in range(number, number + 2):
            yield Layout(mesh, rule, (), {d: sizes_with_zeros(extents[d], COUNTS[a], variant) for d, a in pairs})


@pytest.mark.parametrize("chosen", ONE_OR_ALL)
@parametrize("name", FLOAT32_PROGRAMS, first=["pool3d", "layer_norm"])
def test_float32_operations(name, chosen):
    build, rules = FLOAT32_PROGRAMS[name]
    check(build, *chosen(layouts_with_zeros(build, rules, tf.float32)), dtype=tf.float32, **ONCE)


OTHERS = {
    **{f"program {name}": (p, ("b:x", "c:x", "b:x;c:y", "f:x;b:y")) for name, p in graph_operations.PROGRAMS.items()},
    "rename": (reshapes.rename, ("f0:x;r0:x", "f0:x;r0:y", "r0:x;f0:x;n:y", "f0:y;k:x")),
    "flatten": (reshapes.flatten, ("c:x;k:x", "h2:x;c2:y", "c:x;c2:y;n:x", "b:y;n:x")),
    "outstanding sum": (
        reshapes.outstanding_sum,
        ("b:x;scattered:x", "b:x;cut:y", "b:y;scattered:y;cut:x", "b:x;a:y"),
    ),
    "rounds": (rounds.program((3, 2, 2)), ("b:x", "b:x;u:x", "rounds/b:x", "outer:x;b:y;u:y", "b:x;i:y")),
    "upsampling": (upsampling.program, ("h:x", "w:x;b:y", "c:x;h:y")),
}


ONE_OR_FEW = [ONE_OR_ALL[0], pytest.param(few, id="few", marks=pytest.mark.full)]
APART = ["dense", "conv2d_same", "along", "reductions", "softmax_loss"]  # in the first tier where no memory is shared
LARGE = ["elementwise", "program repeated_roles", "upsampling"]  # in the first tier those of their parts


@pytest.mark.parametrize("chosen", ONE_OR_FEW)
@parametrize(
    "name",
    [*PROGRAMS, *OTHERS],
    first=[name for name in (*PROGRAMS, *OTHERS) if name not in (*APART, *LARGE)],
)
def test_operations(name, chosen):
    build, rules = (PROGRAMS | OTHERS)[name]
    check(build, *chosen(layouts_with_zeros(build, rules)), **ONCE)


@pytest.mark.parametrize("chosen", ONE_OR_FEW)
@pytest.mark.parametrize("name", APART)
def test_where_memory_is_not_shared(name, chosen, monkeypatch):
    monkeypatch.setattr(collectives, "share_memory", lambda devices: len(devices) < 2)
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = PROGRAMS[name]
    check(build, *chosen(layouts_with_zeros(build, rules)), **ONCE)


def windows(convolutions, pools):
    """Windows that are wider than a slice, and extents that become those of other slices or are kept whole."""

    def build(feed):
        x = feed("x", [B, mtf.Dimension("h", 13), W, C])
        outputs = {}
        for size, stride, padding in convolutions:
            w = variable(feed, f"w_{size}_{stride}_{padding}", [mtf.Dimension("kh", size), K3[1], C, F])
            y = mtf.Conv2dOperation(x, w, [1, stride, 1, 1], padding).outputs[0]
            outputs[f"conv {size} {stride} {padding}"] = y
        w = variable(feed, "w_transposed", [mtf.Dimension("kh", 4), K3[1], F, C])
        outputs["transposed"] = mtf.Conv2dTransposeOperation(x, w, [1, 2, 1, 1], "SAME").outputs[0]
        for kind, size, stride, padding in pools:
            options = {"kind": kind, "size": (size, 2), "strides": (stride, 1), "padding": padding}
            outputs[f"{kind} {size} {stride} {padding}"] = layers.pool(x, **options)
        small = layers.pool(x, kind="avg", size=(13, 1), strides=(13, 1))  # a height of one, which is kept whole
        outputs["wider"] = layers.pool(small, kind="max", size=(2, 2), strides=1, padding=1)
        outputs["average"] = layers.pool(small, kind="avg", size=(2, 2), strides=1, padding=1)
        return outputs

    return build


CONVOLUTIONS = [*itertools.product((1, 3, 5), (1, 2), ("SAME", "VALID"))]
POOLS = [*itertools.product(("max", "avg"), (2, 5), (1, 3), ("SAME", "VALID", 1))]


WINDOWS = [
    over(5, "h:x", h=[6, 0, 0, 4, 3]),
    over(3, "h:x", h=[0, 12, 1]),
    over(3, "b:x", b=[0, 7, 0]),
    Layout("x:3;y:2", "c:x;f:y", sizes={"c": [3, 0, 2], "f": [0, 11]}),
    Layout("x:3;y:2", "h:x;f:y", sizes={"h": [7, 6, 0], "f": [0, 11]}),
]


@each_of_a_kind("layout", WINDOWS, first=[WINDOWS[0]])
def test_windows(layout, some, options):
    check(windows(some(CONVOLUTIONS), some(POOLS)), layout, **options)


def grouped(feed):
    options = {"filter_initializer": tf.random_normal_initializer(), "variable_dtype": mtf.VariableDType(feed.dtype)}
    x = feed("x", [B, H, W, mtf.Dimension("c", 6)])
    return {
        "depthwise": layers.depthwise_conv2d(x, multiplier=2, filter_size=(3, 3), name="depthwise", **options),
        "grouped": layers.grouped_conv2d(x, F6, groups=3, filter_size=(3, 2), name="grouped", **options),
        "upsampled": layers.upsample(x, (2, 3), method="bilinear", name="up"),
    }


F6 = mtf.Dimension("f", 6)


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@pytest.mark.parametrize("chosen", FEW_OR_ALL)
def test_convolutions_in_groups(chosen, options):
    extents = program_extents(grouped)
    names = [name for name in extents if "groups" in name or name in "bhcf"]
    layouts = [over(3, f"{name}:x", **{name: sizes_with_zeros(extents[name], 3, i)}) for i, name in enumerate(names)]
    assert len(layouts) > 4
    check(grouped, *chosen(layouts), **options)


def normalised(feed):
    x = feed("x", [B, H, W, C])
    return {
        "training": layers.batch_norm(x, training=True, name="one"),
        "inference": layers.batch_norm(x, training=False, name="two"),
        "per": layers.batch_norm(x, training=True, per=["h"], name="three"),
    }


NORMALISED = [
    over(3, "b:x", b=[4, 0, 3]),
    over(3, "c:x", c=[0, 5, 0]),
    Layout("x:3;y:2", "b:x;h:y", sizes={"b": [7, 0, 0], "h": [0, 6]}),
    Layout("x:3;y:2", "h:x;c:y", sizes={"h": [3, 0, 3], "c": [5, 0]}),
]


@parametrize("dtype", [tf.float64, tf.float32], first=[tf.float32])
@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
def test_batch_norm(dtype, options):
    check(normalised, *NORMALISED, dtype=dtype, **options)


@of_cpus
def test_processors_that_take_no_part_are_sent_nothing():
    """A filter's processor without filters computes and receives nothing, though it holds a part of the image."""
    with tf.Graph().as_default() as tf_graph:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = mtf.import_tf_tensor(mesh, tf.zeros([7, 6, 4, 5]), mtf.Shape([B, H, W, C]))
        w = mtf.get_variable(mesh, "w", mtf.Shape([*K3, C, F]))
        y = mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0]
        layout = Layout("x:2;y:2", "h:x;f:y", sizes={"h": [3, 3], "f": [11, 0]})
        Lowering(graph, {mesh: cpu_mesh_impl(layout)}).tensors[y]
        convolutions = [op for op in tf_graph.get_operations() if op.type == "Conv2D"]
        assert {op.device[-1] for op in convolutions} == {"0", "2"}  # of processors 0 to 3, those with filters


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@parametrize(
    ("name", "recipe"),
    [("vgg11", "filters"), ("resnet18", "spatial"), ("vgg13", "batch")],
    first=[("vgg11", "filters")],
)
def test_models(name, recipe, options):
    """Each split dimension without units on a processor: filters, units of dense layers, pixels, examples."""
    rules = toy_layout(name, recipe, "three").rules
    extents = extents_in(toy_graph(name))
    for variant in (0, 1):
        sizes = {dim: sizes_with_zeros(extents[dim], 3, number + variant) for number, (dim, _) in enumerate(rules)}
        check(toy_program(name), Layout("x:3", rules, sizes=sizes), **options)


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
def test_the_last_layers_on_one_device(options):
    """VGG's dense layers on the first device alone, and its convolutions on two."""
    layout = toy_layout("vgg11", "filters", "two")
    extents = extents_in(toy_graph("vgg11"))
    dense = {dim: [extents[dim], 0] for dim, _ in layout.rules if dim.startswith("dense")}
    assert dense
    check(toy_program("vgg11"), dataclasses.replace(layout, sizes=dense), **options)


@pytest.mark.parametrize("chosen", ONE_OR_ALL)
def test_a_transformer(chosen):
    layouts = [
        Layout("m:3", "heads:m;d_ff:m;vocab:m", sizes={"heads": [3, 0, 2], "d_ff": [0, 23, 0], "vocab": [0, 30, 1]}),
        Layout("b:2;m:2", "batch:b;heads:m", sizes={"batch": [7, 0], "heads": [0, 5]}),
    ]
    check(random_tokens(), *chosen(layouts), dtype=tf.float32, **ONCE)


@parametrize("name", SAVERS, first=["slices once"])
def test_checkpoints(tmp_path, name):
    """Written by slices of which some are empty, and read by others; the other way round is in test_saver."""

    def make_program(layout):
        program = Program(layout, mtf.optimize.AdamWeightDecayOptimizer(0.01))
        tf.train.get_or_create_global_step()
        return program

    layout = over(3, "f:x", f=[0, 9, 2])
    with tf.Graph().as_default(), make_session(layout) as session:
        program = make_program(layout)
        program.initialize(session)
        for _ in range(3):
            session.run(program.train)
        path, expected = SAVERS[name]().save(session, str(tmp_path / "model")), session.run(program.values)
    assert_equal({key: value for key, value in read(path).items() if key != "global_step"}, expected)
    for other in (layout, LAYOUTS["empty"], LAYOUTS["one"], LAYOUTS["three_even"]):
        with tf.Graph().as_default(), make_session(other) as session:
            program = make_program(other)
            SAVERS[name]().restore(session, path)
            session.run(tf.local_variables_initializer())
            assert_equal(session.run(program.values), expected)
            session.run(program.train)


def test_a_second_lowering():
    """By another layout, whose slices are copies of the first one's, and back."""
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        w = mtf.get_variable(mesh, "w", mtf.Shape([C, F]), initializer=tf.random_normal_initializer())
        update = mtf.assign(w.operation, w * 2.0)
        layouts = [over(3, "f:x", f=[0, 4, 7]), over(3, "f:x", f=[11, 0, 0]), over(2, "c:x", c=[0, 5])]
        lowerings = [Lowering(graph, {mesh: cpu_mesh_impl(layout)}) for layout in layouts]
        session.run([tf.global_variables_initializer()])
        whole = [lowering.export_to_tf_tensor(w) for lowering in lowerings]
        for lowering in lowerings:
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            before = session.run(whole)
            session.run(lowering.lowered_operation(update))
            session.run(lowering.copy_slices_to_masters())
            session.run(tf.local_variables_initializer())
            for one, other in zip(before, session.run(whole), strict=True):
                np.testing.assert_array_equal(one * 2, other)


def test_what_a_step_takes_and_sends():
    """Estimates and counts of a step with empty slices."""
    layout = over(3, "f:x", f=[0, 9, 2])
    with tf.Graph().as_default():
        program = Program(layout, mtf.optimize.MomentumOptimizer(0.01, 0.9))
        estimates = memory.estimate(program.lowering, [program.train, program.loss])
        assert all(estimate.peak > 0 for estimate in estimates.values())
    assert allreduce_bytes(10**6, 3, shares=[0, 2, 2]) == {
        (0, 1): 2 * 10**6,
        (0, 2): 2 * 10**6,
        (1, 0): 2 * 10**6,
        (1, 2): 4 * 10**6,
        (2, 0): 2 * 10**6,
        (2, 1): 4 * 10**6,
    }


@on_workers
@parametrize("name", ["conv2d_same", "dense"], first=["dense"])
def test_on_workers(name, workers, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = PROGRAMS[name]
    reference, cluster = one_device(build), workers.cluster
    for layout in few(layouts_with_zeros(build, rules), 2):
        devices = [cluster.devices[pnum % len(cluster.devices)] for pnum in range(layout.size)]
        found = run(build, lambda: UnevenMeshImpl.from_layout(layout, devices), tf.float64, cluster)  # noqa: B023
        assert_same(reference, found, TOLERANCE[tf.float64])
