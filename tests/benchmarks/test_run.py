"""The runner: every case in small, its tables, the list of cases, Ctrl-C and mistakes."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import durations, rows
from benchmarks.cases import CASES
from benchmarks.child import Child, ChildError
from benchmarks.renderers.any_step import LAYOUTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
ONLY = {  # the rest takes the same ways, or minutes
    "one_device": ["--only=toy_vgg"],
    "lowering": ["--only=filters/4"],
    "elastic": ["--only=kill/batch"],
    "faults": ["--only=faults/"],
    "keras_models": ["--only=planned"],
    "keras_fit": ["--only=first step"],
}
ALIKE = ("accounting", "cosmology", "dropout", "learning_curve")  # cases that take the same ways as others
SETTINGS = ("seed", "warmup", "steps", "repeats", "shares", "layout")


def run(*args, module="benchmarks.run"):
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)


MISTAKES = [
    ([], f"0 cases are named; name one of {', '.join(CASES)}"),
    (["speed"], f"case is 'speed'; it must be one of {', '.join(CASES)}"),
    (["--speed=3"], "Unknown command line flag 'speed'"),
    (["one_device", "--repeats=0"], "--repeats is 0; it must be a whole number of at least 1"),
    (["one_device", "--repeats=many"], "--repeats"),
    (["any_step", "--programs=vision/cat"], "--programs names 'vision/cat', which is not in the table; the nearest is"),
    (["lowering", "--steps=3"], "--steps is 3, but case lowering has no such setting"),
    (["one_device", "--only=vgg99"], "--only is 'vgg99', which is in none of the variants paper_cifar/64;"),
    (["one_device", "--out=/proc/no/such"], "--out is '/proc/no/such', which cannot be made"),
]
RUN_EACH = """
import contextlib, io, json, sys
from absl.testing import flagsaver
from benchmarks import run
from mtf_hetero._support import command_line
done = []
for args in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), flagsaver.flagsaver():
        try:
            code = run.main(command_line.parse_flags(["run", *args]))
        except SystemExit as stop:
            code = stop.code
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


def test_a_mistake_gives_one_line_and_exit_code_2():
    command = [sys.executable, "-c", RUN_EACH, json.dumps([args for args, _ in MISTAKES])]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True, timeout=300)
    for (code, out, err), (args, message) in zip(json.loads(done.stdout), MISTAKES, strict=True):
        assert (code, out) == (2, ""), args
        assert err.startswith("error: ") and err.count("\n") == 1, (args, err)
        assert message in err


def test_data_that_is_not_prepared(tmp_path):
    done = run("learning_curve", f"--data_dir={tmp_path}", f"--out={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: dataset 'cifar10' is neither built in")
    assert done.stderr.count("\n") == 1


def test_list():
    done = run("--list")
    assert done.returncode == 0
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["case", "usual", "measures"]
    for case, line in zip(CASES.values(), lines, strict=False):
        assert re.fullmatch(rf"{case.name} +[\d.]+ (min|h)  {re.escape(case.summary)}", line)
        assert len(line) <= 80


def test_list_of_a_case():
    done = run("--list", "one_device")
    assert done.returncode == 0
    assert "vgg16/256" in done.stdout.splitlines()
    assert run("--list", "one_device", "--only=vgg16").stdout == "vgg16/64\nvgg16/256\n"


def test_the_usual_duration_is_that_of_the_rows_where_they_say_so(tmp_path, monkeypatch):
    case = CASES["dropout"]
    monkeypatch.setattr(durations, "RESULTS", tmp_path)
    assert durations.usual_duration(case) == f"{case.minutes} min"
    writer = rows.Writer("dropout", tmp_path, begin_seconds=time.monotonic() - 7200)
    writer.write("rows", {})
    assert durations.usual_duration(case) == "2.0 h"


# The others go the same ways
SLOW = (
    "cluster_curve",
    "elastic",
    "heterogeneous",
    "planner",
    "segmentation",
    "sequences",
    "spatial",
)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES if case not in ALIKE],
)
def test_a_case_in_small(case, tmp_path):
    done = run(case, "--toy", f"--out={tmp_path}", *ONLY.get(case, []))
    assert done.returncode == 0, done.stderr
    found = rows.read(tmp_path / f"{case}.jsonl", toy=True)
    assert rows.read(tmp_path / f"{case}.jsonl") == []
    table, _, conclusions = done.stdout.partition("\n* ")
    assert table and re.search(rf"\n\nrows of run \w+: {tmp_path / case}.jsonl\n$", conclusions), done.stdout
    for row in found:
        assert set(rows.REQUIRED) <= set(row)
        assert set(SETTINGS) <= set(row)
        assert "devices" in row or row.get("modelled")
    check = {
        "one_device": check_one_device,
        "lowering": check_lowering,
        "planner": check_planner,
        "cluster_curve": check_cluster_curve,
        "heterogeneous": check_heterogeneous,
        "splitbrain": check_splitbrain,
        "spatial": check_spatial,
        "segmentation": check_segmentation,
        "elastic": check_elastic,
        "faults": check_faults,
        "any_step": check_any_step,
        "keras_models": check_keras_models,
        "keras_fit": check_keras_fit,
        "sequences": check_sequences,
    }
    check[case]({row["variant"]: row for row in found})


@pytest.mark.slow
@pytest.mark.parametrize("only", ["vgg11/auto", "saving"])
def test_changed_and_steady_workers_in_small(only, tmp_path):
    done = run("elastic", "--toy", f"--out={tmp_path}", f"--only={only}")
    assert done.returncode == 0, done.stderr
    for row in rows.read(tmp_path / "elastic.jsonl", toy=True):
        if only == "saving":
            assert row["mean_seconds"]["median"] > 0
        else:
            assert list(row["phases"]) == ["cut", "restored"] and set(row["settled_seconds"]) == {
                "before",
                *row["phases"],
            }


def check_elastic(found):
    (row,) = found.values()
    assert row["seconds"] > 1.0 and row["source"] in ("memory", "checkpoint")
    assert len(row["step_seconds"]) >= 8 and len(row["events"]) == 1


def check_sequences(found):
    assert list(found) == ["sequence/1"]
    for row in found.values():
        assert "failed" not in row and row["difference"] < 1e-12
        assert len(row["happenings"]) >= 3


def check_keras_fit(found):
    assert sorted(found) == [f"Transformer/first step/{way}" for way in ("Keras", "mtf_hetero, batch over three")]
    for row in found.values():
        assert "failed" not in row
        assert row["wall_seconds"]["median"] > 0 and row["cpu_ratio"]["median"] > 0
        assert row["loss_error"] < 1e-5


def check_any_step(found):
    row = found["vision/mnist_convnet"]
    assert row["steps"] == 2 and row["operations"] > 100 and set(row["layouts"]) == set(LAYOUTS)
    for name, layout in row["layouts"].items():
        assert layout["results"] < 1e-9 and layout["variables"] < 1e-9
        assert name not in ("batch", "weights") or layout["devices"] == 3
    assert row["layouts"]["batch"]["replicated_examples"] < 0.02


def check_keras_models(found):
    assert [row["layout"] for row in found.values()] == ["planned"]
    for row in found.values():
        assert all(0 < row[kind] < 1e-3 for kind in ("output", "gradient", "weight", "average"))


def check_heterogeneous(found):
    ways = {name.split("/", 3)[3]: row for name, row in found.items()}
    names = ["device 0 alone", "device 1 alone", "batch, even", "batch, by FLOP/s", "batch, measured"]
    assert list(ways)[:5] == names
    for name in ("PyTorch DDP, even", "PyTorch DDP, best of a grid") if HAS_TORCH else ():
        assert ways[name]["sizes"]["batch"][0] >= 4
        names.append(name)
    for name in (*names, "batch, best of a grid"):
        row = ways[name]
        assert "failed" not in row
        assert row["wall_seconds_per_step"]["min"] > 0
        assert row["loss_error"] < 1e-5
    assert ways["device 0 alone"]["efficiency"]["max"] < 1
    assert set(ways["batch, even"]["usage"]) == {"worker:0/cpu:0", "worker:1/cpu:0"}
    if not HAS_TORCH:
        assert "torch" in ways["PyTorch DDP, even"]["failed"]


def check_one_device(found):
    assert list(found) == [f"toy_vgg/4/{name}" for name in ("mtf_hetero", "stock mtf", "Keras", "PyTorch")]
    for name, row in found.items():
        if name.endswith("PyTorch") and not HAS_TORCH:
            assert "No module named 'torch'" in row["failed"]
            continue
        assert row["parameters"] == found["toy_vgg/4/mtf_hetero"]["parameters"]
        assert row["losses"] == pytest.approx(found["toy_vgg/4/mtf_hetero"]["losses"], rel=1e-4)
        assert row["wall_ratio"]["min"] > 0
        assert row["gflops_per_second"] > 0
        assert len(row["cpu_seconds_per_step"]["all"]) == row["repeats"]
        assert row["others_cpu_share"] < 1


def check_planner(found):
    names = {name.removeprefix("toy/0.6,0.3/"): row for name, row in found.items()}
    assert set(names) == {"alone, worker:0/cpu:0", "alone, worker:1/cpu:0", "batch", "filters", "plan"}
    assert [row["is_taken"] for row in names.values()].count(True) == 1
    for row in names.values():
        assert len(row["turns"]) == 2 and row["seconds"]["min"] > 0
        assert row["predicted_seconds"] > 0 and row["calibrate_seconds"] > 0
    assert names["batch"]["sent_bytes"] > 0 and sum(names["batch"]["sizes"]["batch"]) == 32


def check_lowering(found):
    assert len(found) == 4
    assert found["filters/4/first steps"]["first_step_seconds"]["median"] > 0
    uneven = found["filters/4/mtf_hetero, uneven"]
    assert uneven["lower_seconds"]["median"] > 0
    assert uneven["graph_bytes"] > 10_000
    assert uneven["rules_left_out"] == []
    assert uneven["shares"] == [70, 25, 5, 70]
    assert found["filters/4/stock mtf, even"]["tf_operations"] > 0


def check_cluster_curve(found):
    uneven, one = found["filters 2,1"], found["one device"]
    assert uneven["devices"] == ["worker:0/cpu:0", "worker:1/cpu:0"]
    assert one["devices"] == ["worker:0/cpu:0"]
    assert uneven["sizes"]["dense1/units of 120"] == [80, 40]
    assert len(uneven["losses"]) == 4
    assert uneven["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert len(uneven["float64_losses"]) == 3
    assert uneven["float64_losses"] == pytest.approx(one["float64_losses"], rel=1e-12)
    assert one["final_images"] == 40
    assert one["wall_seconds_per_step"]["min"] > 0
    assert sum("limited by " in note for note in uneven["notes"]) == 2


def check_splitbrain(found):
    ways = {name.removeprefix("toy_vgg/2/"): row for name, row in found.items()}
    for name in ("data parallel", "hybrid 1 x 2, in rounds"):
        row = ways[name]
        assert "failed" not in row
        assert row["received_bytes"] == row["sent_bytes"] > 0
        assert row["loss_error"] < 1e-5
        assert min(row["peak_bytes"]) > 0 and min(row["estimated_bytes"]) > 0
        assert row["wall_seconds_per_step"]["min"] > 0
    assert ways["data parallel"]["weight_bytes"][0] > max(ways["hybrid 1 x 2, in rounds"]["weight_bytes"])
    modelled = ways["hybrid 1 x 2, modelled"]
    assert modelled["sent_bytes"] > 0 and "peak_bytes" not in modelled


def check_faults(found):
    row = found.pop("faults/flags/train: an unknown flag")
    assert (row["exit_code"], row["lines"], row["failures"]) == (2, 1, [])
    assert row["line"].startswith("error: Unknown command line flag 'speed'")
    (row,) = found.values()
    assert row["failures"] == []


@pytest.mark.slow
def test_kills_and_damage_in_small(tmp_path):
    for only in ("kills", "damage"):
        done = run("faults", "--toy", f"--out={tmp_path}", f"--only={only}")
        assert done.returncode == 0, done.stderr
    kills, *damages = rows.read(tmp_path / "faults.jsonl", toy=True)
    assert kills["kills"] == kills["resumed"] == kills["from_newest"] == len(kills["hits"]) == 3
    assert kills["error"] <= 1e-9
    assert [row["whole"] for row in damages] == [None, 6]
    assert not any(row["failures"] for row in (kills, *damages))


def check_segmentation(found):
    row = found["unet3d_small"]
    assert row["sizes"]["depth of 8"] == [5, 3]
    assert len(row["losses"]) == 4 and row["test_volumes"] == 4 * 2 * 4
    assert row["dice"]["thresholds"][1] == pytest.approx(0.387, abs=0.01)  # the shell is as bright
    assert row["tests"][-1][1]["dice/1"] == pytest.approx(row["dice"]["network"][1] or 0.0, abs=1e-4)
    shapes = [picture["shape"] for picture in row["slice"].values()]
    assert shapes == [[16, 32]] * 4


def check_spatial(found):
    check_input_and_projections(found)
    ways = {name.rpartition("/")[2]: row for name, row in found.items() if name.startswith("conv/")}
    assert list(ways) == ["alone", "even", "2:1"]
    for name, planes in (("even", [4, 4]), ("2:1", [5, 3])):
        row = ways[name]
        assert "failed" not in row
        assert row["sizes"]["conv1/depth"] == planes
        assert row["received_bytes"] == row["sent_bytes"] > 0
        assert all(own["halo_bytes"] > 0 for own in row["exchanged"])
        assert all(own["convolution_seconds"] > 0 for own in row["overlap"])
        assert len(row["usage"]) == 2
        assert row["loss_error"] < 1e-5
        assert row["predicted_seconds"] > row["predicted_computing_seconds"] > 0
        assert {"conv1", "conv2"} <= row["predicted_layer_seconds"].keys()
        assert row["received_bytes"] - row["predicted_bytes"] == 4  # the loss, which the training process fetches
    assert ways["even"]["apart_seconds_per_step"]["median"] > 0
    assert ways["alone"]["exchanged"][0]["halo_bytes"] == 0
    assert ways["alone"]["link"]["bytes_per_second"] > 0


def check_input_and_projections(found):
    read = found["input/1.0,1.0"]
    assert sum(read["split"]) == 16
    for index, planes in enumerate(read["split"]):
        epochs = [epoch[index] - read["read_bytes_without_input"][index] for epoch in read["read_bytes"]]
        share = planes * read["plane_bytes"] * read["volumes"]
        assert (
            share - 2000 <= epochs[0] < 1.3 * share + 2000
        )  # one of the four may be asked for again before it is kept
        assert max(epochs[1:]) < 0.1 * share + 2000
    one, more = (found[f"projected/W=8/2 x {groups}, modelled"] for groups in (1, 4))
    assert 0 < one["predicted_computing_seconds"] < one["predicted_seconds"] < more["predicted_seconds"]
    assert one["flops_per_second"] > 0


def test_ctrl_c_keeps_finished_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.run", "lowering", "--toy", f"--out={tmp_path}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
    process = subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=heeded, **pipes)
    path = tmp_path / "lowering.jsonl"
    end = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == f"stopped; finished rows are in {path}\n"
    assert rows.read(path, toy=True)


def test_ctrl_c_before_a_child_is_started(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.child.Process", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Child("benchmarks.cases.one_device:Contender")


def test_a_child_tells_of_its_errors():
    with pytest.raises(ChildError, match="ModuleNotFoundError|exit code 1.*no_such"):
        Child("benchmarks.no_such:Thing")
    with Child("benchmarks.cases.one_device:Contender", {"target": "x"}) as child:
        pid = child.pid
        with pytest.raises(ChildError, match="AttributeError"):
            child.call("no_such_method")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
