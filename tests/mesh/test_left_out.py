"""A processor whose slice is empty sends nothing to a sum; it has the result as all have, to the bit."""

import numpy as np
import oracle
import pytest
from allreduce import allreduce_bytes
from operations import PROGRAMS as OPERATIONS
from operations import B, C, F, H, W
from reshapes import outstanding_sum
from rounds import program as rounds
from tiers import parametrize

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero.layout.blocks import Move, Piece
from mtf_hetero.mesh import collectives, traffic

WORKERS = [f"/job:worker/task:{task}/device:CPU:0" for task in range(6)]
NUMBER = {device: pnum for pnum, device in enumerate(WORKERS)}


def over(processors, rule, **sizes):
    return Layout(f"x:{processors}", rule, sizes=sizes)


def on_workers(sends):
    """(source, target, bytes) of what the workers send to each other."""
    known = [send for send in sends if {send.source, send.target} <= NUMBER.keys()]
    return sorted((NUMBER[send.source], NUMBER[send.target], send.bytes) for send in known)


def find_messages(build, layout):
    """Return the messages of a program each of whose processors uses its slices of the outputs."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        outputs = build(oracle.Feed(mesh, tf.float32, oracle.FED))
        lowering = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(layout, WORKERS[: layout.size])})
        used = []
        for y in outputs.values():
            for device, x in zip(WORKERS, lowering.tensors[y].to_laid_out_tensor().tensor_list):
                with tf.device(device):
                    used.append(tf.identity(x).op)
        return on_workers(traffic.sends(used, graph=graph))


def make_gradients(build):
    """A program whose only outputs are the gradients to its variables."""

    def gradients(feed):
        loss = mtf.add_n([mtf.reduce_sum(y * feed(f"weights of {name}", y.shape)) for name, y in build(feed).items()])
        xs = [v.outputs[0] for v in feed.mesh.graph.trainable_variables]
        return {str(i): dx for i, dx in enumerate(mtf.gradients([loss], xs))}

    return gradients


def product(feed):
    return {"y": mtf.einsum([feed("x", [B, H]), feed("w", [H, F])], [B, F])}


def spread_product(feed):
    return {"y": mtf.einsum([feed("x", [B, H]), feed("w", [H, F])], [B, F, C])}


def reduced(feed):
    return {
        "one": mtf.reduce_sum(feed("x", [H, B]), reduced_dim=H),
        "last": mtf.reduce_sum(feed("y", [B, H, F]), output_shape=[F]),
    }


def sum_of_sums(feed):
    x, y = (mtf.reduce_sum(feed(name, [H, B]), reduced_dim=H) for name in "xy")
    return {"sum": x + y, "three": mtf.add_n([x, y, mtf.reduce_sum(feed("z", [B, H]), reduced_dim=H)])}


convolved, transposed = (OPERATIONS[name][0] for name in ("conv2d_same", "conv2d_transpose_wide"))


def normalised(feed):
    return {"y": layers.batch_norm(feed("x", [B, H, W, C]), training=True, name="norm")}


PROGRAMS = {  # with the dimension that is summed over
    "einsum": (product, H),
    "einsum of what no input has": (spread_product, H),
    "reduce_sum": (reduced, H),
    "sum of sums": (sum_of_sums, H),
    "convolution": (convolved, C),
    "transposed convolution": (transposed, C),
    "kernel gradient": (make_gradients(convolved), B),
    "kernel gradient on split space": (make_gradients(convolved), H),
    "gradient of a transposed convolution": (make_gradients(transposed), B),
    "batch norm": (normalised, B),
    "gradient of batch norm": (make_gradients(normalised), B),
}


def sizes_with_zeros(dim, count):
    """Exact sizes of which some are zero: one processor is present, or two are."""
    n = dim.size
    return {2: [(n, 0), (0, n)], 3: [(0, n, 0), (n - 2, 0, 2)]}[count]


FIRST = ["einsum", "einsum of what no input has", "sum of sums", "convolution", "kernel gradient", "batch norm"]


@parametrize("count", [2, 3], first=[3])
@parametrize("name", PROGRAMS, first=FIRST)
def test_an_empty_slice_sends_nothing(name, count):
    build, dim = PROGRAMS[name]
    for sizes in sizes_with_zeros(dim, count):
        found = find_messages(build, over(count, f"{dim.name}:x", **{dim.name: sizes}))
        present = {pnum for pnum, size in enumerate(sizes) if size}
        needing = set() if name == "batch norm" else set(range(count)) - present  # those have no image to normalise
        assert {source for source, _, _ in found} == (present if needing or len(present) > 1 else set()), sizes
        assert {target for _, target, _ in found} >= needing, sizes


def test_a_product_is_sent_as_it_is():
    size = 4 * B.size * F.size
    assert find_messages(product, over(2, "h:x", h=[0, H.size])) == [(1, 0, size)]
    assert find_messages(product, over(2, "h:x", h=[H.size - 1, 1])) == [(0, 1, size), (1, 0, size)]
    assert find_messages(product, over(4, "h:x", h=[0, 4, 0, 2])) == [
        (1, 0, size),
        (1, 2, size),
        (1, 3, size),
        (3, 1, size),
    ]
    assert find_messages(product, Layout("x:2;y:2", "h:x;f:y", sizes={"h": [0, H.size]})) == [
        (2, 0, size // F.size * 6),
        (3, 1, size // F.size * 5),
    ]


def test_only_what_both_sums_lack_is_left_out():
    layout = over(3, "h:x;w:x", h=[3, 3, 0], w=[0, 4, 0])

    def build(feed):
        x, y = mtf.reduce_sum(feed("x", [H, B]), reduced_dim=H), mtf.reduce_sum(feed("y", [W, B]), reduced_dim=W)
        return {"sum": x + y}

    assert find_messages(build, layout) == [(0, 1, 4 * B.size), (0, 2, 4 * B.size), (1, 0, 4 * B.size)]


@parametrize("rule", ["b:x", "b:x;cut:y", "b:x;scattered:x", "b:y;scattered:y;cut:x"], first=["b:x;scattered:x"])
def test_reshapes_of_a_sum(rule):
    axis = dict(pair.split(":") for pair in rule.split(";"))["b"]
    sizes = {"x": [3, 0, 5], "y": [8, 0]}[axis]
    layout = Layout("x:3;y:2", rule, sizes={"b": sizes})
    absent = {pnum for pnum in range(6) if not sizes[layout.coordinates(pnum)["xy".index(axis)]]}

    def build(feed):
        found = outstanding_sum(feed)
        return {name: found[name] for name in ("kept", "scattered", "cut", "again", "sum")}

    found = find_messages(build, layout)
    assert {source for source, _, _ in found} == set(range(6)) - absent
    assert {target for _, target, _ in found} >= absent


def test_a_sum_that_is_put_in_its_place():
    layout = Layout("x:3", "b:x;u:x", sizes={"b": [3, 1, 3], "u": [4, 0, 2]})
    sources = {
        (source, target, size) for source, target, size in find_messages(rounds((3, 1, 3)), layout) if source == 1
    }
    assert sources == {(1, 0, 40), (1, 2, 40)}  # its example, of two by five numbers, and no part of a sum


def addends(count, size=7):
    return (np.random.default_rng(1).standard_normal([count, size, 3]) * 100).astype(np.float32)


ABSENT = {1: [()], 2: [(), (0,), (1,)], 3: [(), (0,), (2,), (0, 2)], 4: [(), (1,), (0, 3), (0, 1, 3)]}


@pytest.mark.parametrize("wire_dtype", [None, tf.bfloat16])
@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
def test_all_get_the_same_bits(small_bytes, wire_dtype, monkeypatch):
    monkeypatch.setattr(collectives, "share_memory", lambda devices: len(devices) < 2)
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    cases = [(count, absent) for count, choices in ABSENT.items() for absent in choices]
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
        sums = []
        for count, absent in cases:
            arrays = addends(count)
            arrays[list(absent)] = np.nan  # nobody looks at them
            devices = [f"cpu:{pnum}" for pnum in range(count)]
            xs = [tf.constant(array) for array in arrays]
            options = {"shares": [4, 3, 2, 1][:count], "wire_dtype": wire_dtype, "absent": absent}
            sums.append(collectives.allreduce(xs, devices, **options))
        for (count, absent), results in zip(cases, session.run(sums)):
            present = [pnum for pnum in range(count) if pnum not in absent]
            scale = np.abs(addends(count)[present]).sum(0).max()
            expected = addends(count)[present].sum(0)
            for result in results:
                np.testing.assert_array_equal(result, results[0], err_msg=f"{count} without {absent}")
                np.testing.assert_allclose(
                    result, expected, rtol=0, atol=scale * (1e-6 if wire_dtype is None else 2**-7)
                )


@pytest.mark.parametrize("wire_dtype", [None, tf.bfloat16])
def test_parts_of_a_sum(wire_dtype):
    moves = [Move((Piece(0, (row, 0), (1, 3)),), (1, 1), (), cuts=True) for row in range(3)]
    with tf.Graph().as_default():
        xs = []
        for device in WORKERS[:3]:
            with tf.device(device):
                xs.append(tf.random.normal([7, 3]))
        parts = collectives.reduce_scatter(xs, WORKERS[:3], [*moves[:2], None], wire_dtype, absent=[1, 2])
        assert parts[2] is None
        read = []
        for device, part in zip(WORKERS, parts[:2]):
            with tf.device(device):
                read.append(tf.negative(part).op)
        assert on_workers(traffic.sends(read)) == [(0, 1, 12 if wire_dtype is None else 6)]


@parametrize("wire_dtype", [None, tf.bfloat16], first=[None])
@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
def test_what_is_sent_is_what_arithmetic_says(small_bytes, wire_dtype, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    for count, absent in [(count, absent) for count, choices in ABSENT.items() for absent in choices]:
        devices = WORKERS[:count]
        with tf.Graph().as_default():
            xs = []
            for device in devices:
                with tf.device(device):
                    xs.append(tf.ones([7, 13]))
            options = {"shares": [4, 3, 2, 1][:count], "absent": absent}
            results = collectives.allreduce(xs, devices, wire_dtype=wire_dtype, **options)
            wire_bytes = 2 if wire_dtype else None
            expected = allreduce_bytes(91, count, wire_item_bytes=wire_bytes, **options)
            found = traffic.links(traffic.sends([result.op for result in results]))
            assert found == {(devices[i], devices[j]): size for (i, j), size in expected.items()}
            assert not set(absent) & {i for i, _ in expected}
            if len(absent) == count - 1:
                assert "AddN" not in {op.type for op in tf.get_default_graph().get_operations()}


def test_devices_of_one_memory():
    """The first that is present computes it."""
    with tf.Graph().as_default():
        xs = [tf.ones([2]) for _ in range(3)]
        results = collectives.allreduce(xs, ["cpu:0", "cpu:1", "cpu:2"], absent=[0])
        assert {result.device for result in results} == {"/device:CPU:1"}
        assert list(results[0].op.inputs) == xs[1:]
        assert collectives.allreduce(xs, ["cpu:0", "cpu:1", "cpu:2"], absent=[0, 2]) == [xs[1]] * 3
