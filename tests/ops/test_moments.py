"""Moments in one exchange: the same on every layout, without cancellation, and as few messages as there can be."""

import numpy as np
import pytest
from apart import WORKERS
from normalization import IMAGES, B, C, H, moments
from operations import layouts
from oracle import ONCE, Feed, check, one_device

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.mesh import traffic
from mtf_hetero.mesh.traffic import waiting

KEPT = {"channels": [C], "images": [B], "rows and channels": [H, C]}
TWO = Layout("x:2", "b:x", {"x": [3, 1]})


@pytest.mark.parametrize("kept", KEPT)
def test_they_are_the_same_on_every_layout(kept):
    check(moments(*KEPT[kept]), *layouts("h:x;c:y", "b:x;w:y"), Layout("x:3", "b:x", {}, {"b": (3, 0, 2)}), **ONCE)


@pytest.mark.parametrize("kept", KEPT)
def test_they_and_their_gradient_are_tensorflow_s(kept):
    found = one_device(moments(*KEPT[kept])).slices
    axes = [axis for axis, dim in enumerate(IMAGES) if dim not in KEPT[kept]]
    with tf.Graph().as_default(), tf.Session() as session:
        feed = Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        x = feed("x", IMAGES).operation._tf_tensor
        weights = [feed(f"weights of {name}", KEPT[kept]).operation._tf_tensor for name in ("mean", "variance")]
        both = tf.nn.moments(x * 3.0 + 1000.0, axes)
        expected = session.run([*both, *tf.gradients(both, x, weights)])
    for name, value in zip(("mean", "variance", "gradient of input x"), expected, strict=True):
        np.testing.assert_allclose(found[name][0], value, rtol=0, atol=1e-9, err_msg=name)


def lowered(build, layout, devices):
    """Return the result of a program, lowered in TensorFlow's default graph."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    outputs = build(Feed(mesh, tf.float64))
    lowering = mtf_hetero.Lowering(graph, {mesh: mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)})
    return [lowering.tensors[y].to_laid_out_tensor().tensor_list for y in outputs.values()]


@pytest.mark.usefixtures("own_graph")
@pytest.mark.parametrize(("layout", "hops", "messages"), [(TWO, 1, 2), (Layout("x:3", "b:x"), 2, 4)])
def test_two_processors_send_each_other_theirs(layout, hops, messages):
    """Two swap their moments; one of three collects them."""
    fetched = [x.op for slices in lowered(moments(C), layout, WORKERS[: layout.size]) for x in slices]
    sent = [send for send in traffic.sends(fetched) if send.source in WORKERS and send.target in WORKERS]
    assert len(sent) == messages
    found = waiting.find_waiting(fetched, lambda a, b: {a, b} <= set(WORKERS), 0)
    assert found is not None
    assert max(around.before for around in found.around.values()) == hops


@pytest.mark.usefixtures("own_graph")
def test_both_get_the_same_bits(monkeypatch):
    monkeypatch.setattr("mtf_hetero.mesh.collectives.share_memory", lambda devices: False)
    slices = lowered(moments(C), TWO, ["cpu:0", "cpu:1"])
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        for one, other in session.run(slices):
            np.testing.assert_array_equal(one, other)
