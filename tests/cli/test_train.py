"""The training binary: its arguments, layouts compared with one device, resuming, and signals."""

import re
import signal
import subprocess
import time

import pytest
from absl.testing import flagsaver
from tiers import parametrize
from training_runs import CPUS, FAST, ONE, act, check_mistake, check_variables, run, start, variables

from mtf_hetero import tf
from mtf_hetero._support import command_line
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train import config as config_lib
from mtf_hetero.cli.train import run as training
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.estimator import RunConfig
from mtf_hetero.planner import auto
from mtf_hetero.planner.planning import find

pytestmark = pytest.mark.xdist_group("train")  # one training to compare
ON_FOUR = FAST | {"devices": f"{CPUS},cpu:3", "max_steps": 4}


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
    check_mistake(capfd, "'lenet' is not a flag; write --name=value\n", lambda: train.main(["lenet"]))
    check_mistake(capfd, "Unknown command line flag 'speed'", speed=3)
    check_mistake(capfd, "--batch_size", batch_size="many")


@parametrize(
    ("flags", "message"),
    [
        (["--batch_size=many"], "--batch_size"),
        (["--model=lenet", f"--devices={CPUS}", "--list_speed=70,30"], "2 numbers for 3 processors"),
    ],
    first=[(["--batch_size=many"], "--batch_size")],
)
def test_the_program_says_one_line(flags, message):
    """Before TensorFlow is loaded, and in spite of what TensorFlow logs when it is."""
    process = start(*flags, stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.fixture(scope="module")
def of_one_device(tmp_path_factory):
    """The directory of four steps on augmented images."""
    directory = tmp_path_factory.mktemp("one")
    assert run(**ONE | {"max_steps": 4}, augment=True, model_dir=directory) == 0
    return directory


@pytest.fixture(scope="module")
def one_device(of_one_device):
    return variables(of_one_device)


@pytest.mark.full
def test_a_dry_run_needs_no_images(tmp_path, capfd):
    place = {"devices": CPUS, "list_speed": "70,25,5", "data_dir": tmp_path, "dry_run": True}
    assert run(model="paper_cifar", dataset="cifar10", **place) == 0
    out = capfd.readouterr().out
    assert "paper_cifar: 4,610,766 parameters" in out
    assert "cifar10: 50,000 training and 10,000 test images of 32 x 32 x 3" in out
    assert "cifar10 is not prepared here, but the sizes of its images are known" in out
    assert re.search(r"conv1/filters +60 over all: 42, 15, 3\n", out)


def test_a_dry_run_says_what_it_takes_and_trains_nothing(tmp_path, capfd):
    assert run(**FAST, layout="hybrid", mesh_shape="model:3", dry_run=True, model_dir=tmp_path / "model") == 0
    out = capfd.readouterr().out
    rows = re.findall(r"^  (\S+) +\d+ over model: ", out, re.MULTILINE)
    assert rows[0] == "batch" and not any(row.startswith(("conv", "pool")) for row in rows)  # the same for each of them
    assert re.search(r"MB +weights +optimizer +gradients +activations +messages +runtime +peak", out)
    *_, first, second, third, empty, last = out.splitlines()
    assert [line.split()[0] for line in (first, second, third)] == CPUS.split(",")
    assert (empty, last) == ("", "Nothing was trained, because of --dry_run.")
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


HYBRID = {"layout": "hybrid", "mesh_shape": "data:2;model:2", "list_speed": "data:3,2;model:3,2", "dense_shares": "1,2"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "said"),
    [
        (HYBRID | {"dense_rounds": True}, ["outer_batch +\\d+ over data: ", "dense2/inputs +120 over model: 40, 80\n"]),
        (HYBRID | {"dense_rounds": False}, ["dense2/inputs +120 over model: 40, 80\n"]),
        ({"layout": "batch:rows;height:cols", "mesh_shape": "rows:2;cols:2"}, ["height +28 over cols: 14, 14\n"]),
        ({"layout": "stages", "list_speed": "4,2,1,1"}, ["  batch +50 over all: 0, 50, 0, 0\n"]),
    ],
    ids=["hybrid in rounds", "hybrid at once", "slices of augmented images", "stages"],
)
def test_layouts_train_as_one_device(place, said, one_device, tmp_path, capfd):
    assert run(**ON_FOUR | place, augment=True, model_dir=tmp_path) == 0
    check_variables(tmp_path, one_device, atol=1e-5)
    out = capfd.readouterr().out
    assert all(re.search(pattern, out) for pattern in [*said, "test accuracy"])


def test_a_run_resumed_on_another_layout_is_as_one_that_never_stopped(one_device, tmp_path, capfd):
    """On two layouts, of which the second reads slices of batches, and augments them."""
    first = {"augment": True, "list_speed": "40,40,20", "trace_steps": "1"}
    assert run(**FAST | first, model_dir=tmp_path) == 0
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["trace_1.json", "trace_1.txt"]
    out = capfd.readouterr().out
    assert "lenet: 61,706 parameters" in out
    assert "mnist5k: 4,000 training and 1,000 test images of 28 x 28 x 1" in out
    assert "mesh all:3 on cpu:0, cpu:1, cpu:2" in out
    assert re.search(r"dense1/units +120 over all: 48, 48, 24\n", out)
    assert re.search(r"\ntest accuracy: 0\.\d{4} of 1,000 images\n", out)
    assert re.search(r"\nimages per second: \d+\.\d\n", out)
    assert out.endswith(f"\ncheckpoint: {tmp_path}/model.ckpt-2\n")
    resumed = {"mesh_shape": "rows:2;cols:2", "layout": "batch:rows;conv2/channels:cols;dense1/units:cols"}
    assert run(**ON_FOUR | resumed, list_speed="cols:3,1", augment=True, model_dir=tmp_path) == 0
    assert one_device["global_step"] == 4
    check_variables(tmp_path, one_device, atol=1e-5)
    capfd.readouterr()
    assert run(**ONE | {"max_steps": 4}, model_dir=tmp_path, trace_steps="1") == 0
    out = capfd.readouterr().out
    assert "\nnot traced: 1, for 0 steps are left\n" in out
    assert "images per second: none, it was trained to step 4 before" in out


@pytest.mark.full
def test_mixed_precision(tmp_path):
    """The network is computed in bfloat16, the weights stay float32, and layouts agree but for the rounding."""
    for name, options in {"full": {}, "one": {"compute_dtype": "bfloat16"}}.items():
        assert run(**ONE | options, model_dir=tmp_path / name) == 0
    assert run(**FAST, compute_dtype="bfloat16", list_speed="3,2,1", model_dir=tmp_path / "three") == 0
    full, one = variables(tmp_path / "full"), variables(tmp_path / "one")
    del one["global_step"]
    assert {value.dtype.name for value in one.values()} == {"float32"}
    assert all((value != full[name]).any() for name, value in one.items())
    check_variables(tmp_path / "three", variables(tmp_path / "one"), atol=2e-3)


@pytest.mark.full
def test_it_starts_from_the_weights_of_another_training(of_one_device, tmp_path, capfd):
    first = variables(of_one_device)
    assert (
        run(
            **ONE | {"max_steps": 1, "learning_rate": 1e-30, "optimizer": "adam"},
            model_dir=tmp_path / "same",
            initial_weights=of_one_device,
        )
        == 0
    )
    out = capfd.readouterr().out
    path = tf.train.latest_checkpoint(str(of_one_device))
    assert f"\n10 of 10 variables start from {path}\n" in out
    found = variables(tmp_path / "same")
    assert found["global_step"] == 1
    assert all((found[name] == value).all() for name, value in first.items() if name != "global_step")
    assert run(**ONE | {"model": "vgg11"}, initial_weights=path, dry_run=True) == 0
    said = rf"\n1 of 22 variables start from {path}; initialized: conv1_1/kernel, conv1_1/bias, .* and 17 more\n"
    assert re.search(said, capfd.readouterr().out)
    options = {**ONE, "model": "paper_mnist", "dry_run": True, "initial_weights": tmp_path}
    check_mistake(
        capfd, "where there is no checkpoint; name a directory of a run, or DIRECTORY/model.ckpt-7", **options
    )


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
    act(monkeypatch, {1: lambda _: signal.raise_signal(number)})
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
def test_a_session_that_is_made_anew_goes_on_where_the_checkpoint_was(one_device, tmp_path, capfd, monkeypatch):
    """A thread has written the state of the second step when the session ends, as it does with a lost worker."""
    failures = []

    def fail(course):
        path = f"{tmp_path}/model.ckpt-2"
        while tf.train.latest_checkpoint(str(tmp_path)) != path:
            time.sleep(0.01)
        failures.append(path)
        raise tf.errors.AbortedError(None, None, "lost")

    def config(*, save_checkpoints_secs, **options):
        return RunConfig(save_checkpoints_steps=2, **options)

    act(monkeypatch, {3: fail})
    monkeypatch.setattr(training, "RunConfig", config)
    options = FAST | {"devices": "cpu:0,cpu:1", "layout": "batch", "max_steps": 4}
    assert run(**options, augment=True, model_dir=tmp_path) == 0
    assert failures == [f"{tmp_path}/model.ckpt-2"]
    check_variables(tmp_path, one_device, atol=1e-5)
    assert "test accuracy" in capfd.readouterr().out
