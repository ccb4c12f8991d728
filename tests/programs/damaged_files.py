"""A thousand damaged files, of each kind that programs read, and their readers."""

import dataclasses
import functools
import json
import os

import damage

from mtf_hetero.cli.train import config_file, recorded
from mtf_hetero.cli.train.config import Config
from mtf_hetero.cost import devices_file
from mtf_hetero.data import _volumes_files as volumes
from mtf_hetero.planner import plan

MOST_CHARACTERS = 2100
LINK = {"latency_seconds": 1e-4, "bytes_per_second": 1e9}
CPU = {
    "name": "a",
    "count": 1,
    "flops_per_second": 8e11,
    "bytes_per_second": 5e10,
    "memory_bytes": 6e10,
    "alone_factor": 0.9,
    "operation_seconds": 1e-6,
    "seconds_per_byte": 1e-10,
    "seconds_per_message": 1e-5,
    "granule": 16,
    "factors": {"relu": 0.5},
}
DEVICES = {
    "devices": [{"kind": "V100"}, CPU],
    "link": LINK,
    "links": [{"from": "a", "to": "V100", **LINK}],
    "step_seconds": 1e-3,
}
PLAN = {
    "schema": 1,
    "provenance": {"parameters_bytes": "100"},
    "devices": ["gpu:0", "cpu:0"],
    "mesh_shape": "all:2",
    "rules": {"conv1/filters": "all"},
    "shares": {"all": [2.0, 1.0]},
    "sizes": {"conv1/filters": [40, 20]},
    "extents": {"conv1/filters": 60},
    "predicted": {
        "seconds": 0.25,
        "alone": {"device": "gpu:0", "seconds": 0.4},
        "gap": 0.0,
        "memory_bytes": [10, 20],
        "layers": [
            {
                "name": "conv1",
                "split": {"conv1/filters": [40, 20]},
                "seconds": [0.1, 0.11],
                "sent_bytes": [5, 0],
                "along": "conv1/filters",
                "kind": "outputs",
            }
        ],
    },
}
MANIFEST = {
    "planes": {"shape": [4, 4, 4, 2], "dtype": "float32", "labelled": False, "targets": ["m", "s"]},
    "train_size": 3,
    "test_size": 1,
    "volumes_per_file": 2,
    "classes": 0,
    "mean": [0.0, 1.0],
    "deviation": [1.0, 2.0],
    "target_mean": [0.3, 0.8],
    "target_deviation": [0.1, 0.2],
    "provenance": {"seed": 5},
}
IMAGES = {"image_shape": [28, 28, 1], "classes": 2, "class_names": ["a", "b"], "mean": [0.1], "deviation": [0.3]}
NETWORK = {"format": 1, "model": "lenet", "dataset": "mnist5k", "images": IMAGES}
CONFIG = {
    name: list(value) if isinstance(value, tuple) else value
    for name, value in dataclasses.asdict(
        Config(
            data_dir="data",
            model_dir="no/such/directory",
            max_steps=7,
            learning_rate=0.1,
            mesh_shape="all:2",
            list_speed="2,1",
            dense_shares=None,
            devices=("cpu:0", "cpu:1"),
            recompute=("conv1",),
            trace_steps=(1, 2),
            wire_dtype="float16",
            eval_every="5",
        )
    ).items()
}
CONFIG_SCHEMA = config_file.SCHEMA


def network_schema():
    """Return the schema of network.json with the kind of `images` that a network for images has."""
    return dataclasses.replace(recorded._FILE, fields={**recorded._FILE.fields, "images": recorded._IMAGES})


def contradictions(example, changes):
    """Files whose fields are right each by itself."""
    for number, (*path, value) in enumerate(changes):
        damaged = json.loads(json.dumps(example))
        place = damaged
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        yield damage.Damage(f"contradiction {number}", json.dumps(damaged).encode())


PLAN_CHANGES = [
    ("devices", ["gpu:0"]),
    ("devices", ["gpu:0", "gpu:0"]),
    ("devices", ["a", "b", "c"]),
    ("mesh_shape", "all:3"),
    ("mesh_shape", "all:0"),
    ("mesh_shape", "all:-1"),
    ("mesh_shape", "all:1000000000000"),
    ("mesh_shape", "rows:100000;cols:100000"),
    ("mesh_shape", "all:2;all:1"),
    ("mesh_shape", "all"),
    ("rules", {"conv1/filters": "rows"}),
    ("rules", {"conv1/filters": "all", "batch": "nowhere"}),
    ("rules", {}),
    ("shares", {"rows": [2.0, 1.0]}),
    ("shares", {"all": [2.0]}),
    ("sizes", {"conv1/filters": [60]}),
    ("sizes", {"conv1/filters": [60, 60]}),
    ("sizes", {"conv1/filters": [0, 0]}),
    ("sizes", {"other": [40, 20]}),
    ("extents", {"conv1/filters": 61}),
    ("extents", {"other": 60}),
    ("predicted", "memory_bytes", [1]),
    ("predicted", "layers", 0, "seconds", [1]),
    ("predicted", "layers", 0, "sent_bytes", [1, 2, 3]),
]
DEVICES_CHANGES = [
    ("devices", [{"kind": "V100", "count": 1_000_000}]),
    ("devices", [{"kind": "V100", "count": 6000}, {"kind": "T4", "count": 6000}]),
    ("devices", [{"kind": "V100"}] * 10_001),
    ("devices", [{"name": "a"}]),
    ("devices", [{"name": "a", "flops_per_second": 1e9}]),
    ("devices", [{"count": 2}]),
    ("links", [{"from": "a", "to": "b", **LINK}]),
    ("links", [{"from": "a", "to": "a", **LINK}]),
    ("links", [{"from": "a", "to": "V100", **LINK}] * 2),
]
NETWORK_CHANGES = [
    ("images", "mean", [1.0, 2.0]),
    ("images", "deviation", [1.0, 2.0]),
    ("images", "class_names", ["a"]),
    ("images", {}),
    ("images", {"manifest": {}}),
    ("images", {"manifest": {**MANIFEST, "mean": [1.0]}}),
    ("images", {"manifest": {**MANIFEST, "classes": 3}}),
    ("images", {"manifest": {**MANIFEST, "train_size": 2**40, "volumes_per_file": 1}}),
    ("images", {"manifest": {**MANIFEST, "target_mean": []}}),
    ("images", {"manifest": MANIFEST, "classes": 3}),
]


@functools.cache
def list_damages(kind):
    """Return the damages of a kind of file, each once; made when they are asked for, as some have many megabytes."""
    return list({each.what: each for each in MAKERS[kind]()}.values())


def damage_network():
    head = json.dumps({**NETWORK, "images": None})[:-5].encode()
    yield from damage.make_damages(network_schema(), NETWORK)
    yield from contradictions(NETWORK, NETWORK_CHANGES)
    for each in damage.make_damages(volumes.SCHEMA, MANIFEST):
        if "manifest" not in each.what and not each.what.startswith(("too large", "zeros")):
            yield dataclasses.replace(each, text=head + b'{"manifest": ' + each.text + b"}}")


def damage_devices():
    example = {**DEVICES, "devices": [CPU, {"kind": "V100"}]}
    return [*damage.make_damages(devices_file.SCHEMA, example, is_yaml=True), *contradictions(DEVICES, DEVICES_CHANGES)]


def damage_config():
    found = damage.make_damages(CONFIG_SCHEMA, CONFIG, is_yaml=True)
    return [each for each in found if each.text != b"null"]  # empty is right


MAKERS = {
    "plan.json": lambda: [*damage.make_damages(plan._FILE, PLAN), *contradictions(PLAN, PLAN_CHANGES)],
    "devices.yaml": damage_devices,
    "network.json": damage_network,
    "config.yaml": damage_config,
}


def read_network(path):
    found = recorded.load(os.path.dirname(path))
    assert found is not None
    return found.recorded_data(Config())


READERS = {
    "plan.json": plan.load,
    "devices.yaml": devices_file.load,
    "network.json": read_network,
    "config.yaml": lambda path: Config(**config_file.load(path)),
}
EXAMPLES = {"plan.json": PLAN, "devices.yaml": DEVICES, "network.json": NETWORK, "config.yaml": CONFIG}


def is_one_line(text):
    return 0 < len(text) <= MOST_CHARACTERS and "\n" not in text
