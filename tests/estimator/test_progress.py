"""Progress of a training: the lines of a log and of a terminal, which nothing garbles and a narrow one holds."""

import io
import re
import sys

import pytest
from estimator_oracle import line_data, make

from mtf_hetero import tf
from mtf_hetero._support import extras, logs
from mtf_hetero.estimator import progress
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.estimator.progress_text import Status, bar_format, busy_line, duration, log_line

FULL = Status(
    400,
    1565,
    epoch=2,
    epochs=3,
    loss=0.4123,
    accuracy=0.914,
    speed=1230.4,
    seconds_left=118,
    busy={"a": 0.98, "b": 0.7},
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screen(text):
    """The lines that a terminal shows once it was sent a text with tqdm's movements of the cursor."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|\n|\r|[^\x1b\n\r]+", text):
        if part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def on_terminal(monkeypatch):
    """Makes the standard error a terminal; no fixture, for pytest gives each phase of a test a stream of its own."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.0)
    return terminal


def test_a_log_line_has_what_is_known():
    assert log_line(FULL, "images") == (
        "step 400/1565  epoch 2/3  loss 0.412  acc 0.91  1,230 images/s  busy 0.98 0.70  2 min left"
    )
    assert log_line(Status(7), "volumes") == "step 7"
    assert (
        log_line(Status(7, epoch=1, loss=2e-5, speed=1.25), "volumes") == "step 7  epoch 1  loss 2.0e-05  1.2 volumes/s"
    )
    many = Status(1, busy={f"cpu:{n}": n / 10 for n in range(1, 9)})
    assert log_line(many, "images") == "step 1  busy 0.10 to 0.80"


def test_a_narrow_terminal_has_fewer_numbers_and_always_the_step():
    assert (
        bar_format(FULL, "images", 79) == "epoch 2/3  400/1565 |{bar}| loss 0.412  acc 0.91  1,230 images/s  2 min left"
    )
    assert bar_format(FULL, "images", 72) == "epoch 2/3  400/1565 |{bar}| loss 0.412  acc 0.91  1,230/s  2 min left"
    assert bar_format(FULL, "images", 52) == "400/1565 |{bar}| loss 0.412  1,230/s  2 min left"
    assert bar_format(FULL, "images", 40) == "400/1565 |{bar}| loss 0.412  2 min left"
    assert bar_format(FULL, "images", 10) == "400/1565 |{bar}|"
    assert bar_format(Status(7, loss=0.5), "images", 79) == "7  loss 0.500"


def test_a_bar_for_each_device_or_one_for_many():
    def draw(share, width):
        return ("#" * round(share * width)).ljust(width)

    two = {"cpu:0": 0.98, "cpu:1": 0.5}
    assert busy_line(two, 79, draw) == "busy  cpu:0 |########| 98%  cpu:1 |####    | 50%"
    assert busy_line(two, 42, draw) == "busy  cpu:0 |#####| 98%  cpu:1 |##   | 50%"
    many = {f"worker:{n}/gpu:0": n / 10 for n in range(1, 9)}
    folded = "busy  8 devices |####    | 45%"
    assert busy_line(many, 90, draw) == f"{folded}  least worker:1/gpu:0 10%  most worker:8/gpu:0 80%"
    assert busy_line(many, 60, draw) == f"{folded}  least worker:1/gpu:0 10%"
    assert busy_line(many, 20, draw) == folded[:20]
    assert busy_line({}, 79, draw) == ""


def test_times():
    seconds = (0.4, 89, 91, 3540, 3600, 86_000, 86_400, 200_000)
    assert list(map(duration, seconds)) == [
        "0 s",
        "89 s",
        "2 min",
        "59 min",
        "1 h 0 min",
        "23 h 53 min",
        "1 d 0 h",
        "2 d 8 h",
    ]


@pytest.mark.parametrize(("unit", "kwargs"), [("images", {}), ("volumes", {"unit": "volumes"})])
def test_without_a_terminal_there_are_lines(unit, kwargs, tmp_path):
    stream, lines = io.StringIO(), []
    hook = ProgressHook(4, 5, log_step_count_steps=2, stream=stream, report=lines.append, epoch_size=8, **kwargs)
    make(tmp_path).train(line_data, max_steps=5, hooks=[hook])
    assert stream.getvalue() == ""
    assert [line.split("  ")[:2] for line in lines] == [
        ["step 2/5", "epoch 1/3"],
        ["step 4/5", "epoch 2/3"],
        ["step 5/5", "epoch 3/3"],
    ]
    assert all(re.search(rf"  loss \S+  \S+ {unit}/s", line) for line in lines)


def test_lines_come_by_the_clock_and_the_first_at_once(tmp_path, monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    class Clock(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            now[0] += 2.0

    hook = ProgressHook(4, 10, stream=io.StringIO(), report=lines.append)
    make(tmp_path).train(line_data, max_steps=10, hooks=[Clock(), hook])
    steps = [line.split("/")[0] for line in lines]
    assert steps == ["step 1", "step 4", "step 7", "step 10"]
    assert "images/s" not in lines[0] and "2.0 images/s  12 s left" in lines[1]


def test_the_time_left_has_the_tests_to_come(tmp_path, monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    class Clock(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            now[0] += 2.0

    hook = ProgressHook(
        4, 10, log_step_count_steps=2, stream=io.StringIO(), report=lines.append, pauses=lambda step: 5.0 * (step < 8)
    )
    make(tmp_path).train(line_data, max_steps=10, hooks=[Clock(), hook])
    assert [line.partition("images/s")[2].strip() for line in lines] == [
        "21 s left",
        "17 s left",
        "13 s left",
        "4 s left",
        "",
    ]


def test_a_terminal_has_a_bar_and_the_devices_below(tmp_path, monkeypatch):
    terminal = on_terminal(monkeypatch)
    make(tmp_path).train(line_data, steps=2)
    busy = {"cpu:0": 0.5}
    make(tmp_path).train(line_data, max_steps=5, hooks=[ProgressHook(4, 5, epoch_size=8, busy=lambda: busy)])
    shown = screen(terminal.getvalue())
    assert re.fullmatch(r"epoch 3/3  5/5 \|\S+\| loss \S+  \S+ images/s", shown[0])
    assert re.fullmatch(r"busy  cpu:0 \|\S+ *\| 50%", shown[1])
    assert shown[2:] == [""]


def test_log_lines_stand_above_the_bar(tmp_path, monkeypatch):
    terminal = on_terminal(monkeypatch)

    class Warn(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            tf.logging.warning("worker %d is lost", 1)

    with logs.on_console(), logs.log_level(tf.logging.WARN):
        make(tmp_path).train(line_data, max_steps=3, hooks=[ProgressHook(4, 3, busy=lambda: {"cpu:0": 1.0}), Warn()])
    shown = screen(terminal.getvalue())
    assert shown[:3] == ["warning: worker 1 is lost"] * 3
    assert shown[3].startswith("3/3 |") and shown[4].startswith("busy  cpu:0 |") and shown[5:] == [""]


def test_a_terminal_without_tqdm_has_lines(tmp_path, monkeypatch):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(extras, "has_progress_bars", lambda: False)
    lines = []
    make(tmp_path).train(line_data, max_steps=2, hooks=[ProgressHook(4, 2, report=lines.append)])
    assert terminal.getvalue() == "" and lines[-1].startswith("step 2/2")


def test_accuracy_is_that_of_the_graph(tmp_path):
    def model(features, labels, mode, params):
        from estimator_oracle import line_model

        tf.summary.scalar("accuracy", tf.constant(0.75))
        return line_model(features, labels, mode, params)

    lines = []
    make(tmp_path, model).train(
        line_data, max_steps=2, hooks=[ProgressHook(4, stream=io.StringIO(), report=lines.append)]
    )
    assert all("acc 0.75" in line for line in lines)
