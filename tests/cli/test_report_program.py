"""The picture of a run: shares, busy devices, step time and events."""

import copy
import json

import pytest
from damage import damage_values

from mtf_hetero.cli import report
from mtf_hetero.estimator.metrics_log import MetricsLog

DEVICES = ("worker:0/cpu:0", "worker:1/cpu:0")


def write_run(directory, *, events=True):
    log = MetricsLog(directory / "metrics.jsonl")
    for step in range(10, 400, 10):
        slow = 3.0 if 100 <= step < 130 else 1.5 if 130 <= step < 250 else 1.0
        busy = {device: part * slow for device, part in zip(DEVICES, (0.4, 0.95))}
        log.append("busy", step, {"step_seconds": slow, "busy_seconds": busy})
        log.append("train", step, {"loss": 1.0})
    for step, sizes, before in [(130, [96, 32], [64, 64]), (250, [64, 64], [96, 32])][: 2 * events]:
        values = {"why": "worker:1/cpu:0 is 3.00x as slow", "seconds_paused": 2.5, "devices": ", ".join(DEVICES)}
        values |= {"sizes": {"batch": sizes}, "sizes_before": {"batch": before}, "devices_before": ", ".join(DEVICES)}
        log.append("event", step, values)


@pytest.mark.parametrize("events", [True, False])
def test_the_picture_and_the_events(tmp_path, capsys, events):
    write_run(tmp_path, events=events)
    assert report.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"picture: {tmp_path}/report.png"
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    expected = (
        ["event  step  paused s  why", "    1   130       2.5  worker:1/cpu:0 is 3.00x as slow"]
        if events
        else ["no event"]
    )
    assert out.splitlines()[: len(expected)] == expected
    figure = report.draw(report.metrics_log.read(tmp_path / "metrics.jsonl"), "a run")
    assert [axes.get_ylabel() for axes in figure.axes] == [
        *["share of the split"] * events,
        "busy part of a step",
        "step time, s",
    ]


def _damages(lines):
    """(what is wrong, lines of a changed file, whether a warning names it)."""
    for kind, schema in report.SCHEMAS.items():
        number = max(i for i, line in enumerate(lines) if json.loads(line)["kind"] == kind)
        row = json.loads(lines[number])
        example = {name: value for name, value in row.items() if name in schema.fields}
        for what, wrong, refused in damage_values(schema, copy.deepcopy(example), kind):
            if isinstance(wrong, dict):
                named = refused and f"{kind}.step " not in what and "unknown field" not in what
                yield what, [*lines[:number], json.dumps({"kind": kind, **wrong}), *lines[number + 1 :]], named
    for what, line in {"no JSON": "{", "a list": "[1]", "a step of text": '{"kind": "busy", "step": "1"}'}.items():
        yield what, [*lines, line], False


@pytest.mark.full
def test_a_changed_file_is_drawn_without_its_invalid_rows(tmp_path, capsys, monkeypatch):
    write_run(tmp_path)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    monkeypatch.setattr(report.figures, "render", lambda figure, *rest: b"")  # which takes a second
    count = 0
    for what, changed, named in _damages(lines):
        count += 1
        path.write_text("".join(f"{line}\n" for line in changed))
        assert report.main([str(tmp_path)]) == 0, what
        err = capsys.readouterr().err
        assert err.count("\n") == named, what
        assert err.startswith(f"warning: 1 row is invalid and skipped in {path}: " if named else ""), what
    assert count > 60


def test_a_row_of_no_time_is_named(tmp_path, capsys):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append("busy", 10, {"step_seconds": 0.0, "busy_seconds": {DEVICES[0]: 0.1}})
    assert report.main([str(tmp_path)]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == (
        f"warning: 1 row is invalid and skipped in {tmp_path}/metrics.jsonl: busy of step 10: step_seconds is 0.0; it "
        "must be a number, greater than zero"
    )
    assert "has no rows of kind busy or event" in error


def test_mistakes(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    (tmp_path / "metrics.jsonl").write_text("")
    assert report.main([str(tmp_path)]) == 2
    write_run(tmp_path)
    assert report.main([str(tmp_path), "--picture=a.txt"]) == 2
    assert report.main([str(tmp_path), "--picture=/proc/no/such/a.png"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4
    for line, part in zip(
        err, ("has no metrics.jsonl", "no rows of kind busy", "name a file that ends in", "--picture")
    ):
        assert part in line
