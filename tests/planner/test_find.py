"""Plans: as good as the best of all layouts of small networks, no worse than one device, right where they run."""

import dataclasses
import itertools

import numpy as np
import oracle
import pytest
from dense_steps import FAST, LINKS, SLOW, step
from tiers import parametrize

from mtf_hetero import mtf, tf
from mtf_hetero.cost import timeline
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.planner import finding
from mtf_hetero.planner.planning import find
from mtf_hetero.planner.refine import refine
from mtf_hetero.planner.search import NoAssignmentError
from mtf_hetero.planner.space import Space, Split, prefixes


def best_of_all(graph, machines):
    """The least predicted seconds of all layouts with the sizes that the planner would begin with."""
    model = Model(graph, machines)
    space = Space(model)
    menus = space.menus([sorted(range(count)) for count in prefixes(len(machines.devices))])
    best = np.inf
    for choices in itertools.product(*([None, *menu] for menu in menus.values())):
        sizes = {name: choice for name, choice in zip(menus, choices, strict=True) if choice is not None}
        try:
            layout = space.layout(sizes)
            for op in model.operations:
                for tensor in op.outputs:
                    layout.check(tensor.shape.dims)
            best = min(best, model.seconds(layout))
        except ValueError:
            continue
    return best


@parametrize("link", LINKS, first=["usual link"])
def test_as_good_as_the_best_of_all(link):
    machines = Machines((FAST, SLOW), LINKS[link])
    with tf.Graph().as_default():
        graph, *_ = step()
        plan = find(graph, machines)
        assert plan.seconds <= 1.05 * best_of_all(graph, machines)
        assert plan.seconds <= plan.alone[1]


def test_a_slow_link_is_not_used():
    with tf.Graph().as_default():
        plan = find(step()[0], Machines((FAST, SLOW), LINKS["slow link"]))
    assert plan.devices == ("fast",) and plan.seconds == plan.alone[1]


def test_a_fast_link_is():
    with tf.Graph().as_default():
        plan = find(step(batch=4096)[0], Machines((SLOW, FAST), LINKS["fast link"]))
    assert plan.devices == ("slow", "fast")
    for sizes in dict(plan.layout.sizes).values():
        assert sizes[0] < sizes[1]
    assert plan.seconds < 0.9 * plan.alone[1]


def test_what_is_too_small_for_all_devices_stays_on_some():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        shape = mtf.Shape([mtf.Dimension("a", 2), mtf.Dimension("b", 2)])
        mtf.exp(mtf.get_variable(mtf.Mesh(graph, "mesh"), "x", shape))
        plan = find(graph, Machines((FAST, SLOW, dataclasses.replace(SLOW, name="third")), LINKS["fast link"]))
        assert len(plan.devices) < 3 and plan.seconds <= plan.alone[1]


def test_factors_that_no_tensor_has_together_are_split_one_by_one():
    """As in mtf's layers of experts: each of the large dimensions may be split, and not both over one axis."""
    dims = {name: mtf.Dimension(name, 2**10) for name in ("r0", "r1")}
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh, batch = mtf.Mesh(graph, "mesh"), mtf.Dimension("b", 3)
        x, y = (mtf.get_variable(mesh, name, mtf.Shape([batch, dim])) for name, dim in dims.items())
        mtf.einsum([x, y], mtf.Shape([batch]))
        plan = find(graph, Machines((FAST, SLOW), LINKS["fast link"]))
        assert plan.seconds <= plan.alone[1]
        assert not dims.keys() <= dict(plan.layout.rules).keys()


def test_what_fits_no_device_alone_is_divided(monkeypatch):
    with tf.Graph().as_default():
        graph, *_ = step()
        whole = find(graph, Machines((FAST,))).memory_bytes[0]
        limited = [Machine(m.name, m.flops_per_second, m.bytes_per_second, 0.8 * whole) for m in (FAST, SLOW)]
        in_parts = find(graph, Machines(tuple(limited), LINKS["slow link"]))
        assert in_parts.devices == ("fast",) and in_parts.parts > 1 and max(in_parts.memory_bytes) <= 0.8 * whole
        monkeypatch.setattr(finding, "MOST_DEVICES", 0)  # of a plan with slots, which needs less memory than any split
        plan = find(graph, Machines(tuple(limited), LINKS["slow link"]))
        assert plan.devices == ("fast", "slow") and max(plan.memory_bytes) <= 0.8 * whole
        small = Machines(tuple(Machine(m.name, 1e10, 1e10, 0.1 * whole) for m in (FAST, SLOW)))
        with pytest.raises(NoAssignmentError, match="no layout"):
            find(graph, small)


def test_sizes_follow_the_memory_where_those_of_the_speeds_do_not_fit(monkeypatch):
    with tf.Graph().as_default():
        graph, *_ = step(batch=4096)
        whole = find(graph, Machines((FAST,))).memory_bytes[0]
        machines = Machines((FAST, SLOW), LINKS["fast link"])
        by_speed = find(graph, machines)
        limits = {"fast": 0.4 * whole, "slow": 0.65 * whole}
        pipeline = find(graph, machines.with_memory(limits))
        monkeypatch.setattr(finding, "MOST_DEVICES", 0)
        by_memory = find(graph, machines.with_memory(limits))
    assert by_speed.memory_bytes[0] > limits["fast"]
    needed = dict(zip(by_memory.devices, by_memory.memory_bytes, strict=True))
    assert all(0.9 * limits["fast"] < needed["fast"] and needed[name] <= limits[name] for name in limits)
    assert pipeline.layout.slots and max(pipeline.memory_bytes) < 0.7 * needed["fast"]
    assert pipeline.seconds < 0.9 * by_memory.seconds


def test_sizes_by_memory_are_not_searched_for_slow_layouts(monkeypatch):
    """The batch fits; the units, of which a split takes more than twice as long, do not."""
    with tf.Graph().as_default():
        graph, *_ = step(batch=4096)
        whole = find(graph, Machines((FAST,))).memory_bytes[0]
        machines = Machines((FAST, SLOW), LINKS["fast link"]).with_memory({"slow": 0.4 * whole})
        with monkeypatch.context() as patched:
            patched.setattr(finding, "_HOPELESS", np.inf)
            thorough = find(graph, machines)
        monkeypatch.setattr(Space, "with_memory", None)
        assert find(graph, machines) == thorough
        with pytest.raises(TypeError):
            find(graph, machines.with_memory({"slow": 0.2 * whole}))


def test_parts_of_a_batch_are_not_tried_on_one_device_that_holds_all(monkeypatch):
    tried = []

    class Recorded(finding.Slotted):
        def __init__(self, model, **options):
            tried.append(model.machines.names)
            super().__init__(model, **options)

    monkeypatch.setattr(finding, "Slotted", Recorded)
    with tf.Graph().as_default():
        graph, *_ = step(batch=4096)
        whole = find(graph, Machines((FAST,))).memory_bytes[0]
        machines = Machines((FAST, SLOW), LINKS["fast link"])
        for fast, expected in ((1.1, [("fast", "slow")]), (0.5, [("fast",), ("fast", "slow")])):
            tried.clear()
            find(graph, machines.with_memory({"fast": fast * whole, "slow": 0.45 * whole}))
            assert tried == expected


def test_one_volume_is_divided_along_its_depth():
    with tf.Graph().as_default():
        feed = oracle.Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float32)
        x = feed("volume", [mtf.Dimension(*dim) for dim in zip("bdhwc", (1, 32, 32, 32, 2))])
        for number in (1, 2):
            own = [mtf.Dimension(f"conv{number}/{dim.name[-1]}", dim.size) for dim in x.shape.dims]
            window = [mtf.Dimension(f"conv{number}/window{axis}", 3) for axis in range(3)]
            w = feed(f"kernel{number}", [*window, own[-1], mtf.Dimension(f"f{number}c", 16)])
            x = mtf.Conv3dOperation(mtf.reshape(x, own), w, [1] * 5, "SAME", f"conv{number}").outputs[0]
        plan = find(x.mesh.graph, Machines((FAST, SLOW), LINKS["fast link"]))
    depths = {name: sizes for name, sizes in plan.layout.sizes if name.endswith("d")}
    assert depths and all(sizes[0] > sizes[1] > 0 for sizes in depths.values())


def test_a_plan_says_along_what_a_layer_is_divided_and_when_it_is_computed():
    with tf.Graph().as_default():
        plan = find(step(batch=4096)[0], Machines((SLOW, FAST), LINKS["fast link"]))
    divided = {layer.name: layer for layer in plan.layers if layer.kind}
    assert divided and all(layer.along in layer.split for layer in divided.values())
    assert {layer.along.rpartition("/")[2] for layer in divided.values() if layer.kind == "batch"} <= {"batch"}
    assert max(span.end for span in plan.timeline) <= plan.seconds
    for number in range(2):
        spans = [span for span in plan.timeline if span.device == number]
        assert all(one.end <= other.begin + 1e-12 for one, other in itertools.pairwise(spans))
        assert [span.layer for span in spans if not span.backward][-1] == "dense2"
        computed = sum(layer.seconds[number] for layer in plan.layers)
        assert sum(span.end - span.begin for span in spans) == pytest.approx(computed, rel=0.05)


def test_sizes_heed_what_a_device_loses_to_messages():
    """A slow device whose processor is busy with messages for a while gets less than its speed would say."""
    graph = step(batch=512, inputs=512, units=(512, 512))[0]
    losing = dataclasses.replace(SLOW, seconds_per_byte=1e-9)
    sizes = [
        find(graph, Machines((FAST, device), LINKS["fast link"])).layout.split("dense1/outputs", 512)
        for device in (SLOW, losing)
    ]
    assert 0 < sizes[1][1] < sizes[0][1] < 256


@pytest.mark.parametrize("overhead", [0, 40, 200])
def test_refined_sizes_are_no_worse_and_keep_zeros(overhead):
    def step_seconds(sizes):
        return max(sizes["a"][0], 2 * sizes["a"][2] + overhead) + 0.1 * sizes["b"][0]

    first = {"a": (128, 0, 128), "b": (10, 10, 10)}
    refined = refine(first, step_seconds, granules={}, evaluations=40, groups=[(0,), (1,), (2,)])
    assert refined["a"][1] == 0 and sum(refined["a"]) == 256 and sum(refined["b"]) == 30
    assert step_seconds(refined) < step_seconds(first)
    assert all(size > 0 for size in (*refined["b"], refined["a"][0], refined["a"][2]))


@pytest.mark.parametrize(("busy", "factor"), [(0.0, 0.5), (1.0, 0.75), (9.0, 1.0)])
def test_what_a_device_has_alone_is_as_fast_as_the_others_rest(busy, factor):
    """Twice as fast where they rest, as fast as beside them where they are busy all the time, else between."""
    machines = Machines((Machine("fast", 6e10, 1e10, alone_factor=0.5), SLOW))
    with tf.Graph().as_default():
        graph, *_ = step()
    model = Model(graph, machines)
    space = Space(model)
    product = next(op for op in model.operations if isinstance(op, mtf.EinsumOperation))
    names = [dim.name for dim in product.outputs[0].shape.dims]
    seconds, none = model.compute_seconds(product, space.layout({names[0]: Split(0, (64, 0))}))
    both, _ = model.compute_seconds(product, space.layout({}))
    assert none == 0 and seconds - 1e-5 == pytest.approx((both - 1e-5) / 2)
    clocks = timeline.Clocks(machines)
    clocks.free[1] = 3.0 + busy
    assert clocks.beside_others(0, 3.0, 1.0) == pytest.approx(2 * factor)
    assert clocks.beside_others(1, 3.0, 1.0) == 1.0  # the other one is as fast beside it


def test_one_gradient_of_more_weights_than_an_array_has_dimensions():
    dims = [mtf.Dimension("batch", 64), *(mtf.Dimension(f"units{i}", 8) for i in range(71))]
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        shapes = [mtf.Shape([a, b]) for a, b in itertools.pairwise(dims)]
        x, *weights = [mtf.import_tf_tensor(mesh, tf.zeros(s.to_integer_list), s) for s in shapes]

        def forward(x, *weights):
            for w in weights:
                x = mtf.einsum([x, w], [dims[0], w.shape.dims[1]])
            return x

        mtf.custom_gradient(forward, lambda **_: [None] * len(shapes), [x, *weights])
        plan = find(graph, Machines((FAST, SLOW), LINKS["usual link"]))
    assert plan.seconds <= plan.alone[1]


def test_sums_that_no_product_awaits_are_sent_beside_the_computation(monkeypatch):
    """At their full price, layers are left to one device whose sums together cost nothing."""
    with tf.Graph().as_default():
        graph = step(batch=256, inputs=256, units=(256,) * 6)[0]
    machines = Machines((Machine("a", 1e12, 3e11), Machine("b", 5e11, 1.5e11)), Link(1e-6, 1e10))
    found = find(graph, machines)
    monkeypatch.setattr(finding, "_PRICES", (1.0,))
    assert found.seconds < 0.97 * find(graph, machines).seconds
    space = Space(Model(graph, machines))
    menus = space.menus()
    pairs = list(zip(*space.tables(menus, [0.0, 1.0]), strict=True))
    assert all((free.costs <= full.costs).all() for free, full in pairs)
    assert any((free.costs < full.costs).any() for free, full in pairs)
