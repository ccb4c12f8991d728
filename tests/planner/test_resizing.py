"""Other sizes for devices that have become slower or faster."""

import dataclasses

import numpy as np
import pytest

from mtf_hetero import mtf
from mtf_hetero._compat import tf
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.layout import Layout
from mtf_hetero.planner.resizing import Resizer, corrected, resized

BATCH = 512
DEVICES = ("worker:0/cpu:0", "worker:1/cpu:0")


def build():
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    batch, io, hidden = mtf.Dimension("batch", BATCH), mtf.Dimension("io", 256), mtf.Dimension("hidden", 512)
    x = mtf.zeros(mesh, [batch, io])
    for number in range(2):
        w = mtf.get_variable(mesh, f"w{number}", mtf.Shape([io, hidden]))
        x = mtf.einsum([mtf.einsum([x, w], output_shape=[batch, hidden]), w], output_shape=[batch, io])
    mtf.assign(w, w + mtf.reduce_sum(x))
    return x.mesh.graph


def test_sizes_follow_the_factors_and_return():
    layout = Layout("all:3", "a:all;b:all", sizes={"a": [32, 32, 0], "b": [10, 20, 30]})
    slower = dict(resized(layout, [1.0, 3.0, 1.0]).sizes)
    assert slower == {"a": (48, 16, 0), "b": (13, 8, 39)}
    assert resized(layout, [1.0, 1.0, 1.0]) == layout
    assert resized(layout, [2.0, 2.0, 2.0]) == layout


def test_a_coordinate_of_several_devices_is_as_slow_as_their_mean():
    layout = Layout("rows:2;cols:2", "a:rows;b:cols", sizes={"a": [30, 30], "b": [30, 30]})
    assert dict(resized(layout, [1.0, 1.0, 1.0, 4.0]).sizes) == {"a": (40, 20), "b": (40, 20)}


@pytest.mark.parametrize("dim", ["batch", "hidden"])
def test_what_a_step_gains(dim):
    present = Layout("all:2", f"{dim}:all")
    with tf.Graph().as_default():
        resizer = Resizer(build(), present, DEVICES)
    first = resizer._model.busy_seconds(present)
    cut = resizer.resize(present, first, [first[0], 3 * first[1]])
    assert cut.slowness == pytest.approx((1.0, 3.0))
    (sizes,) = {sizes for name, sizes in cut.layout.sizes if name == dim}
    assert sizes[0] / sum(sizes) > 0.75  # in proportion to the speeds it were three quarters
    assert 0.45 < cut.step < 0.9  # what a step does besides is not split
    restored = resizer._model.busy_seconds(cut.layout)
    resizer.resize(cut.layout, first, [restored[0], 3 * restored[1]])  # measured after the switch
    back = resizer.resize(cut.layout, first, restored)
    assert back.layout == resizer._layout
    assert back.step < 0.95
    assert resizer.resize(present, first, [2 * each for each in first]).step == 1.0


@dataclasses.dataclass(frozen=True)
class Truth:
    """Two devices as they are, which a Resizer knows by their measured seconds alone.

    Args:
      dim: the dimension that is split.
      cached: the number of its units up to which a device needs only three quarters of the time for each.
      sent: bytes that each device sends, whatever its share is.
      noise: the largest relative error of a measurement.
    """

    dim: str
    cached: int = 0
    sent: int = 0
    noise: float = 0.0

    def seconds(self, units, slowness):
        """The seconds for which each device is busy: fixed ones, those of its units, and those of its messages."""
        work = [count * own * (0.75 if count <= self.cached else 1.0) for count, own in zip(units, (2e-5, 3e-5))]
        return [slow * (1e-3 + own + 3e-9 * self.sent) for slow, own in zip(slowness, work)]

    def measure(self, units, slowness):
        errors = np.random.default_rng(sum(units) * units[0]).uniform(-self.noise, self.noise, 2)
        return [seconds * (1 + error) for seconds, error in zip(self.seconds(units, slowness), errors)]

    def fastest(self, total, slowness):
        """The seconds of a step with the best sizes, by trying all."""
        return min(max(self.seconds((count, total - count), slowness)) for count in range(1, total))


ALL_REDUCED = 2 * BATCH * 256 * 4  # bytes of the outputs of two layers whose hidden units are split
TRUTHS = [  # with how near to the best sizes the first change and the second one come
    (Truth("batch"), 1.02, 1.02),
    (Truth("batch", cached=256), 1.15, 1.02),
    (Truth("batch", cached=128, noise=0.03), 1.06, 1.03),
    (Truth("hidden", sent=ALL_REDUCED), 1.05, 1.2),
    (Truth("hidden", cached=256, sent=ALL_REDUCED, noise=0.03), 1.1, 1.15),
]


@pytest.mark.parametrize("slowness", [(1, 3), (2, 1)])
@pytest.mark.parametrize(("truth", "near", "nearer"), TRUTHS)
def test_sizes_come_near_to_the_best_of_devices_that_differ_from_the_model(truth, near, nearer, slowness):
    """With fixed seconds, a cache, messages and noise that the cost model does not know."""
    layout = Layout("all:2", f"{truth.dim}:all")
    with tf.Graph().as_default():
        resizer = Resizer(build(), layout, DEVICES)
    (first,) = {sizes for name, sizes in resizer._layout.sizes if name == truth.dim}
    measured, units = truth.measure(first, (1, 1)), first
    for most in (near, nearer):
        layout = resizer.resize(layout, measured, truth.measure(units, slowness)).layout
        units = dict(layout.sizes)[truth.dim]
        assert max(truth.seconds(units, slowness)) < most * truth.fastest(sum(units), slowness)


def test_devices_without_work_do_not_count():
    layout = Layout("all:3", "batch:all", sizes={"batch": [BATCH // 2, BATCH // 2, 0]})
    with tf.Graph().as_default():
        resizer = Resizer(build(), layout, [*DEVICES, "worker:2/cpu:0"])
    busy = resizer._model.busy_seconds(layout)
    found = resizer.resize(layout, [*busy[:2], 0.0], [busy[0], 3 * busy[1], 0.0])
    assert dict(found.layout.sizes)["batch"][2] == 0
    assert found.slowness[:2] == pytest.approx((1.0, 3.0))


def test_sizes_on_a_mesh_of_two_axes():
    devices = [f"worker:{index}/cpu:0" for index in range(4)]
    layout = Layout("rows:2;cols:2", "batch:rows;hidden:cols")
    with tf.Graph().as_default():
        resizer = Resizer(build(), layout, devices)
    busy = resizer._model.busy_seconds(layout)
    found = resizer.resize(layout, busy, [busy[0], busy[1], 3 * busy[2], 3 * busy[3]])
    sizes = dict(found.layout.sizes)
    assert sizes["batch"][0] > BATCH * 2 / 3
    assert 0.4 < found.step < 0.9


def test_sizes_that_a_device_cannot_hold_are_nearer_to_the_first_ones():
    layout = Layout("all:2", "hidden:all")
    with tf.Graph().as_default():
        graph = build()
        model = Resizer(graph, layout, DEVICES)._model
        most = model.bytes_held(Layout("all:2", "hidden:all", sizes={"hidden": [400, 112]}))[0]
        first = model.busy_seconds(layout)
        limits = [Machine(DEVICES[0], 5e10, 1e10, most), Machine(DEVICES[1], 5e10, 1e10)]
        found = Resizer(graph, layout, DEVICES, Machines(tuple(limits))).resize(layout, first, [first[0], 9 * first[1]])
        assert 350 < dict(found.layout.sizes)["hidden"][0] <= 400
        limits[0] = dataclasses.replace(limits[0], memory_bytes=1.0)
        with pytest.raises(ValueError, match="^no sizes for these speeds fit the layout and the memory$"):
            Resizer(graph, layout, DEVICES, Machines(tuple(limits))).resize(layout, first, first)


def test_another_layout_replaces_sizes_if_the_user_left_it_open():
    """A step that is split by its hidden units exchanges much, and a slow device exchanges as much as before."""
    present = Layout("all:2", "hidden:all", sizes={"hidden": [256, 256]})
    machines = Machines(tuple(Machine(name, 1e11, 1e10, seconds_per_byte=2e-9) for name in DEVICES))
    with tf.Graph().as_default():
        graph = build()
    keeps, replans = (Resizer(graph, present, DEVICES, machines, replans=replans) for replans in (False, True))
    first = keeps._model.busy_seconds(present)
    slower = [first[0], 2 * first[1]]
    sizes, other = keeps.resize(present, first, slower), replans.resize(present, first, slower)
    assert {name for name, _ in sizes.layout.sizes} == {"hidden"}
    assert "batch" in {name.rpartition("/")[2] for name, _ in other.layout.sizes}
    assert other.step < 0.9 * sizes.step
    assert other.slowness == pytest.approx((1.0, 2.0))
    again = replans.resize(
        other.layout, first, replans._model.on(corrected(machines, (1.0, 2.0))).busy_seconds(other.layout)
    )
    assert again.layout == other.layout


def test_a_device_that_waits_in_a_new_layout_is_not_taken_for_faster():
    present = Layout("all:2", "batch:all", sizes={"batch": [256, 256]})
    with tf.Graph().as_default():
        resizer = Resizer(build(), present, DEVICES)
    first = resizer._model.busy_seconds(present)
    cut = resizer.resize(present, first, [first[0], 3 * first[1]]).layout
    expected = resizer._model.busy_seconds(cut)
    waits = [expected[0], expected[0] / 2]
    assert waits[1] < 2.5 * expected[1]  # it seems to be less slow
    assert resizer.resize(cut, first, waits).slowness == pytest.approx((1.0, 3.0))
    assert resizer.resize(cut, first, waits).slowness[1] < 2.5  # it has become faster since
