"""Reports from made-up rows, and the stored reports."""

import json
import pathlib
import re
import struct

import numpy as np
import pytest
from benchmark_rows import WRITE, write_heterogeneous

from benchmarks import report, rows
from benchmarks.cases import CASES
from benchmarks.cases.learning import WAYS
from benchmarks.cases.one_device import OURS
from benchmarks.frameworks import cluster_nets
from benchmarks.pictures import pack, unpack
from benchmarks.renderers import RENDERERS
from benchmarks.renderers.document import MOST_CONCLUSIONS, Details, Report
from benchmarks.renderers.tables import table
from benchmarks.renderers.writer import to_markdown
from benchmarks.rows import Writer
from mtf_hetero.layouts import LAYOUTS

FOLDER = pathlib.Path(report.__file__).parent
LONGEST_CONCLUSION = 200  # letters: two lines of a page
MOST_PIXELS = 1472  # of a picture's width: letters of 9 points are 11 pixels high where a page shows 800
EXPECTED = {
    "keras_fit": [
        "* On one device, mtf_hetero's step time is 0.80 times that of Keras.",
        "* Its first step is done after 1.20 times the time that Keras needs.",
        "| Small, 8 | mtf_hetero | 0.8 (0.8 to 0.8) | 0.8 (0.8 to 0.8) | 0.8 (0.8 to 0.8) | 0.8 (0.8 to 0.8) |",
        "| Small, 8 | mtf_hetero | 0.8 (0.8 to 0.8) | 0.8 (0.8 to 0.8) |",
        'mtf_hetero on workers of 1 and 0.33 cores, with `layout="auto"`.',
        "a Transformer of 6 layers with Adam. Median (minimum to maximum) of 3 processes, in turns.",
        "| Small, 8 | mtf_hetero, batch over three | 1.2 (1.2 to 1.2) | 1.2 (1.2 to 1.2) | 1.2 (1.2 to 1.2) |",
    ],
    "any_step": [
        "* 4 programs: 1 exact on every layout, 1 refused, 1 wrong, 1 failed.",
        "* In 1 of 2 programs, the batch's layout replicates less than 2 % of the FLOPs",
        "| small | exact | 3e-16 | 3e-16 | - | 3e-16 | 2e-16 | 0.0% | 0.9% | 164 | 3 |",
        "| odd, float32 | **wrong** | 3e-16 | 1e-03 | - | - | 2e-16 | 50.0% | 0.9% | 164 | 3 |",
        "* vision/lookup was refused: operation Lookup 'x' (model.py:7) is not followed",
        "* vision/odd: float32, exact within 1e-05, because Odd has no float64.",
        "* vision/odd replicates 50.0% under the batch's layout: Lu model.py:3 50.0%.",
        "* vision/broken: no memory",
    ],
    "keras_models": [
        "* 1 of 2 models agree with Keras within the limits",
        "* Outside: Large (outputs 1e+00). Keras's own differences are in the last columns.",
        "| Small | 2.5 | 9 | one device, batch | 2e-07 | 4e-06 | 4e-09 | - | 5e-08 | - | - |",
        "| Large | 2.5 | 9 | batch | 1e+00 | 3e-06 | 4e-09 | - | - | 5e-01 | 2e-06 |",
        "* Other could not be compared: no memory",
    ],
    "elastic": [
        "* After the cut, moved shares reach 0.94 (VGG-11) of a fresh plan's throughput; the goal of 0.9 is reached.",
        "* The first change follows after 2 steps, or 6.0 s. A change pauses training for 2.5 s, or "
        "1.4 s without the first step.",
        "* In 4,000 steps on two equal workers, the shares change 0 times. Watching takes 1.0% of the processor time. "
        "A checkpoint every 60 s takes 0.5% of the time.",
        "* From kill -9 of a worker to the next finished step: 8.5 s; with torchrun 40.5 s. From the stop of one for "
        "ever: 20.5 s.",
        "* torchrun/short waits could not be measured: no torch",
        "| vgg11 | 1 | 3 | 1.6 | 1.5 | 0.94 | 1.1 | 0.91 |",
        "| vgg11, 6 | cut, 2 steps, 6.0 s | 2.5 | 1.1 | 40% | batch 96, 32 | worker:1/cpu:0 is 3.00x as slow |",
        "| kill/batch | 1.6 | 0.5 | 8.5 | 2 | memory |",
        "| stop/batch | 1.6 | 16.5 | 20.5 | 2 | memory |",
        "| torchrun/defaults | 1.6 | 0.5 | 40.5 | 5 | checkpoint |",
        "| 10 | 300 | 1.03 |",
    ],
    "sequences": [
        "* 1 of 2 trainings ended by themselves, with the loss of every batch.",
        "* Losses differ by at most 4e-15 from those of an undisturbed training; the limit is 1e-12.",
        "* 4 changes of the place paused for 1.5 s, and repeated 3 steps.",
        "| 1 | batch | 2 | 4 | 3 | 31.5 | 4e-15 | 12 kill 1; 12+1.5 s join 2 |",
        "* sequence/2 could not be trained to the end: it did not end",
    ],
    "faults": [
        "* 40 kills: 40 resumed, 39 from the newest intact checkpoint and 1 from step 0 in spite of one. Final values "
        "differ from an undisturbed run's by at most 3.0e-16.",
        "* 2 damages: 2 resumed from the newest intact checkpoint",
        "* 2 other faults: 1 failed, 1 could not be tried here. The slowest ended after 0.5 s.",
        "* 2 of 7 rows have a failure.",
        "**2 of 7 failed:**\n\n- kills/2: `begun at step 0, not 9`\n- faults/workers/frozen: `it did not end`",
        "| `before rename model.ckpt-N.index` | 3 |",
        "| `model.ckpt-9.index` | truncated, emptied | step 6 | `model.ckpt-9 / damaged: passed over` |",
        "| Wrong flags and values | 1 | 0 | 2 | 0.5 |",
        "<summary>Wrong flags and values: 1 faults</summary>",
        "| `--speed=3` | 2 | `error: Unknown flag` | 0.5 | steps 3, 6 |",
        "| frozen | **-: failed** |  | 0.5 | - |",
        "| a full disk | - | only root can mount | - | not tried here |",
    ],
    "cosmology": [
        "* R2 of cosmoflow_small, and of ridge regression in brackets: omega_m 0.96 (1.00), sigma_8 1.00 (1.00).",
        "* The network predicts 0 of 2 parameters better than ridge regression does.",
        "Two logical devices of one CPU hold 4 and 2 planes of each volume. Step time: 1.5 (1 to 2) s.",
        "| omega_m | 0.0333 | 0 | 0.00667 | 0.00 | 1.00 | 0.96 |",
    ],
    "segmentation": [
        "* Dice of brain: 0.8 by the network, 0.6 by the thresholds.",
        "| brain | 0.8 | 0.6 |",
        "The thresholds, from 90 to below 140 of 255",
    ],
    "spatial": [
        "* Speedup of two workers over the faster one: on 1.0,0.5 cores 1.45 by the best split, 1.07 evenly.",
        "* Speedup of more workers over one: strong/W=64/1.0,0.5 1.78 on 2.",
        "* 5 of 5 predicted step times are within 15%; the worst is off by",
        "Modelled efficiency, not measured: 0.50 on 2,048 workers, 8 per sample.",
        "* Peak memory of a worker: 415 MB on 1 and 240 MB on 2 at W=64. Predicted within 4%.",
        "The largest cube with 0.5 GB per worker: 64 on 2, 64 on 2 workers.",
        "| 2:1 | 1, 0.5 | 43:21 | 1.1 (1 to 1.2) | 1.45 | 4 | 50% | 4 | 1 | -9% |",
        "1.45 times as fast as the fast worker alone (asked for: 1.35) and 1.36 times as fast as the even split",
        "| 2:1 | 0 | 1,000 | 100 | 200 | 200 | 25% |",
        "| 64 | 2 | 240 | 208 | 230 | +4% | 240 |",
        "| 0.5 | 2 | 64 | 300 | 128: the kernel killed worker 1 |",
        "| 1, 0.5 | 1 | 21 | 0.21 | 0.21 | +0.0% | -0.00, -0.00 | 2, 2, 2 |",
        "## Modelled: CosmoFlow at W=512",
        "| 8 | 2048 | 256 | 10 | 4 | 6 | 0.524 | 0.50 |",
    ],
    "one_device": [
        f"* stock mtf 1.50 times the step time of {OURS}.",
        f"* {OURS} reaches 100% of the peak rate",
        f"| {OURS} | 1.5 (1 to 2) |",
        "PyTorch, compiled could not be measured: RuntimeError: no compiler",
    ],
    "heterogeneous": [
        "* Speedup of the batch split by measured speeds: 1.00 over an even split, 1.00 over the fastest device alone",
        "* Best efficiency: 1.50, vgg11, batch 256, by device 0 alone (1.50 times as fast as device 0 alone).",
        "| batch, measured | 1.5 (1 to 2) | 171 | 1.5 (1 to 2) | 1.5 (1 to 2) | 200:56 |",
        "| batch, measured | worker:0/cpu:0 | 1,100 | 200 |",
        "Speed of device 0 over that of each other device: 4 predicted, 1 measured (+300%)",
        "80 MB, 60 MB of it over the busiest link (30 messages)",
        "faster than device 0 alone from 200 MB/s on: computing needs 1.2 s at the sum of the measured speeds",
        "PyTorch DDP, even could not be measured: no torch",
    ],
    "splitbrain": [
        "* Weights and peak memory that a hybrid saves over data parallelism: vgg11_4096 40.0% and 40.0%",
        "* Images per second, best hybrid and data parallel: vgg11_4096 42.7 and 42.7 (hybrid 1 x 2).",
        "* Modelled, not measured: efficiency on 8 workers, data parallel and hybrid: 0.50.",
        "| hybrid 1 x 2 | 1.5 (1 to 2) | 42.7 | 5 | 100.0% | 60 | 180 | 162 |",
        "weights 40.0% (hybrid 1 x 2), measured peak 40.0%",
        "differs by at most 10.0% from a worker's measured peak",
        "| 8 | data parallel | 2 | 256 | 0.50 | 500 |",
    ],
    "accounting": [
        "* Operations of a step of vgg16, batch 64: mtf_hetero 3000 ms (convolutions 50%, relu and pooling 1500 ms)",
        "| Greater | 0.00 (0.0%) | 1500.00 (50.0%) |",
        "| all others | 0.00 (0.0%) | 0.00 (0.0%) |",
        "| operations run | 1,200 | 1,200 |",
    ],
    "lowering": [
        "* Batch split over 8 processors: mtf_hetero, uneven in 1.5 s to 800 operations; mtf_hetero, even",
        "* On 8 processors of one machine, a session sets initial values in 1.5 s",
        "| 8, mtf_hetero, uneven |",
        "batch/8/stock mtf, even could not be lowered: ValueError",
        "Replicated on 1, 8 processors, because they have fewer units: x",
        "1.00 for 8 x",
    ],
    "planner": [
        "* The plan is the fastest of all ways in 1 of 1 settings. It beats the best recipe by more than the",
        "needs 1.00 times as long as the best way (median; at most 1.00), and 0.67 times as long as the fastest worker",
        "* 5 of 5 predicted step times are within 15%; the median error is 10%. Of the chosen ways, 1 of 1 are.",
        "* Memory: 1 of 2 estimates are within 10% of the peak",
        "| vgg11, 256 | 3 (3 to 3.3) | batch | 2.5 (2.5 to 2.5) | 2 (2 to 2) | 0.80 | 1.00 | 0.8 (0.8 to 0.8) | plan |",
        "These are 2 layouts with step times of 1.1 to 3 s; 1 are predicted within 15%.",
        "| plan | 0.9 | 0.8 (0.8 to 0.8) |",
        "| vgg11, 256 | 0.33 | 50 | 60 | 20 | 1.2 |",
    ],
    "dropout": [
        "* A worker's share of processor time is 0.97 to 1.00 times its share of the numbers; 8 of 8 are within 10%.",
        "| b | 10 | 0.015 (0.015 to 0.015) | 0.97 | 1 | 1.00 |",
    ],
    "learning_curve": [
        "* Test accuracy after 3 steps: 25.00% on 3 devices at 70,25,5 (standard error 4.33%).",
        "| 3 devices at 70,25,5 | 2.300000 | 2.2 | 25.00% | 4.33% |",
        "a of 6: 4, 1, 1",
        "of all 100.",
    ],
    "cluster_curve": [
        "* Test accuracy after 3 steps: 25.0 % by 2 ways on workers, 25.0% +- 6.1% on one device.",
        "* In float32, the losses differ from those of one device by at most 2.0e-03 of their value.",
        "by at most 1.0e-13 of their value. So the layouts differ by rounding alone",
        "| one device | 1.0 | - | 1.5 (1 to 2) | 2.300000 | 2.2 | 25.0% +- 6.1% | - | - |",
        "| filters 2,1 | 1.0, 0.5 | 4:2 | 1.5 (1 to 2) | 2.300000 | 2.201 | 25.0% +- 6.1% | 0.0e+00 | 2.0e-03 |",
        "constant rate of 0.01, seed 1",
        "the table's of 50.",
        "limited by a quota.",
    ],
}


@pytest.mark.parametrize("case", RENDERERS)
def test_a_report(case, tmp_path):
    WRITE[case](tmp_path / "results")
    (path,) = report.write_reports(tmp_path / "results", tmp_path / "reports")
    text = path.read_text(encoding="utf-8")
    check_form(case, text)
    for part in EXPECTED[case]:
        assert part in text
    assert (tmp_path / "reports" / f"{case}.png").read_bytes().startswith(b"\x89PNG")


def check_form(case, text):
    """A report begins with at most five lines of conclusions and its picture, and ends with its provenance."""
    title, conclusions, picture = text.split("\n\n")[:3]
    assert title == f"# {case}: {CASES[case].summary}"
    lines = conclusions.splitlines()
    assert 2 <= len(lines) <= MOST_CONCLUSIONS + 1
    assert all(line.startswith("* ") and len(line) <= LONGEST_CONCLUSION for line in lines)
    assert re.fullmatch(r"\* Measured \d{4}-\d\d-\d\d.* cores of .*: \[provenance\]\(#provenance\)\.", lines[-1])
    assert picture.startswith("![") and picture.endswith(f"]({case}.png)")
    provenance = text.rpartition("## Provenance\n\n")[2]
    assert "load average before" in provenance and "#" not in provenance
    assert provenance.startswith("<details") and provenance.endswith("</details>\n")


@pytest.mark.parametrize("case", RENDERERS)
def test_the_conclusions_and_tables_of_a_run(case, tmp_path):
    WRITE[case](tmp_path)
    text = RENDERERS[case](rows.read(tmp_path / f"{case}.jsonl")).as_text()
    first = EXPECTED[case][0].removeprefix("* ")[:40]
    assert f"* {first}" in text.replace("\n  ", " ")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "|" not in text and "##" not in text


def test_the_cluster_learns_by_every_layout():
    assert set(LAYOUTS) <= {way.get("layout") for way in WAYS.values()}


def test_rows_of_a_trial_are_not_shown(tmp_path):
    Writer("lowering", tmp_path, toy=True).write("filters/1/stock mtf, even", {})
    with pytest.raises(ValueError, match="which has no rows of .*; measure first"):
        report.write_reports(tmp_path, tmp_path / "reports")


def test_filters_that_are_never_faster_and_rows_without_traffic(tmp_path, monkeypatch):
    write_heterogeneous(tmp_path)
    found = rows.read(tmp_path / "heterogeneous.jsonl")
    for row in found:
        row.pop("sent_bytes", None)
    sent = {"sent_bytes": 10**6, "busiest_link_bytes": 10**6, "busiest_link_messages": 10**6}
    asked = []
    monkeypatch.setattr(cluster_nets, "sent_by", lambda *args: asked.append(args) or sent)
    made = RENDERERS["heterogeneous"](found)
    assert "faster than device 0 alone at no bandwidth" in to_markdown("heterogeneous", made, found)
    assert asked == [("vgg11", 256, "filters", {"batch": [200, 56]})]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.full) if case == "heterogeneous" else case for case in RENDERERS]
)
def test_a_stored_report_is_that_of_the_stored_rows(case):
    found = rows.read(FOLDER / "results" / f"{case}.jsonl")
    text = (FOLDER / "reports" / f"{case}.md").read_text(encoding="utf-8")
    assert text == to_markdown(case, RENDERERS[case](found), found), "run python -m benchmarks.report"
    check_form(case, text)


@pytest.mark.parametrize("case", RENDERERS)
def test_a_stored_picture_is_legible(case):
    head = (FOLDER / "reports" / f"{case}.png").read_bytes()[:24]
    width, _ = struct.unpack(">II", head[16:])
    assert width <= MOST_PIXELS


def test_a_table_as_text():
    made = table(["way", "seconds per step", "note"], [["a `b`", 1.5, "x" * 60], ["c", None, "y"]])
    assert made.as_text(40).splitlines() == [
        "     seconds per",
        "way         step",
        "a b          1.5",
        "c              -",
        "",
        "way                                          note",
        "a b  " + "x" * 40 + " ...",
        "c" + " " * 47 + "y",
    ]


def test_a_report_as_text_has_its_tables_and_its_conclusions_last():
    numbers = table(["n"], [[1]])
    made = Report(["`a` wins."], ["Text.", "## Empty", "## Full", numbers, "* A note.", Details("more", [numbers])])
    assert made.as_text() == "Full\n\nn\n1\n\n* A note.\n\n* a wins."
    with pytest.raises(ValueError, match="5 conclusions; a report begins with 4 at most"):
        Report(["x"] * 5, [])


def test_a_picture_in_a_row():
    picture = np.random.default_rng(0).integers(0, 256, [5, 7])
    np.testing.assert_array_equal(unpack(json.loads(json.dumps(pack(picture)))), picture)
