"""mtf-hetero plan, and training by its plan."""

import contextlib
import dataclasses
import io
import pathlib
import re
import shlex
import sys
import time

import pytest
from documents import ROOT
from training_runs import check_mistake

from mtf_hetero import Layout, tf
from mtf_hetero._support import command_line
from mtf_hetero.cli import network, search_status
from mtf_hetero.cli import plan as program
from mtf_hetero.cli.search_status import SearchStatus
from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.prepare import place, prepare
from mtf_hetero.cost import kinds, machines
from mtf_hetero.keras import networks
from mtf_hetero.models import MODELS
from mtf_hetero.planner import answering, planning, verdict
from mtf_hetero.planner import plan as plan_lib

DEVICES = """
devices:
  - {name: "cpu:0", flops_per_second: 6e10, bytes_per_second: 1e10}
  - {name: "cpu:1", flops_per_second: 2e10, bytes_per_second: 3e9}
link: {latency_seconds: 1e-6, bytes_per_second: 1e11}
"""


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "devices.yaml"
    path.write_text(DEVICES)
    return path


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A directory with the plan of LeNet, its picture, and what the program said."""
    directory = tmp_path_factory.mktemp("planned")
    (directory / "devices.yaml").write_text(DEVICES)
    flags = ["--model=lenet", "--batch_size=64", f"--simulate={directory}/devices.yaml", "--explain"]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as error:
        assert program.main([*flags, f"--save={directory}/plan.json", f"--picture={directory}/plan.png"]) == 0
    return directory, output.getvalue(), error.getvalue()


def placed(**options):
    with contextlib.ExitStack() as stack:
        return place(prepare(Config(**{"model": "lenet", "batch_size": 64, "dry_run": True} | options), stack))


def test_a_model_is_planned_shown_and_laid_out(planned):
    directory, output, error = planned
    assert (directory / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert re.match(r"Split over cpu:0-1: [\d.]+ ms per step, 1\.\dx faster than cpu:0 alone\.\n", output)
    assert "Memory per device: " in output and "cpu:1" in output and "The step would take so many ms more" in output
    assert max(map(len, output.splitlines())) <= 80
    assert re.fullmatch(r"(searching for a layout \.\.\.\n)?\d+ layouts searched in \d+ s\n", error)
    plan = plan_lib.load(directory / "plan.json")
    assert plan.devices == ("cpu:0", "cpu:1") and plan.seconds < plan.alone[1]
    run = placed(layout=f"{directory}/plan.json")
    assert run.layout == plan.layout and run.devices == plan.devices


SLOWLY_LINKED = """
devices:
  - {name: "cpu:0", flops_per_second: 1e11, bytes_per_second: 2e10}
  - {name: "cpu:1", flops_per_second: 6e10, bytes_per_second: 2e10}
link: {latency_seconds: 1e-4, bytes_per_second: 1.25e7}
"""


@pytest.mark.full
def test_a_keras_model_is_planned_as_a_pipeline(tmp_path, capsys):
    (tmp_path / "devices.yaml").write_text(SLOWLY_LINKED)
    flags = ["--model=keras:VGG16", "--image_size=32", "--batch_size=64", f"--simulate={tmp_path}/devices.yaml"]
    assert program.main([*flags, f"--save={tmp_path}/plan.json"]) == 0
    assert capsys.readouterr().out.startswith("Pipeline of 16 parts of the batch over cpu:0-1: ")
    assert any(name.startswith("stage1/") for name, _ in plan_lib.load(f"{tmp_path}/plan.json").layout.rules)


ABSENT = [("gpu:0", "gpu:1"), ("RTX-3090", "V100"), ("worker:0/gpu:0", "worker:1/cpu:0"), ("gpu:7", "cpu:0")]


@pytest.mark.full
def test_a_dry_run_of_a_plan_needs_none_of_its_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief"}}')
    devices = machines.Machines((machines.Machine("a", 6e10, 1e10), machines.Machine("b", 2e10, 3e9)))
    with tf.Graph().as_default():
        graph = network.build_step(MODELS["lenet"], 64, "adafactor")
        layout = Layout("all:2", "dense1/units:all", sizes={"dense1/units": [80, 40]})
        plan = planning.describe(graph, devices, layout)
    path = tmp_path / "plan.json"
    for names in ABSENT:
        plan_lib.save(dataclasses.replace(plan, devices=names), path)
        run = placed(layout=str(path))
        assert run.layout == layout and f"mesh all:2 on {', '.join(names)}" in run.describe()
    said = run.describe_dry_run()
    assert all(re.search(rf"^ *{name} ", said, re.MULTILINE) for name in ABSENT[-1])
    with pytest.raises(
        plan_lib.PlanError, match="the plan is for the devices gpu:7, cpu:0, but there are gpu:2, gpu:3"
    ):
        placed(layout=str(path), devices=("gpu:2", "gpu:3"))


def test_a_plan_for_another_network_is_refused(planned):
    path = f"{planned[0]}/plan.json"
    with pytest.raises(
        plan_lib.PlanError, match="the plan (does not fit the graph: layout rule|splits dimension) .*; plan anew"
    ):
        placed(model="paper_mnist", layout=path)
    with pytest.raises(plan_lib.PlanError, match="the plan is for the devices cpu:0, cpu:1, but there are cpu:0"):
        placed(layout=path, devices=("cpu:0",))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page on plans, whose file of devices is in the current folder."""
    monkeypatch.setattr(answering, "_LEFT_OUT_SECONDS", 600.0)  # of a busy machine
    monkeypatch.setattr(answering, "_LEAST_SECONDS", 600.0)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    pathlib.Path("devices.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    return page


def list_commands(page):
    """The arguments of each command of the page; in words, a model that is too large, of a file, and the cheapest."""
    return [shlex.split(each) for each in re.findall(r"^mtf-hetero plan (.*)$", page, re.MULTILINE)]


def list_outputs(page):
    return re.findall(r"```text\n(.*?)```", page, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), [(0, 0), (2, 2), (3, 4)])
def test_the_page_shows_what_a_command_prints(page, command, shown, capsys):
    assert program.main(list_commands(page)[command]) == 0
    assert capsys.readouterr().out == list_outputs(page)[shown]


@pytest.mark.slow
def test_the_page_shows_the_error_of_a_model_that_is_too_large(page, capsys):
    assert program.main([*list_commands(page)[1], "--seconds=600"]) == 2  # of a busy machine
    assert capsys.readouterr().err.endswith(list_outputs(page)[1])


@pytest.mark.slow
def test_the_page_shows_what_is_explained(page, capsys, monkeypatch):
    monkeypatch.setattr(answering, "_LEFT_OUT_SECONDS", 600.0)  # of a busy machine
    pathlib.Path("devices.yaml").write_text(V100_AND_T4)
    assert program.main(["--model=resnet18", "--batch_size=64", "--simulate=devices.yaml", "--explain"]) == 0
    assert capsys.readouterr().out.startswith(list_outputs(page)[3])


V100_AND_T4 = """
devices: [{kind: V100}, {kind: T4}]
link: {latency_seconds: 5e-5, bytes_per_second: 1.2e8}
"""
SLOW_LINK = DEVICES.replace("1e11", "1e6")


def test_one_device_and_what_would_make_the_other_pay_off(devices, capsys, monkeypatch):
    monkeypatch.setattr(answering, "_LEFT_OUT_SECONDS", 600.0)  # of a busy machine
    devices.write_text(SLOW_LINK)
    graph = "dense_steps:dense_graph"
    assert program.main([f"--graph={graph}", f"--simulate={devices}", "--explain", "--quiet"]) == 0
    output, error = capsys.readouterr()
    threshold = r"cpu:1 would pay off (from [\d.]+ Gbit/s on|at [\d.]+x its speed)\."
    assert re.match(rf"Use cpu:0 alone: [\d.]+ ms per step\. {threshold}\nMemory per device: ", output)
    assert not error and "limited by" in output and re.search(r"^cpu:1 +[\d.]+ ms ", output, re.MULTILINE)
    assert program.main([f"--graph={graph}", f"--simulate={devices}", "--quiet"]) == 0
    output = capsys.readouterr().out.replace("\n", " ")
    assert re.search(r"Not used: cpu:1\. .*--explain says when the devices that are not used would pay off\.", output)


def test_a_terminal_shows_the_search(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with SearchStatus("searching") as status:
        status.report(12, 0.5)
        assert re.fullmatch(r"searching: 0 s, 12 layouts, best 500 ms per step", status._line())
        status.enter("something else")
        assert status._line() == "something else: 0 s"
    assert "something else: 0 s" in capsys.readouterr().err
    with SearchStatus("searching", quiet=True):
        pass
    assert capsys.readouterr().err == ""


def test_a_log_says_what_takes_long(monkeypatch, capfd):
    monkeypatch.setattr(search_status, "_SILENT_SECONDS", 0.05)
    with SearchStatus("building the network") as status:
        with command_line.capture_stderr():
            time.sleep(0.3)
        status.enter("searching")
        status.report(12, 0.5)
    assert capfd.readouterr().err == "building the network ...\n12 layouts searched in 0 s\n"


def test_the_kinds_are_listed(capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(["--kinds"])
    assert ended.value.code == 0 and capsys.readouterr().out == kinds.listing() + "\n"


def test_devices_in_words(capsys):
    flags = ["--model=lenet", "--batch_size=16", "--quiet"]
    assert program.main([*flags, "--devices=2 x RTX 3090; T4", "--inner_link=nvlink"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "For batches of 16 images of 28 x 28 in float32. Assumed: 10 Gbit/s between machines, steps reach 40" in text
    assert program.main(["--step=dense_steps:tensorflow_step", "--devices=T4,gpu:1=V100", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "gpu:1" in text and "Assumed: 10 Gbit/s between devices, steps reach" in text


def test_the_least_price(devices, capsys):
    flags = ["--graph=dense_steps:dense_graph", "--quiet"]
    words = "--devices=T4 at 0.35, gpu:1=V100 at 2.48"
    assert program.main([*flags, words]) == 0
    assert re.search(
        r"\AUse gpu:1 alone: [^:]*: T4\. .*\n1,000 steps cost 0\.\d+\.$", capsys.readouterr().out, re.M | re.S
    )
    assert program.main([*flags, words, "--objective=cost"]) == 0
    sentence = r"Use T4 alone: .* per step, [\d.]+x slower than gpu:1 alone\. Not used: gpu:1\."
    price = r"1,000 steps cost 0\.\d+; on gpu:1 alone, 0\.\d+\."
    assert re.match(rf"{sentence} {price} Memory", " ".join(capsys.readouterr().out.split()))
    devices.write_text(DEVICES.replace("e9}", "e9, price_per_hour: 1}").replace("e10}", "e10, price_per_hour: 2}"))
    flags = [*flags, f"--simulate={devices}", "--objective=cost"]
    assert program.main([*flags, "--explain"]) == 0
    assert re.match(r"Use cpu:1 alone: .*\. cpu:0\s+would\s+pay\s+off\s+at", capsys.readouterr().out)
    check_mistake(
        capsys, "most_seconds is 1e-06, but the fastest layout", lambda: program.main([*flags, "--most_seconds=1e-6"])
    )


def parse_flags(*flags):
    arguments = program._parse([*flags, "--devices=V100"], program.PROGRAM)
    network.check_flags(arguments)
    network.fill_in(arguments)
    return arguments


def test_a_network_has_its_own_size_unless_another_one_is_given():
    assert network.find(parse_flags("--model=vgg11")).about == "batches of 128 images of 224 x 224 in float32"
    found = network.find(parse_flags("--model=vgg11", "--image_size=40", "--batch_size=2"))
    assert found.about == "batches of 2 images of 40 x 40 in float32"
    with tf.Graph().as_default():
        shapes = {tuple(x.shape.to_integer_list) for op in found.build().operations for x in op.outputs}
    assert (2, 40, 40, 3) in shapes
    found = network.find(parse_flags("--model=keras:MobileNetV3Small"))
    assert found.about == "batches of 128 images of 224 x 224 in float32"


@pytest.mark.parametrize("name", ["EfficientNetB0", pytest.param("ConvNeXtTiny", marks=pytest.mark.full)])
def test_the_weights_of_a_planned_network_have_no_values(name):
    """Nobody reads them; what is not trained has values, which EfficientNet's normalization reads."""
    planned, trained = (networks.construct(name, image_shape=None, classes=3, seed=seed) for seed in (None, 1))
    forms = [[(v.shape, v.dtype, v.trainable) for v in model.variables] for model in (planned, trained)]
    assert forms[0] == forms[1]
    for variables, has_values in ((planned.trainable_variables, False), (planned.non_trainable_variables, True)):
        found = [tf.raw_ops.VarIsInitializedOp(resource=v.value.handle) for v in variables]
        assert all(bool(has_value) == has_values for has_value in found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--simulate=d.yaml"], "argument --simulate: not allowed with argument --devices"),
        (["--model=lenet", "--devices=V101"], "--devices is 'V101': devices[0].kind is 'V101', which is not a known k"),
        (["--model=lenet", "--link=pci"], "--link is 'pci': 'pci' is not a known link; the nearest"),
        (["--graph=dense_steps:dense_graph", "--image_size=3"], "--image_size is of a --model, but there is --graph"),
        (["--step=a:b", "--batch_size=3"], "cannot be imported: No module named 'a'"),
        (["--graph=dense_steps:dense_graph", "--optimizer=sgd"], "--optimizer is of a --model, but there is --graph"),
        (["--step=dense_steps:dense_graph"], "return a step and its arguments, `return step, (images, labels)`"),
        (["--model=lenet", "--objective=money"], "--objective is 'money'; it must be time or cost"),
        (
            ["--model=lenet", "--most_seconds=1"],
            "--most_seconds is 1.0, but the objective is time, which has no limit;",
        ),
        (
            ["--model=lenet", "--objective=cost", "--most_seconds=0"],
            "--most_seconds is 0.0; it must be a number greater",
        ),
        (
            ["--model=lenet", "--objective=cost"],
            "device 'V100' has no price per hour, which the objective cost needs of",
        ),
        (["--model=lenet", "--image_size=0"], "--image_size is 0; it must be a whole number, 1 or more"),
        (["--model=keras:VGG16", "--image_size=8"], "cannot make a model for images of 8 x 8 x 3"),
    ],
)
def test_mistakes_about_devices_and_networks(flags, message, capsys):
    if any("simulate" in flag for flag in flags):
        flags = ["--model=lenet", *flags]
    check_mistake(capsys, message, lambda: program.main(["--devices=V100", *flags]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=vgg"], "--model is 'vgg'; it must be one of alexnet"),
        (["--model=lenet", "--batch_size=0"], "--batch_size is 0; it must be a whole number, 1 or more"),
        (["--model=lenet", "--optimizer=sdg"], "--optimizer is 'sdg'; it must be one of adafactor"),
        (["--model=lenet", "--simulate=none.yaml"], "'none.yaml' cannot be read"),
        (["--model=lenet", "--link=pcie4"], "--link is of --devices, but there is --simulate; write it into that file"),
        (
            ["--model=lenet", "--picture=/proc/version/plan.png"],
            "--picture is '/proc/version/plan.png', but /proc/version cannot be written",
        ),
        (["--model=lenet", "--picture=plan.jpeg"], "--picture is 'plan.jpeg'; name a file that ends in .png, .svg"),
    ],
)
def test_mistakes_are_one_line(flags, message, devices, capsys):
    check_mistake(capsys, message, lambda: program.main([f"--simulate={devices}", *flags]))


def test_without_matplotlib_the_extra_is_named(devices, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    flags = ["--model=lenet", f"--simulate={devices}", f"--picture={tmp_path / 'plan.png'}"]
    message = "needs the package matplotlib; pip install "
    check_mistake(capsys, message, lambda: program.main(flags))


GPUS = """
devices:
  - {kind: V100, count: 2}
  - {kind: T4}
link: {latency_seconds: 1e-6, bytes_per_second: 1e11}
"""


def dry_run(path, **options):
    """The run of a dry run on the devices of a file, and what it says."""
    run = placed(simulate=str(path), **options)
    return run, run.describe_dry_run()


@pytest.mark.full
def test_a_dry_run_on_devices_that_are_not_here(tmp_path):
    path = tmp_path / "gpus.yaml"
    path.write_text(GPUS)
    run, said = dry_run(path, layout="filters", list_speed="3,2,1")
    assert "mesh all:3 on V100:0, V100:1, T4" in said and "conv1/filters        6 over all: 3, 2, 1" in said
    assert run.machines is not None
    assert "\npredicted memory of each device when it needs most, in MB:\nMB  " in said
    assert said.endswith("\n\nNothing was trained, because of --dry_run.")
    sentence = r"Split over V100:0-1, T4: [\d.]+ ms per step, ([\d.]+x \w+er than|as fast as) V100:0 alone\."
    assert re.search(sentence, " ".join(said.split()))
    assert all(re.search(rf"^{name}  +(\d+\.\d +)+\d+\.\d$", said, re.MULTILINE) for name in run.machines.names)
    for layout, speeds in (("auto", None), ("batch", "auto")):
        run, said = dry_run(path, layout=layout, list_speed=speeds)
        assert run.plan is not None and run.machines is not None
        assert run.plan.layout == run.layout and run.machines.names == run.plan.devices
        assert verdict.sentence(run.plan) in " ".join(said.split())
    assert run.plan is not None
    plan_lib.save(run.plan, tmp_path / "plan.json")
    again, said = dry_run(path, layout=str(tmp_path / "plan.json"))
    assert again.layout == run.layout and verdict.sentence(run.plan) in " ".join(said.split())
    path.write_text(DEVICES)
    with pytest.raises(ValueError, match=r"--layout is a plan for V100:0, .*gpus.yaml has no V100:0; give the devices"):
        dry_run(path, layout=str(tmp_path / "plan.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--simulate is 'a.yaml' without --dry_run; nothing is trained on it: give both"),
        ({"dry_run": True, "devices": ("cpu:0",)}, "--devices is .* and --simulate 'a.yaml', which names the devices"),
        ({"dry_run": True, "workers": "a:1"}, "--workers is 'a:1' and --simulate 'a.yaml', which names the devices"),
    ],
)
def test_simulated_devices_are_not_trained_on(options, message):
    with pytest.raises(ValueError, match=message):
        Config(simulate="a.yaml", **options)
