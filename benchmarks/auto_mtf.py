"""The layouts of Mesh-TensorFlow's own optimizer beside the planner's: time and memory.

    pip install --no-deps ortools==9.11.4210
    python -m benchmarks.auto_mtf

`mesh_tensorflow.auto_mtf` looks for the layout with the least memory on equal devices, and knows nothing of time. Both
get the training step of the same networks, for devices that are alike and need not be here; what both found is then
predicted by the planner's one cost model. Exit codes: 0, and 2 where OR-tools is not installed.
"""

import importlib
import importlib.util
import sys
import time

from benchmarks.renderers.tables import table
from mtf_hetero import Layout, mtf, tf
from mtf_hetero._support import command_line
from mtf_hetero.cli.network import build_step
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import describe, find

NETWORKS = (("lenet", 128), ("vgg11", 256), ("vgg16", 64), ("resnet18", 64))
COUNTS = (2, 4)
_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 4e10, 1e10  # of a core
_LINK = Link(1e-4, 1e9)
_HEADER = ("network, batch, devices", "found by", "search s", "step ms", "a device's MB", "MB sent", "names split")


def _lines(network: str, batch_size: int, count: int) -> list[list[object]]:
    """Return the layouts of both for a network on some number of devices."""
    auto_mtf = importlib.import_module("mesh_tensorflow.auto_mtf")
    machines = Machines(tuple(Machine(f"core:{n}", _FLOPS_PER_SECOND, _BYTES_PER_SECOND) for n in range(count)), _LINK)
    name = f"{network}, {batch_size}, {count}"
    with tf.Graph().as_default():
        graph = build_step(MODELS[network], batch_size, "sgd")
        begin = time.perf_counter()
        plan = find(graph, machines)
        lines = [_line(name, "the planner", time.perf_counter() - begin, plan)]
        begin = time.perf_counter()
        try:
            rules = auto_mtf.layout(graph, f"all:{count}", [v.outputs[0] for v in graph.trainable_variables])
        except KeyError as error:  # its own schedule frees a tensor twice
            return [[name, "auto_mtf", f"fails: KeyError {error}", *[None] * 4], *lines]
        seconds = time.perf_counter() - begin
        theirs = describe(graph, machines, Layout([("all", count)], list(mtf.convert_to_layout_rules(rules)._pairs)))
    return [_line(name, "auto_mtf", seconds, theirs), *lines]


def _line(name: str, found_by: str, search_seconds: float, plan: Plan) -> list[object]:
    sent = sum(sum(layer.sent_bytes) for layer in plan.layers)
    return [
        name,
        found_by,
        search_seconds,
        1e3 * plan.seconds,
        max(plan.memory_bytes) / 1e6,
        sent / 1e6,
        len(plan.layout.rules),
    ]


def main() -> int:
    """Print the table, and return the exit code."""
    if importlib.util.find_spec("ortools") is None:
        command_line.say("OR-tools is not installed; run pip install --no-deps ortools==9.11.4210")
        return command_line.WRONG_USAGE
    lines = [line for network, batch in NETWORKS for count in COUNTS for line in _lines(network, batch, count)]
    print(table(_HEADER, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
