"""Reports from rows that are made up here."""

import pytest

from benchmarks import report
from benchmarks.cases.lowering import Lowering
from benchmarks.cases.one_device import CONTENDERS, OURS
from benchmarks.renderers import RENDERERS
from benchmarks.rows import Writer, summarise

SPREAD = summarise([1.0, 1.5, 2.0])


def write_one_device(directory):
    writer = Writer("one_device", directory)
    for name, contender in CONTENDERS.items():
        row = {
            "network": "vgg16",
            "batch_size": 64,
            "contender": name,
            "seed": 1,
            "warmup": 3,
            "steps": 2,
            "repeats": 3,
        }
        if name == "PyTorch, compiled":
            writer.write(name, {**row, "failed": "RuntimeError: no compiler"})
            continue
        row |= {"wall_seconds_per_step": SPREAD, "cpu_seconds_per_step": SPREAD, "parameters": 7, "threads": "two"}
        row |= {"flops_per_step": 3e9, "gflops_per_second": 2.0, "others_cpu_share": 0.01, "max_memory_bytes": 2**30}
        if not contender.is_peak:
            row |= {"wall_ratio": SPREAD, "cpu_ratio": SPREAD, "losses": [2.5, 2.4]}
        writer.write(name, row)


def write_lowering(directory):
    writer = Writer("lowering", directory)
    case = Lowering(processors=(1, 8))
    for variant in case.variants():
        row = case._settings(variant)
        if variant == "batch/8/stock mtf, even":
            writer.write(variant, {**row, "failed": "ValueError: does not divide"})
            continue
        row |= {"build_seconds": SPREAD, "lower_seconds": SPREAD, "max_memory_bytes": SPREAD, "mtf_operations": 9}
        row |= {"tf_operations": 100 * row["processors"], "graph_bytes": 10**6, "layout": [], "rules_left_out": ["x"]}
        writer.write(variant, row)


def write_learning_curve(directory):
    writer = Writer("learning_curve", directory)
    for variant, shares, devices in (("70,25,5", "70,25,5", 3), ("one device", None, 1)):
        row = {"model": "paper_cifar", "dataset": "cifar10", "batch_size": 200, "optimizer": "adafactor", "steps": 3}
        row |= {"learning_rate_schedule": "constant", "devices": ["cpu:0"] * devices, "shares": shares, "seed": 1}
        row |= {"parameters": 5, "test_images": 100, "tested_images": 10, "sizes": {"a of 6": [4, 1, 1]}}
        row |= {"losses": [2.3, 2.2, 2.1], "accuracy": [[2, 0.1], [3, 0.2]], "final_accuracy": 0.25}
        writer.write(variant, row)


def write_accounting(directory):
    writer = Writer("accounting", directory)
    for name, kind in (("mtf_hetero", "ReluGrad"), ("stock mtf", "Greater")):
        row = {"lowering": name, "network": "vgg16", "batch_size": 64, "repeats": 5, "operations": 1200}
        writer.write(f"vgg16/64/{name}", {**row, "kinds": {"Conv2D": SPREAD, kind: SPREAD, "Arg": {"median": 1e-6}}})


def write_heterogeneous(directory):
    writer = Writer("heterogeneous", directory)
    common = {"network": "vgg11", "fractions": [1.0, 0.33], "batch_size": 256, "repeats": 5, "steps": 1, "seed": 1}
    common |= {"limits": ["a quota", "a quota"], "wall_seconds_per_step": SPREAD, "speedup": SPREAD, "loss_error": 1e-7}
    common |= {"efficiency": SPREAD}
    measured = {"reason": "split", "seconds": 60.0, "shares": [80.0, 20.0], "predicted_seconds": 1.4}
    for way in ("device 0 alone", "device 1 alone", "batch, by FLOP/s", "batch, measured", "PyTorch DDP, even"):
        row = {**common, "way": way, "sizes": {"batch": [200, 56]}}
        if way == "batch, measured":
            used = {"computing": 1.0, "receiving": 0.1, "waiting": 0.2}
            row |= {"measured": measured, "usage": {"worker:0/cpu:0": used}}
        if way.startswith("PyTorch"):
            row["failed"] = "no torch"
        writer.write(f"vgg11/1.0,0.33/256/{way}", row)


WRITE = {
    "one_device": write_one_device,
    "accounting": write_accounting,
    "lowering": write_lowering,
    "learning_curve": write_learning_curve,
    "heterogeneous": write_heterogeneous,
}
EXPECTED = {
    "one_device": [f"| {OURS} | 1.5 (1 to 2) |", "PyTorch, compiled could not be measured: RuntimeError: no compiler"],
    "heterogeneous": [
        "| batch, measured | 1.5 (1 to 2) | 171 | 1.5 (1 to 2) | 1.5 (1 to 2) | 200:56 |",
        "| batch, measured | worker:0/cpu:0 | 1,100 | 200 |",
        "the others: 4 predicted, 1 in fact (+300%)",
        "PyTorch DDP, even could not be measured: no torch",
    ],
    "accounting": [
        "| Greater | 0.00 (0.0%) | 1500.00 (50.0%) |",
        "| all others | 0.00 (0.0%) | 0.00 (0.0%) |",
        "| operations run | 1,200 | 1,200 |",
    ],
    "lowering": [
        "| 8, mtf_hetero, uneven |",
        "batch/8/stock mtf, even could not be lowered: ValueError",
        "1.00 for 8 x",
    ],
    "learning_curve": ["| 70,25,5 on 3 devices | 2.300000 | 2.2 | 25.00% | 4.33% |", "a of 6: 4, 1, 1"],
}


@pytest.mark.parametrize("case", RENDERERS)
def test_a_report(case, tmp_path):
    WRITE[case](tmp_path / "results")
    (path,) = report.write_reports(tmp_path / "results", tmp_path / "reports")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {case}: ")
    assert "load average before" in text
    for part in EXPECTED[case]:
        assert part in text
    picture = tmp_path / "reports" / f"{case}.png"
    assert picture.name in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rows_of_a_trial_are_not_shown(tmp_path):
    Writer("lowering", tmp_path, toy=True).write("filters/1/stock mtf, even", {})
    with pytest.raises(ValueError, match="which has no rows of .*; measure first"):
        report.write_reports(tmp_path, tmp_path / "reports")
