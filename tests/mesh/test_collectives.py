"""Sums over processors: every algorithm gives every processor the same bits, and what is rounded on the wire."""

import itertools

import numpy as np
import oracle
import pytest
from normalization import normalised
from operations import PROGRAMS, layouts, layouts_with_zeros
from oracle import ONCE, check
from reshapes import outstanding_sum
from tiers import few, parametrize

from mtf_hetero import Layout, UnevenMeshImpl, tf
from mtf_hetero.mesh import collectives

# One of each kind of message: halos, sums, rows of a table, largest values, sums that are scattered, moved slices
APART = {name: PROGRAMS[name] for name in ("conv2d_same", "dense", "gather", "softmax_loss", "reductions", "along")} | {
    "outstanding_sum": (outstanding_sum, ("b:x;scattered:x", "b:x;cut:y", "b:y;scattered:y;cut:x", "b:x;a:y")),
    "batch_norm": (normalised, ("b:x", "h:x;b:y", "b:x;c:y")),
}
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
CONFIG = tf.ConfigProto(device_count={"CPU": 3})
NUMPY = {"SUM": np.sum, "MAX": np.max, "MIN": np.min}


@pytest.fixture
def apart(monkeypatch):
    """Lets logical devices of one CPU pass for devices that share no memory."""
    monkeypatch.setattr(collectives, "share_memory", lambda devices: len(devices) < 2)


def reduced(count, *, dtype=np.float32, reduction="SUM", size=7, **kwargs):
    """Return the result of each processor, and the addends."""
    addends = (np.random.default_rng(1).standard_normal([count, size, 3]) * 100).astype(dtype)
    devices = DEVICES[:count]
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        xs = []
        for device, addend in zip(devices, addends):
            with tf.device(device):
                xs.append(tf.constant(addend))
        return session.run(collectives.allreduce(xs, devices, reduction, **kwargs)), addends


@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
def test_every_algorithm_reduces(small_bytes, apart, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    for reduction, count, dtype, last in itertools.product(NUMPY, (2, 3), (np.float64, np.int32), (0, 0.001)):
        case = f"{reduction} of {count} of {dtype.__name__}, the last share {last}"
        results, addends = reduced(count, dtype=dtype, reduction=reduction, shares=[70, 25, last][:count])
        for result in results:
            np.testing.assert_allclose(result, NUMPY[reduction](addends, axis=0), rtol=1e-12, err_msg=case)
            np.testing.assert_array_equal(result, results[0], err_msg=case)


@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
@pytest.mark.parametrize("count", [2, 3])
def test_what_is_sent_is_rounded_and_all_get_the_same(count, small_bytes, apart, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    results, addends = reduced(count, wire_dtype=tf.bfloat16)
    exact, largest = addends.sum(0), np.abs(addends).sum(0).max()
    for result in results:
        assert result.dtype == np.float32
        assert 0 < np.abs(result - exact).max() < 2 * 2**-8 * largest
        np.testing.assert_array_equal(result, results[0])
    whole, addends = reduced(count, dtype=np.int32, wire_dtype=tf.bfloat16)
    np.testing.assert_array_equal(whole[0], addends.sum(0))


def test_nothing_is_sent_within_one_memory():
    assert collectives.share_memory(DEVICES)
    assert collectives.share_memory(["/job:worker/task:1/device:CPU:0", "/job:worker/task:1/device:CPU:1"])
    assert not collectives.share_memory(["/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"])
    assert not collectives.share_memory(["gpu:0", "cpu:0"])
    results, addends = reduced(3, wire_dtype=tf.bfloat16)
    np.testing.assert_allclose(results[2], addends.sum(0), rtol=1e-5)


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.full)])
@parametrize("name", APART, first=["conv2d_same", "dense", "gather"])
def test_operation_is_the_same_where_memory_is_not_shared(name, count, apart, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = APART[name]
    check(build, *few(layouts(*rules), count), *few(layouts_with_zeros(build, rules[::-1]), count), **ONCE)


@parametrize("name", ["conv2d_same", "dense", "along"], first=["conv2d_same"])
def test_operation_is_nearly_the_same_with_numbers_rounded_on_the_wire(name, apart, monkeypatch):
    def rounding(layout):
        return UnevenMeshImpl.from_layout(layout, [f"cpu:{i}" for i in range(layout.size)], "bfloat16")

    monkeypatch.setattr(oracle, "cpu_mesh_impl", rounding)
    build, rules = PROGRAMS[name]
    check(build, *few(layouts(*rules), 2), dtype=tf.float32, tolerance=0.05, **ONCE)


def test_the_wire_type_must_be_one():
    with pytest.raises(ValueError, match="wire_dtype is 'int32'; it must be a floating-point type"):
        UnevenMeshImpl.from_layout(Layout("all:1", ""), ["cpu:0"], "int32")
