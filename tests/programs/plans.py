"""Plans to show: of a few devices and layers, of one device, of many layers, and of many devices."""

from mtf_hetero.cost.timeline import Span
from mtf_hetero.layout import Layout
from mtf_hetero.planner.plan import LayerPlan, Plan

KINDS = {"batch": "batch", "filters": "outputs", "channels": "inputs", "height": "space", "other": "other"}


def layer(name, along, sizes, sent=0):
    """A layer that is divided along one dimension of its own; none: each device does it whole."""
    seconds = tuple(1e-3 if size else 0.0 for size in sizes)
    if along is None:
        return LayerPlan(name, {}, seconds, (sent,) * len(sizes))
    dim = f"{name}/{along}"
    return LayerPlan(name, {dim: tuple(sizes)}, seconds, (sent,) * len(sizes), dim, KINDS[along])


def make_plan(layers, devices):
    """A plan whose devices compute one layer after the other, forward and back."""
    split = {name: sizes for one in layers for name, sizes in one.split.items()}
    spans = []
    for number in range(len(devices)):
        order = [(one, False) for one in layers] + [(one, True) for one in reversed(layers)]
        working = [(one, backward) for one, backward in order if one.seconds[number]]
        spans += [Span(number, one.name, i, i + 0.9, backward) for i, (one, backward) in enumerate(working)]
    return Plan(
        devices=tuple(devices),
        layout=Layout(f"all:{len(devices)}", [(name, "all") for name in split], (), split),
        seconds=2.0 * len(layers),
        alone=(devices[0], 3.0 * len(layers)),
        gap=0.0,
        layers=tuple(layers),
        memory_bytes=(1,) * len(devices),
        extents={},
        timeline=tuple(spans),
    )


THREE = make_plan(
    [
        LayerPlan("input", {}, (0.0,) * 3, (0,) * 3),
        layer("conv1", "batch", (5, 2, 1), 10),
        layer("conv2", "filters", (40, 20, 0), 20),
        layer("conv3", "channels", (30, 20, 10)),
        layer("conv4", "height", (8, 8, 8)),
        layer("odd", "other", (3, 2, 1)),
        layer("dense", None, (1, 1, 0)),
    ],
    ("gpu:0", "gpu:1", "cpu:0"),
)
ALONE = make_plan([layer("conv1", None, (1,)), layer("dense", None, (1,))], ("a device with a long name",))
DEEP = make_plan(
    [layer(f"stage/block{i}/conv", "batch" if i < 50 else "filters", (62, 27, 39)) for i in range(60)], ("a", "b", "c")
)
MIXED = make_plan([layer(f"stage/conv{i}", ("batch", "filters")[i % 2], (60, 40)) for i in range(70)], ("a", "b"))
KIND_NAMES = [*(f"V100:{i}" for i in range(32)), *(f"P100:{i}" for i in range(32))]
MANY = make_plan([layer(f"conv{i}", "batch", (3,) * 32 + (1,) * 32, 5) for i in range(5)], KIND_NAMES)
STRANGERS = make_plan([layer("conv", "batch", (1,) * 20)], [f"device{i}" for i in range(20)])
PLANS = {"three": THREE, "alone": ALONE, "deep": DEEP, "mixed": MIXED, "many": MANY, "strangers": STRANGERS}
