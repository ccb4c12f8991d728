"""Damaged inputs, on command lines and in files that a command line names: one line and exit code 2, at once."""

import functools
import os
import random
import time

import numpy as np
import pytest
from damaged_files import is_one_line, list_damages
from training_runs import ONE, call, run

from mtf_hetero.cli import plan
from mtf_hetero.cli.after import evaluate, export, predict

MOST_SECONDS = 20.0
WHOLE = ["", "x", "nan", "1.5", "-1", "9" * 400, "1" * 5000, "2147483648", "[]", "1,2"]
POSITIVE = ["", "x", "nan", "inf", "-inf", "-1", "0", "1e400", "1,2"]
SHARES = ["x", "nan", "inf", "0", "-1", "1,x", "1,0", ",", "1e400"]
NAMES = ["", "no_such_name", "a\nb", "\0", "x" * 5000, "../..", "-"]


def places(suffix="", *more):
    """Paths at which no file with this suffix can be written or read."""
    return [".", "x" * 5000, *(f"{name}{suffix}" for name in ("pipe", "link_to_nothing", "a\0b", "file/x")), *more]


PATHS = [*places()[:-1], "none", "/dev/zero", "/dev/full", "/dev/null", "/proc/self/mem"]
TRAIN = {  # flag -> values that are wrong whatever else there is
    **{
        name: [*WHOLE, "0"]
        for name in ("batch_size", "train_epochs", "max_steps", "summary_steps", "log_steps", "save_checkpoints_secs")
    },
    "busy_steps": WHOLE,
    "seed": WHOLE,
    "learning_rate": POSITIVE,
    "optimizer": NAMES,
    "learning_rate_schedule": NAMES,
    "wire_dtype": NAMES,
    "model": [*NAMES, "none.keras", ".keras", "keras:", "keras:NoSuchModel", "cosmoflow"],
    "dataset": [*NAMES, "/dev/zero"],
    "layout": [*NAMES, ":", "a:b:c", "filters:", "a:nowhere", "none.json", "/dev/zero.json", ".json"],
    "mesh_shape": ["all", "all:0", "all:-1", "all:1.5", "all:10000000000", "all:2;all:1", ":2", "all:x", "\0", "all:9"],
    "list_speed": ["", *SHARES, "1,2", "1,", "all:1;all:1", "rows:1", "\0", "auto:1"],
    "devices": ["tpu:0", "cpu:0,cpu:0", "cpu:-1", "cpu:999999999999", "gpu:99", "worker:0/cpu:0", "\0", ":", "cpu"],
    "workers": ["a", "a:0", "a:b", "a:99999", "127.0.0.1:1", "a:1,a:1", "\0:1", "::1", ":0", "@", "@\0", "@none,a:1"],
    "port": ["x", "0", "99999", "2300"],
    "local_cluster": SHARES,
    "memory_limit": ["1", "x"],
    "measure_seconds": ["1", "x", "nan"],
    "dense_shares": ["1", "x"],
    "eval_every": ["", "x", "0", "-1", "1.5", "1.5epochs", "epoch", "nan", "99999999", "1" * 5000, "\0"],
    "trace_steps": ["x", "-1", "1.5", "99999999", "1,x", "9" * 400, "\0"],
    "recompute": ["all", "nothing"],
    "dense_rounds": ["true", "x"],
    "augment": ["x", "2"],
    "simulate": PATHS,
    "config": PATHS,
    "model_dir": ["file", "\0"],
    "no_such_flag": ["1"],
}
PLAN = {
    "batch_size": [*WHOLE, "0"],
    "seconds": ["", "x", "nan", "-1", "0", "1,2"],
    "optimizer": NAMES,
    "model": [*NAMES, "none.keras", "keras:NoSuchModel"],
    "simulate": PATHS,
    "save": places("", "/dev/full", "/dev/null", "/dev/zero", "file/plan.json"),
    "picture": places(".png", "/dev/full", "plan.jpg"),
    "graph": [
        "",
        ":",
        "a",
        "a:",
        ":b",
        "no_such:f",
        "sys:no_such",
        "sys:exit",
        "sys:path",
        "os.path:",
        "..a:b",
        "\0:b",
    ],
}
ARRAYS = [f"damaged_{number}.npy" for number in range(40)]
EVALUATE = {
    "model_dir": [*NAMES, *PATHS],
    "checkpoint": [*NAMES, *PATHS],
    "config": PATHS,
    "output": places("", "/dev/full", "/dev/stdout"),
}
PREDICT = {
    "output": places(".npz", "x.txt"),
    "input": [*places(".npy")[1:-1], "none.npy", ".npy", "file", "damaged.npy", "empty.npy", *ARRAYS],
}
EXPORT = {"output": places("", "pipe.keras", "file", "/dev/full"), "format": NAMES}


def run_program(program, **values):
    return program.main([f"--{name}={value}" for name, value in values.items()])


# name: (the program, the flags that are right, {flag: values that are wrong})
PROGRAMS = {
    "train": (run, ONE | {"dry_run": True}, TRAIN),
    "plan": (functools.partial(run_program, plan), {"model": "lenet", "simulate": "devices.yaml"}, PLAN),
    "evaluate": (functools.partial(call, evaluate), {"model_dir": "run"}, EVALUATE),
    "predict": (functools.partial(call, predict), {"model_dir": "run", "output": "new.npz"}, PREDICT),
    "export": (functools.partial(call, export), {"model_dir": "run", "output": "new.npz"}, EXPORT),
}
INSTEAD = {"graph": "model", "checkpoint": "model_dir"}  # flag -> the one that it replaces


@pytest.fixture(name="here")
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "devices.yaml").write_text("devices: [{kind: V100}]")
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'shape': (99999999")
    (tmp_path / "empty.npy").touch()
    np.save("right.npy", np.zeros([2, 3]))
    right, rng = (tmp_path / "right.npy").read_bytes(), random.Random(3)
    for number, name in enumerate(ARRAYS):
        head = bytearray(right[: rng.randrange(len(right))] if number % 2 else right)
        for _ in range(rng.randrange(4)):
            head[rng.randrange(len(head) or 1) : len(head)] = rng.randbytes(rng.randrange(40))
        (tmp_path / name).write_bytes(head)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("model: lenet")
    for name in ("", ".png", ".npz", ".npy", ".keras"):
        os.mkfifo(f"pipe{name}")
        (tmp_path / f"link_to_nothing{name}").symlink_to("nothing")
    return tmp_path


def find_wrong_message(program, values, capfd):
    """Return the fault of a program's message about a mistake, or ""."""
    begin = time.monotonic()
    try:
        code = program(**values)
    except SystemExit as end:  # of a parser of flags
        code = end.code
    except BaseException as error:
        return f"raised {error!r}"
    out, err = capfd.readouterr()
    if code != 2 or out or not is_one_line(err.removesuffix("\n")) or not err.startswith("error: "):
        return f"exit code {code}, said {out[-200:]!r} and {err[:500]!r}"
    seconds = time.monotonic() - begin
    return f"took {seconds} s" if seconds > MOST_SECONDS else ""


@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name in PROGRAMS for flag in PROGRAMS[name][2]])
def test_damaged_flags_are_one_line(name, flag, here, capfd):
    program, right, wrong = PROGRAMS[name]
    right = {other: value for other, value in right.items() if other != INSTEAD.get(flag)}
    found = {value[:50]: find_wrong_message(program, right | {flag: value}, capfd) for value in wrong[flag]}
    assert not {value: message for value, message in found.items() if message}
    assert not os.path.exists("nothing") and "plan.json" not in os.listdir()


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "run"
    assert run(**ONE | {"max_steps": 1}, model_dir=directory) == 0
    return directory


READ_BY = {
    "plan.json": lambda path: run(**ONE, layout=path, dry_run=True),
    "devices.yaml": lambda path: run_program(plan, model="lenet", simulate=path),
    "network.json": lambda path: call(export, model_dir=path.parent, output=path.parent / "exported"),
    "config.yaml": lambda path: run(config=path, dry_run=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ_BY)
def test_damaged_files_on_the_command_line(kind, trained, tmp_path, capfd):
    path = (trained if kind == "network.json" else tmp_path) / kind
    wrong = {}
    capfd.readouterr()
    for each in list_damages(kind):
        if each.refused:
            path.write_bytes(each.text)
            if found := find_wrong_message(READ_BY[kind], {"path": path}, capfd):
                wrong[each.what] = found
    assert not wrong
