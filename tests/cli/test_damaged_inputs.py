"""Damaged inputs, on command lines and in files that a command line names: one line and exit code 2, at once."""

import os
import random
import time

import numpy as np
import pytest
from damaged_files import DAMAGES, is_one_line
from training_runs import ONE, restored_logging, run  # noqa: F401 - one is a fixture

from mtf_hetero.cli import plan as plan_program
from mtf_hetero.cli.after import evaluate, export, predict

pytestmark = pytest.mark.usefixtures("restored_logging")
MOST_SECONDS = 20.0
WHOLE = ["", "x", "nan", "1.5", "-1", "9" * 400, "1" * 5000, "2147483648", "[]", "1,2"]
POSITIVE = ["", "x", "nan", "inf", "-inf", "-1", "0", "1e400", "1,2"]
PATHS = [
    "none",
    ".",
    "/dev/zero",
    "/dev/full",
    "/dev/null",
    "pipe",
    "link_to_nothing",
    "x" * 5000,
    "a\0b",
    "/proc/self/mem",
]
NAMES = ["", "no_such_name", "a\nb", "\0", "x" * 5000, "../..", "-"]
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
    "layout": [
        *NAMES,
        ":",
        "a:b:c",
        "filters:",
        "a:nowhere",
        "none.json",
        "/dev/zero.json",
        ".json",
    ],
    "mesh_shape": [
        "all",
        "all:0",
        "all:-1",
        "all:1.5",
        "all:1000000000000",
        "all:2;all:1",
        ":2",
        "all:x",
        "\0",
        "all:9",
    ],
    "list_speed": [
        "",
        "x",
        "nan",
        "inf",
        "0",
        "-1",
        "1,2",
        "1,",
        ",",
        "all:1;all:1",
        "rows:1",
        "1e400",
        "\0",
        "auto:1",
    ],
    "devices": ["tpu:0", "cpu:0,cpu:0", "cpu:-1", "cpu:999999999999", "gpu:99", "worker:0/cpu:0", "\0", ":", "cpu"],
    "workers": [
        "a",
        "a:0",
        "a:b",
        "a:99999",
        "127.0.0.1:1",
        "a:1,a:1",
        "\0:1",
        "::1",
        ":0",
        "@",
        "@\0",
        "@nowhere,a:1",
    ],
    "port": ["x", "0", "99999", "2300"],
    "local_cluster": ["x", "nan", "inf", "0", "-1", "1,x", "1,0", ",", "1e400"],
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
    "save": [
        ".",
        "/dev/full",
        "/dev/null",
        "/dev/zero",
        "pipe",
        "link_to_nothing",
        "x" * 5000,
        "a\0b",
        "file/plan.json",
    ],
    "picture": [
        ".",
        "/dev/full",
        "pipe.png",
        "link_to_nothing.png",
        "x" * 5000,
        "a\0b.png",
        "file/plan.png",
        "plan.jpg",
    ],
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
ARRAYS = 40  # that are damaged
AFTER = {  # (program, flag): values
    (evaluate, "model_dir"): [*NAMES, *PATHS],
    (evaluate, "checkpoint"): [*NAMES, *PATHS],
    (evaluate, "config"): PATHS,
    (evaluate, "output"): [".", "/dev/full", "/dev/stdout", "pipe", "link_to_nothing", "x" * 5000, "a\0b", "file/x"],
    (predict, "output"): [
        ".",
        "pipe.npz",
        "link_to_nothing.npz",
        "x.txt",
        "x" * 5000 + ".npz",
        "a\0b.npz",
        "file/x.npz",
    ],
    (predict, "input"): [
        "none.npy",
        ".npy",
        "pipe.npy",
        "link_to_nothing.npy",
        "file",
        "damaged.npy",
        "empty.npy",
        "a\0.npy",
        *(f"damaged_{number}.npy" for number in range(ARRAYS)),
    ],
    (export, "output"): [
        ".",
        "pipe",
        "link_to_nothing",
        "file",
        "/dev/full",
        "pipe.keras",
        "a\0b",
        "x" * 5000,
        "file/x",
    ],
    (export, "format"): NAMES,
}
DEVICES = "devices: [{kind: V100}]"


@pytest.fixture(name="here")
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "devices.yaml").write_text(DEVICES)
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'shape': (99999999")
    (tmp_path / "empty.npy").touch()
    np.save("right.npy", np.zeros([2, 3]))
    right, rng = (tmp_path / "right.npy").read_bytes(), random.Random(3)
    for number in range(ARRAYS):
        head = bytearray(right[: rng.randrange(len(right))] if number % 2 else right)
        for _ in range(rng.randrange(4)):
            head[rng.randrange(len(head) or 1) : len(head)] = rng.randbytes(rng.randrange(40))
        (tmp_path / f"damaged_{number}.npy").write_bytes(head)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("model: lenet")
    for name in ("", ".png", ".npz", ".npy", ".keras"):
        os.mkfifo(f"pipe{name}")
        (tmp_path / f"link_to_nothing{name}").symlink_to("nothing")
    return tmp_path


def find_wrong_message(call, capfd):
    """Return the fault of a message about a mistake, or ""."""
    begin = time.monotonic()
    try:
        code = call()
    except SystemExit as end:  # of a parser of flags
        code = end.code
    except BaseException as error:
        return f"raised {error!r}"
    out, err = capfd.readouterr()
    if code != 2 or out or not is_one_line(err.removesuffix("\n")) or not err.startswith("error: "):
        return f"exit code {code}, said {out[-200:]!r} and {err[:500]!r}"
    seconds = time.monotonic() - begin
    return f"took {seconds} s" if seconds > MOST_SECONDS else ""


@pytest.mark.parametrize("flag", TRAIN)
def test_train(flag, here, capfd):
    values = ONE | {"dry_run": True}
    wrong = {}
    for value in TRAIN[flag]:
        if found := find_wrong_message(lambda value=value: run(**values | {flag: value}), capfd):
            wrong[value[:50]] = found
    assert not wrong


@pytest.mark.parametrize("flag", PLAN)
def test_plan(flag, here, capfd):
    values = {"model": "lenet", "simulate": "devices.yaml"}
    if flag == "graph":
        del values["model"]
    wrong = {}
    for value in PLAN[flag]:
        flags = [f"--{name}={text}" for name, text in {**values, flag: value}.items()]
        if found := find_wrong_message(lambda flags=flags: plan_program.main(flags), capfd):
            wrong[value[:50]] = found
    assert not wrong
    assert not os.path.exists("nothing") and "plan.json" not in os.listdir()


@pytest.mark.parametrize(
    ("program", "flag"), AFTER, ids=lambda value: getattr(value, "PROGRAM", value).rpartition(" ")[2]
)
def test_after(program, flag, here, capfd):
    values = {"model_dir": "run"} | ({} if program is evaluate else {"output": "new.npz"})
    if flag == "checkpoint":
        del values["model_dir"]
    wrong = {}
    for value in AFTER[program, flag]:
        flags = [f"--{name}={text}" for name, text in {**values, flag: value}.items()]
        if found := find_wrong_message(lambda flags=flags: program.main(flags, "mtf-hetero"), capfd):
            wrong[value[:50]] = found
    assert not wrong


@pytest.fixture(name="programs", scope="module")
def _programs(tmp_path_factory):
    """{kind of file: (where it lies, what reads it)}."""
    trained = tmp_path_factory.mktemp("trained") / "run"
    assert run(**ONE | {"max_steps": 1}, model_dir=trained) == 0
    new = tmp_path_factory.mktemp("new")
    return {
        "plan.json": (new, lambda: run(**ONE | {"layout": new / "plan.json", "dry_run": True})),
        "devices.yaml": (new, lambda: plan_program.main(["--model=lenet", f"--simulate={new}/devices.yaml"])),
        "network.json": (
            trained,
            lambda: export.main([f"--model_dir={trained}", f"--output={new}/exported"], "mtf-hetero export"),
        ),
        "config.yaml": (new, lambda: run(config=new / "config.yaml", dry_run=True)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_files_on_the_command_line(kind, programs, capfd):
    directory, program = programs[kind]
    wrong = {}
    capfd.readouterr()
    for each in DAMAGES[kind]:
        if each.refused:
            (directory / kind).write_bytes(each.text)
            if found := find_wrong_message(program, capfd):
                wrong[each.what] = found
    assert not wrong
