"""The training binary: what it says to mistakes, a run of two steps, resuming, and signals."""

import itertools
import re
import signal
import subprocess
import time

import numpy as np
import pytest
from absl.testing import flagsaver
from tiers import parametrize
from training_runs import CPUS, FAST, ONE, restored_logging, run, start, variables  # noqa: F401 - one is a fixture

from mtf_hetero import tf
from mtf_hetero._support import command_line
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train import config as config_lib
from mtf_hetero.cli.train import course
from mtf_hetero.cli.train import run as training
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.estimator import RunConfig
from mtf_hetero.planner import auto
from mtf_hetero.planner.planning import find

pytestmark = pytest.mark.usefixtures("restored_logging")


MISTAKES = [
    ({"model": "vgg"}, "--model is 'vgg'; it must be one of alexnet, cosmoflow, cosmoflow_bn, cosmoflow_small, lenet"),
    ({"layout": "diagonal"}, "--layout is 'diagonal'; it must be one of batch, even, filters"),
    ({"dataset": "mnist60k"}, "neither built in (mnist5k) nor prepared in"),
    (
        {"dataset": "cifar10", "data_dir": "/no/such/directory"},
        "prepare it with: mtf-hetero data prepare cifar10 --from=",
    ),
    ({"optimizer": "lion"}, "--optimizer is 'lion'; it must be one of adafactor, adam, momentum, sgd"),
    ({"devices": "tpu:0,tpu:1,tpu:2"}, "--devices names 'tpu:0'; write cpu:N or gpu:N"),
    ({"devices": "cpu:0,cpu:1,gpu:99"}, "device 'gpu:99' does not exist: TensorFlow finds"),
    ({"devices": "cpu:0,cpu:1,cpu:1000000"}, "--devices names 'cpu:1000000'"),
    ({"devices": "cpu:0,cpu:1", "mesh_shape": "all:3"}, "mesh all:3 has 3 processors, but there are 2 devices"),
    ({"devices": ""}, "--devices is empty"),
    ({"devices": "cpu:0,cpu:1,CPU:0"}, "--devices names 'cpu:0' twice; each processor needs a device of its own"),
    (
        {"devices": "worker:0/cpu:0", "workers": "a:1,b:2"},
        "--workers has worker 1, b:2, of which --devices names no device; name one, such as worker:1/cpu:0, or leave",
    ),
    ({"devices": "cpu:0", "local_cluster": "0.5"}, "--local_cluster has worker 0, 0.5, of which --devices names no"),
    (
        {"max_steps": 641},
        "--max_steps is 641, but there are 640 steps in --train_epochs=4 of 4000 images in batches of",
    ),
    ({"max_steps": 641}, "give --train_epochs=5"),
    ({"trace_steps": "3,640"}, "--trace_steps names 640, but the training has 640 steps, which count from 0: the last"),
    ({"layout": "spatial", "mesh_shape": "depth:3"}, "the images of mnist5k have no depth to split; name the axis"),
    ({"list_speed": "70,30"}, "2 numbers for 3 processors"),
    ({"list_speed": "70,30,0"}, "[70.0, 30.0, 0.0]"),
    ({"list_speed": "70,30,-5"}, "[70.0, 30.0, -5.0]"),
    ({"list_speed": "70,30,nan"}, "[70.0, 30.0, nan]"),
    ({"list_speed": "70,30,fast"}, "'fast' is not a number"),
    ({"list_speed": ""}, "'' is not a number"),
    ({"list_speed": "rows:1,2,3"}, "mesh axis 'rows', which the mesh all:3 does not have"),
    ({"list_speed": "all:1,2,3;all:1,2,3"}, "names axis 'all' twice"),
    ({"measure_seconds": 60}, "--measure_seconds is 60.0, which only --layout=auto and --list_speed=auto use"),
    ({"measure_seconds": 0, "list_speed": "auto"}, "--measure_seconds is 0.0; it must be a positive number"),
    ({"measure_seconds": "nan", "list_speed": "auto"}, "--measure_seconds is nan; it must be a positive number"),
    ({"dense_rounds": True}, "--dense_rounds is True, which only --layout=hybrid uses"),
    ({"dense_shares": "1,2,3", "layout": "batch"}, "--dense_shares is '1,2,3', which only --layout=hybrid uses"),
    ({"dense_shares": "1,2,big", "layout": "hybrid"}, "--dense_shares is '1,2,big': 'big' is not a number"),
    ({"dense_shares": "1,0,2", "layout": "hybrid"}, "[1.0, 0.0, 2.0]"),
    ({"dense_shares": "1,2", "layout": "hybrid"}, "2 numbers for the 3 processors"),
    ({"layout": "hybrid", "batch_size": 2, "mesh_shape": "data:1;model:3"}, "2 has no two factors"),
    ({"layout": "hybrid", "mesh_shape": "a:3;b:1;c:1"}, "hybrid parallelism needs one axis or two"),
    ({"mesh_shape": "all:x"}, "the size of axis 'all' must be a whole number"),
    ({"mesh_shape": ","}, "has no axis"),
    ({"mesh_shape": "rows:3;cols:1", "layout": "conv1/filters:depth"}, "axis 'depth', which the mesh"),
    ({"mesh_shape": "rows:1;cols:3"}, "mesh axis 'cols' is used by no rule of layout 'filters'"),
    ({"layout": "conv1/filter:all"}, "; the nearest is 'conv1/filters'"),
    ({"layout": "conv1/channels:all"}, "'conv1/channels' cannot be split over the 3 processors of mesh axis 'all'"),
    ({"layout": "conv2/filters:all;conv2/channels:all"}, "'conv2/channels', 'conv2/filters', and the layout splits"),
    ({"layout": "conv1:filters:all"}, "is not a pair"),
    ({"batch_size": 0}, "--batch_size is 0; it must be a whole number, 1 or more"),
    ({"batch_size": 5000}, "--batch_size is 5000, but mnist5k has 4000 training images"),
    ({"batch_size": 2, "layout": "batch"}, "'batch' of size 2 cannot be split over the 3 processors"),
    ({"train_epochs": -1}, "--train_epochs is -1"),
    ({"learning_rate": 0}, "--learning_rate is 0.0; it must be a number, greater than zero"),
    ({"learning_rate_schedule": "step"}, "--learning_rate_schedule is 'step'; it must be one of constant, cosine"),
    ({"recompute": "conv1"}, "--recompute is given, which --model=lenet does not know; remove it"),
    ({"learning_rate": "nan"}, "--learning_rate is nan"),
    ({"seed": -1}, "--seed is -1"),
    ({"trace_steps": "3,last"}, "--trace_steps is '3,last'; write steps"),
    ({"trace_steps": "-1"}, "--trace_steps is -1; steps count from 0"),
    ({"model_dir": __file__}, "which is a file; name a directory"),
    ({"model_dir": "/proc/no/such"}, "--model_dir is '/proc/no/such', which cannot be made"),
]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=[str(values) for values, _ in MISTAKES])
def test_a_mistake_gives_one_line_and_exit_code_2(values, message, capfd):
    assert run(**{"model": "lenet", "devices": CPUS, **values}) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err


def test_a_layout_that_no_operation_can_be_lowered_with(capfd):
    assert run(model="lenet", devices=CPUS, layout="fh:all") == 2
    out, err = capfd.readouterr()
    assert out.startswith("lenet: ") and "fh       5 over all: 2, 2, 1" in out  # what is asked for is said first
    assert err.startswith("error: ") and err.count("\n") == 1 and "split along dimension 'fh'" in err


def test_each_field_of_the_configuration_is_a_flag():
    with flagsaver.flagsaver():
        command_line.parse_flags(["train"])
        assert train.read_config() == config_lib.Config()
        command_line.parse_flags(
            ["train", "--devices=CPU:0,cpu:1", "--trace_steps=3,5", "--seed=7", "--noaugment", "--model_dir="]
        )
        assert train.read_config() == config_lib.Config(devices=("cpu:0", "cpu:1"), trace_steps=(3, 5), seed=7)


def test_arguments_that_are_no_flags(capfd):
    assert train.main(["lenet"]) == 2
    assert capfd.readouterr().err == "error: 'lenet' is not a flag; write --name=value\n"


WRONG_LAYOUT = ["--model=lenet", f"--devices={CPUS}", "--list_speed=70,30"]


@parametrize(
    ("args", "message"),
    [
        (["--speed=3"], "Unknown command line flag 'speed'"),
        (["--batch_size=many"], "--batch_size"),
        (["--model=vgg"], "--model is 'vgg'"),
        (WRONG_LAYOUT, "2 numbers for 3 processors"),
    ],
    first=[(["--batch_size=many"], "--batch_size")],
)
def test_the_program_says_one_line(args, message):
    process = start(*args, stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_devices_are_written_in_several_ways():
    devices = config_lib.Config("lenet", devices=("GPU:1", "/gpu:0", "/device:CPU:0")).devices
    assert devices == ("gpu:1", "gpu:0", "cpu:0")


def test_two_steps(tmp_path, capfd):
    assert run(**FAST, list_speed="40,40,20", model_dir=tmp_path / "model", trace_steps="1") == 0
    assert sorted(path.name for path in (tmp_path / "model" / "traces").iterdir()) == ["trace_1.json", "trace_1.txt"]
    out = capfd.readouterr().out
    assert "lenet: 61,706 parameters" in out
    assert "mnist5k: 4,000 training and 1,000 test images of 28 x 28 x 1" in out
    assert "mesh all:3 on cpu:0, cpu:1, cpu:2" in out
    assert re.search(r"dense1/units +120 over all: 48, 48, 24\n", out)
    assert re.search(r"\ntest accuracy: 0\.\d{4} of 1,000 images\n", out)
    assert re.search(r"\nimages per second: \d+\.\d\n", out)
    assert out.endswith(f"\ncheckpoint: {tmp_path}/model/model.ckpt-2\n")


@pytest.fixture(scope="module")
def of_one_device(tmp_path_factory):
    """The directory of four steps on augmented images."""
    directory = tmp_path_factory.mktemp("one")
    assert run(**ONE | {"max_steps": 4}, augment=True, model_dir=directory) == 0
    return directory


@pytest.fixture(scope="module")
def one_device(of_one_device):
    return variables(of_one_device)


def assert_same_variables(directory, expected):
    found = variables(directory)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("rounds", [True, False])
def test_hybrid_parallelism_is_as_one_device(rounds, one_device, tmp_path, capfd):
    """Uneven, its dense layers by other shares than the images, in rounds and at once."""
    options = FAST | {"layout": "hybrid", "mesh_shape": "data:2;model:2", "devices": f"{CPUS},cpu:3", "max_steps": 4}
    options |= {"list_speed": "data:3,2;model:3,2", "dense_shares": "1,2"}
    assert run(**options, dense_rounds=rounds, augment=True, model_dir=tmp_path) == 0
    assert_same_variables(tmp_path, one_device)
    out = capfd.readouterr().out
    assert re.search(r"outer_batch +\d+ over data: ", out)
    assert re.search(r"dense2/inputs +120 over model: 40, 80\n", out)


def test_a_dry_run_says_what_it_takes_and_trains_nothing(tmp_path, capfd):
    assert run(**FAST, layout="hybrid", mesh_shape="model:3", dry_run=True, model_dir=tmp_path / "model") == 0
    out = capfd.readouterr().out
    rows = re.findall(r"^  (\S+) +\d+ over model: ", out, re.MULTILINE)
    assert rows[0] == "batch" and not any(row.startswith(("conv", "pool")) for row in rows)  # the same for each of them
    assert re.search(r"MB +weights +optimizer +gradients +activations +messages +runtime +peak", out)
    assert [line.split()[0] for line in out.splitlines()[-3:]] == CPUS.split(",")
    assert "test accuracy" not in out and not (tmp_path / "model").exists()


def test_what_is_measured_is_what_the_layout_splits(monkeypatch):
    asked = []

    def choose(build, cluster, recipes, *, names, cache_dir, **options):
        asked.append((recipes, names, options.get("seconds"), options.get("steps")))
        with tf.Graph().as_default():
            plan = find(build(), Machines(tuple(Machine(name, 1e12, 1e12) for name in cluster.devices)), names=names)
        return auto.Choice("plan", {"plan": plan}, Machines((Machine("cpu:0", 1.0, 1.0),)), {}, lines=("tried",))

    monkeypatch.setattr(auto, "choose", choose)
    options = FAST | {"devices": "cpu:0,cpu:1", "layout": "dense1/units:all", "list_speed": "auto", "dry_run": True}
    assert run(**options, measure_seconds=7.5) == 0
    assert run(**options) == 0
    assert asked == [({}, {"dense1/units"}, seconds, FAST["max_steps"]) for seconds in (7.5, None)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "mesh_shape", "devices"),
    [
        ("batch", "all:3", CPUS),
        ("filters", "all:3", CPUS),
        ("batch:rows;height:cols", "rows:2;cols:2", f"{CPUS},cpu:3"),
    ],
)
def test_slices_of_augmented_batches_are_those_of_one_device(layout, mesh_shape, devices, one_device, tmp_path, capfd):
    options = FAST | {"layout": layout, "mesh_shape": mesh_shape, "devices": devices, "max_steps": 4}
    assert run(**options, augment=True, model_dir=tmp_path) == 0
    assert_same_variables(tmp_path, one_device)
    assert "test accuracy" in capfd.readouterr().out


def test_a_run_resumed_on_another_layout_is_as_one_that_never_stopped(one_device, tmp_path, capfd):
    """On two layouts, of which the second reads slices of batches, and augments them."""
    assert run(**FAST, augment=True, model_dir=tmp_path, list_speed="70,25,5") == 0
    resumed = {"max_steps": 4, "devices": "cpu:0,cpu:1,cpu:2,cpu:3", "mesh_shape": "rows:2;cols:2"}
    layout = "batch:rows;conv2/channels:cols;dense1/units:cols"
    assert run(**FAST | resumed, augment=True, layout=layout, list_speed="cols:3,1", model_dir=tmp_path) == 0
    assert one_device["global_step"] == 4
    assert_same_variables(tmp_path, one_device)
    capfd.readouterr()
    assert run(**ONE | {"max_steps": 4}, model_dir=tmp_path, trace_steps="1") == 0
    out = capfd.readouterr().out
    assert "\nnot traced: 1, for 0 steps are left\n" in out
    assert "images per second: none, it was trained to step 4 before" in out


def test_the_checkpoint_of_something_else(of_one_device, capfd):
    assert run(**ONE | {"optimizer": "momentum"}, model_dir=of_one_device) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "cannot resume" in err
    assert "no such variable there; choose another directory" in err


def test_a_loss_that_is_not_a_number(tmp_path, capfd):
    assert run(**ONE | {"max_steps": 30}, learning_rate=1e30, model_dir=tmp_path) == 1
    err = capfd.readouterr().err
    assert "error: the loss is not a number any more; lower --learning_rate" in err
    assert "Traceback" not in err


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@parametrize(("number", "code"), SIGNALS, first=SIGNALS[:1])
def test_a_signal_saves_and_says_how_to_resume(number, code, tmp_path, capfd, monkeypatch):
    """It arrives in this process; see below for one of its own."""

    class Signalling(course.TraceHook):
        def after_run(self, run_context, run_values):
            signal.raise_signal(number)

    monkeypatch.setattr(course, "TraceHook", Signalling)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
    try:
        assert run(**ONE | {"max_steps": 1000, "train_epochs": 100}, model_dir=tmp_path) == code
    finally:
        signal.signal(signal.SIGINT, previous)
    out, err = capfd.readouterr()
    assert "test accuracy" not in out and "Traceback" not in err
    assert err.splitlines()[-1] == (
        f"stopped: the checkpoint is {tmp_path}/model.ckpt-1; to resume, run the same command with "
        f"--model_dir={tmp_path}"
    )
    assert variables(tmp_path)["global_step"] == 1


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_to_a_process_saves_and_says_how_to_resume(number, code, tmp_path):
    args = ["--model=lenet", "--batch_size=20", "--train_epochs=1000", "--log_steps=10", f"--model_dir={tmp_path}"]
    with start(*args, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "step 20/" in line:
                process.send_signal(number)
                break
        lines += process.stderr.readlines()
        assert process.wait(300) == code
    text = "".join(lines)
    assert "Traceback" not in text
    path = tf.train.latest_checkpoint(str(tmp_path))
    assert int(tf.train.load_variable(path, "global_step")) >= 20
    assert lines[-1] == (
        f"stopped: the checkpoint is {path}; to resume, run the same command with --model_dir={tmp_path}\n"
    )


@pytest.mark.full
def test_a_session_that_is_made_anew_goes_on_where_the_checkpoint_was(one_device, tmp_path, capfd, monkeypatch):
    failures, steps = [], itertools.count(1)

    class Failing(course.TraceHook):
        """Ends a session after the third step, as a lost worker does, once a thread has written the second's state."""

        def after_run(self, run_context, run_values):
            if next(steps) == 3:
                path = f"{tmp_path}/model.ckpt-2"
                while tf.train.latest_checkpoint(str(tmp_path)) != path:
                    time.sleep(0.01)
                failures.append(path)
                raise tf.errors.AbortedError(None, None, "lost")

    def config(*, save_checkpoints_secs, **options):
        return RunConfig(save_checkpoints_steps=2, **options)

    monkeypatch.setattr(course, "TraceHook", Failing)
    monkeypatch.setattr(training, "RunConfig", config)
    options = FAST | {"devices": "cpu:0,cpu:1", "layout": "batch", "max_steps": 4}
    assert run(**options, augment=True, model_dir=tmp_path) == 0
    assert failures == [f"{tmp_path}/model.ckpt-2"]
    assert_same_variables(tmp_path, one_device)
    assert "test accuracy" in capfd.readouterr().out
