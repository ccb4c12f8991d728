"""One case in small for each mechanism of the benchmarks: its rows, its table and its conclusions."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest
from tiers import in_turn

from benchmarks import rows
from benchmarks.renderers.any_step import LAYOUTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
SETTINGS = ("seed", "warmup", "steps", "repeats", "shares", "layout")


def check_one_device(found):
    assert list(found) == [f"toy_vgg/4/{name}" for name in ("mtf_hetero", "stock mtf", "Keras", "PyTorch")]
    for name, row in found.items():
        if name.endswith("PyTorch") and not HAS_TORCH:
            assert "No module named 'torch'" in row["failed"]
            continue
        assert row["parameters"] == found["toy_vgg/4/mtf_hetero"]["parameters"]
        assert row["losses"] == pytest.approx(found["toy_vgg/4/mtf_hetero"]["losses"], rel=1e-4)
        assert len(row["cpu_seconds_per_step"]["all"]) == row["repeats"]


def check_splitbrain(found):
    for name in ("data parallel", "hybrid 1 x 2, in rounds"):
        row = found[f"toy_vgg/2/{name}"]
        assert row["received_bytes"] == row["sent_bytes"] > 0 and row["loss_error"] < 1e-5
        assert min(row["peak_bytes"]) > 0 and min(row["estimated_bytes"]) > 0
    modelled = found["toy_vgg/2/hybrid 1 x 2, modelled"]
    assert modelled["sent_bytes"] > 0 and "peak_bytes" not in modelled


def check_cluster_curve(found):
    uneven, one = found["filters 2,1"], found["one device"]
    assert uneven["devices"] == ["worker:0/cpu:0", "worker:1/cpu:0"] and one["devices"] == ["worker:0/cpu:0"]
    assert uneven["sizes"]["dense1/units of 120"] == [80, 40]
    assert uneven["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert uneven["float64_losses"] == pytest.approx(one["float64_losses"], rel=1e-12)
    assert sum("limited by " in note for note in uneven["notes"]) == 2


def check_segmentation(found):
    row = found["unet3d_small"]
    assert row["sizes"]["depth of 8"] == [5, 3]
    assert len(row["losses"]) == 4 and row["test_volumes"] == 4 * 2 * 4
    assert row["dice"]["thresholds"][1] == pytest.approx(0.387, abs=0.01)  # the shell is as bright
    assert row["tests"][-1][1]["dice/1"] == pytest.approx(row["dice"]["network"][1] or 0.0, abs=1e-4)


def check_elastic(found):
    (row,) = found.values()
    assert row["seconds"] > 1.0 and row["source"] in ("memory", "checkpoint")
    assert len(row["step_seconds"]) >= 8 and len(row["events"]) == 1


def check_faults(found):
    assert [row["failures"] for row in found.values()] == [[], []]
    row = found["faults/flags/train: an unknown flag"]
    assert row["lines"] == 1 and row["line"].startswith("error: Unknown command line flag 'speed'")


def check_phases(found):
    assert set(found) == {"fit/batch/undisturbed", "fit/batch/middle"}
    row = found["fit/batch/middle"]
    assert row["failures"] == [] and row["points"] == ["middle"] and row["difference"] < 1e-12
    assert any("training waits 60 seconds" in line for line in row["lines"])


def check_any_step(found):
    row = found["vision/mnist_convnet"]
    assert row["operations"] > 100 and set(row["layouts"]) == set(LAYOUTS)
    assert all(layout[kind] < 1e-9 for layout in row["layouts"].values() for kind in ("results", "variables"))


def check_slots(found):
    limited = [found.pop(name) for name in list(found) if name.startswith("limit/")]
    assert [row["trained"] for row in limited] == [True] * 3, "a small model fits everywhere"
    assert all(len(row["peak_bytes"]) == len(row["predicted_bytes"]) == len(row["devices"]) for row in limited)
    assert {row["sent_bytes"] for row in found.values() if row["way"] == "alone"} == {4}, "the loss"
    stages = [row for row in found.values() if row["way"] == "stages"]
    assert {row["slots"] for row in stages} == {1, 2}
    activation = 4 * stages[0]["batch_size"] * stages[0]["width"]
    assert all(2 * activation <= row["sent_bytes"] < 2 * activation + 64 for row in stages), "forward, and back"


def check_reading(found):
    for name in ("alone", "sent", "files", "arrays", "mirrored", "DDP", "DDP, loaders"):
        row = found[f"convolution/loopback/{name}"]
        if name.startswith("DDP") and not HAS_TORCH:
            assert "No module named 'torch'" in row["failed"]
            continue
        assert "failed" not in row and row["loss_error"] < 1e-5, "each reads the same batches"
        assert row["sent_bytes"] > 0 and row["images_per_second"]["min"] > 0


def check_stages(found):
    planned = [row for row in found.values() if "predicted_seconds" in row]
    assert len(planned) == 4 and all(row["loss_error"] < 1e-5 for row in planned)
    assert "failed" in found.get("toy/loopback/PyTorch", {"failed": ""}), "without torch, its ways are left out"


TOYS = {  # case -> (flags, the check of its rows)
    "one_device": (["--only=toy_vgg"], check_one_device),  # processes of several frameworks, in turns
    "splitbrain": ([], check_splitbrain),  # steps on limited workers, their memory and their traffic
    "cluster_curve": ([], check_cluster_curve),  # trainings of the program on workers
    "segmentation": ([], check_segmentation),  # a training on volumes in the process itself
    "elastic": (["--only=kill/batch"], check_elastic),  # a training that loses a worker
    "faults": (["--only=faults/"], check_faults),  # mistakes and faults, judged by exit code and message
    "phases": (["--only=fit/batch/middle"], check_phases),  # a program whose worker is killed in a phase
    "slots": ([], check_slots),  # mtf programs on workers, and the memory of their processes
    "reading": ([], check_reading),  # trainings on files, beside ranks of TensorFlow's strategy and of PyTorch
    "stages": ([], check_stages),  # plans for a Keras model, beside PyTorch if it is there
    "any_step": ([], check_any_step),  # programs of others by `mtf_hetero.function`
}


@pytest.mark.slow
@pytest.mark.parametrize("case", in_turn(list(TOYS)))
def test_a_case_in_small(case, tmp_path):
    flags, check = TOYS[case]
    command = [sys.executable, "-m", "benchmarks.run", case, "--toy", f"--out={tmp_path}", *flags]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = rows.read(tmp_path / f"{case}.jsonl", toy=True)
    assert rows.read(tmp_path / f"{case}.jsonl") == []
    table, _, conclusions = done.stdout.partition("\n* ")
    assert table and re.search(rf"\n\nrows of run \w+: {tmp_path / case}.jsonl\n$", conclusions), done.stdout
    for row in found:
        assert {*rows.REQUIRED, *SETTINGS} <= set(row)
        assert "devices" in row or row.get("modelled")
    check({row["variant"]: row for row in found})
